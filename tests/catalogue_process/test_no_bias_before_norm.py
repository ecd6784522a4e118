"""Without the bias that batch norm takes away: the same losses, weights, statistics and checkpoints."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from hotlap.catalogue import find
from hotlap.measure.candidates import Candidate, Skipped, consider
from hotlap.observe.facts import _biases_before_norm
from hotlap.observe.patch import Patch
from hotlap.observe.run import OptimizerFacts, RootFacts, Run


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 6, 2)
        self.up_norm = nn.BatchNorm2d(6, momentum=0.3)
        self.hidden = nn.Linear(6, 16)
        self.hidden_norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 4)
        self.had_bias: list[bool] = []

    def forward(self, x):
        self.had_bias.append(self.conv.bias is not None)
        x = F.relu(self.norm(self.conv(x)))
        x = F.relu(self.up_norm(self.up(x))).mean((2, 3))
        return self.head(F.relu(self.hidden_norm(self.hidden(x))))


BIASES = ("conv.bias", "up.bias", "hidden.bias")
OPTIMIZERS: dict[str, Callable] = {
    "decay": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.05),
    "plain": lambda p: torch.optim.SGD(p, lr=0.05),
    "adam": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.05),
}


def network(kind: type[nn.Module] = Net) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def train(model: nn.Module, optimizer: str = "decay", steps: int = 50, set_to_none: bool = True) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    update = OPTIMIZERS[optimizer](model.parameters())
    losses = []
    for _ in range(steps):
        update.zero_grad(set_to_none)
        x = torch.randn(16, 3, 8, 8, generator=generator) + 0.5
        loss = F.cross_entropy(model(x), torch.randint(4, (16,), generator=generator))
        loss.backward()
        update.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("optimizer", ["decay", "plain"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_fifty_steps_are_the_same(apply, optimizer: str, set_to_none: bool) -> None:
    plain = network()
    expected = train(plain, optimizer, set_to_none=set_to_none)
    apply("no-bias-before-norm")
    model = network()
    assert train(model, optimizer, set_to_none=set_to_none) == pytest.approx(expected, rel=1e-4)
    assert model.had_bias == [True, True] + [False] * 48
    state, wanted = model.state_dict(), plain.state_dict()
    assert list(state) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(state[name], value, rtol=1e-3, atol=1e-4, msg=name)
    assert all((model.get_parameter(name).grad == 0).all() for name in BIASES)


def test_a_script_may_ask_for_the_gradient_of_every_weight(apply) -> None:
    def asked() -> list[torch.Tensor]:
        model = network()
        train(model, steps=3)
        x = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(2))
        return list(torch.autograd.grad(model(x).square().sum(), model.parameters()))

    expected = asked()
    apply("no-bias-before-norm")
    for one, other in zip(asked(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_under_adam_only_the_training_is_the_same(apply) -> None:
    """Adam makes steps of full size out of a gradient that is only rounding: without effect, but not in evaluation."""
    plain = network()
    expected = train(plain, "adam")
    apply("no-bias-before-norm")
    model = network()
    assert train(model, "adam") == pytest.approx(expected, rel=1e-4)
    for name, value in plain.named_parameters():
        if name not in BIASES:
            torch.testing.assert_close(model.get_parameter(name), value, rtol=1e-3, atol=1e-4, msg=name)
    assert any((model.get_parameter(n) - plain.get_parameter(n)).abs().max() > 2e-3 for n in BIASES), (
        "not tried with it"
    )


def test_evaluation_copies_and_pickles_have_the_bias(apply) -> None:
    apply("no-bias-before-norm")
    model = network()
    train(model, steps=4)
    model.eval()
    model.had_bias.clear()
    x = torch.randn(2, 3, 8, 8)
    expected = model(x)
    assert model.had_bias == [True]
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(copied(x), expected)
    plain = network()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain.eval()(x), expected)


class Skipping(Net):
    """Every other call leaves the first block out."""

    def forward(self, x):
        self.had_bias.append(self.conv.bias is not None)
        if len(self.had_bias) > 2 and len(self.had_bias) % 2:
            x = F.pad(x, (0, 0, 0, 0, 0, 5))[..., :6, :6]
        else:
            x = F.relu(self.norm(self.conv(x)))
        x = F.relu(self.up_norm(self.up(x))).mean((2, 3))
        return self.head(F.relu(self.hidden_norm(self.hidden(x))))


def test_a_block_that_is_skipped_keeps_its_statistics(apply) -> None:
    plain = network(Skipping)
    train(plain, steps=9)
    apply("no-bias-before-norm")
    model = network(Skipping)
    train(model, steps=9)
    assert model.had_bias[-1] is False
    torch.testing.assert_close(model.norm.running_mean, plain.norm.running_mean, rtol=1e-4, atol=1e-5)


def read_elsewhere(net: Net, x):
    y = net.conv(x)
    return net.norm(y) + y


def logged(net: Net, x):
    y = net.conv(x)
    net.mean = y.detach().mean()
    return net.norm(y)


def kept(net: Net, x):
    net.features = net.conv(x)
    return net.norm(net.features)


def changed(net: Net, x):
    return net.norm(net.conv(x).relu_())


def called_twice(net: Net, x):
    return net.norm(net.conv(x)) + net.norm(net.conv(x))


def bias_read(net: Net, x):
    return net.norm(net.conv(x)) + net.conv.bias.sum()


def recomputed(net: Net, x):
    return checkpoint(lambda x: net.norm(net.conv(x)), x, use_reentrant=False)


def frozen(net: Net, x):
    net.norm.eval()
    return net.norm(net.conv(x))


@pytest.mark.parametrize(
    "first",
    [read_elsewhere, logged, kept, changed, called_twice, bias_read, recomputed, frozen],
    ids=lambda f: f.__name__,
)
def test_a_bias_that_counts_is_kept(apply, first: Callable) -> None:
    class Other(Net):
        def forward(self, x):
            self.had_bias.append(self.conv.bias is not None or self.up.bias is not None)
            self.conv_biased = self.conv.bias is not None
            x = F.relu(self.up_norm(self.up(first(self, x)))).mean((2, 3))
            return self.head(F.relu(self.hidden_norm(self.hidden(x))))

    plain = network(Other)
    expected = train(plain, steps=6)
    apply("no-bias-before-norm")
    model = network(Other)
    assert train(model, steps=6) == pytest.approx(expected, rel=1e-4)
    assert model.conv_biased
    assert model.up.bias.grad.abs().max() == 0, "the other pairs are freed all the same"


def test_hooks_of_the_script_see_the_bias(apply) -> None:
    apply("no-bias-before-norm")
    model = network()
    seen = []
    model.conv.register_forward_hook(lambda layer, args, out: seen.append(layer.bias is not None))
    train(model, steps=4)
    assert seen == [True] * 4 and model.hidden.bias.grad.abs().max() == 0


def test_without_a_pair_it_is_withdrawn(apply) -> None:
    patch: Patch = apply("no-bias-before-norm")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 4))
    train(model, steps=3)
    assert len(patch.joints.withdrawn) == 1 and "no batch norm was fed" in patch.joints.withdrawn[0]


def facts(biases: int = 1, optimizer: str = "torch.optim.sgd.SGD") -> Run:
    root = RootFacts("Net", 9, {}, False, False, (4,), ("float32",), None, False, None, biases_before_norm=biases)
    known = OptimizerFacts(optimizer, False, None, False, False, 1, 9, ("cpu",), ("float32",), False)
    return Run("2.11", "cpu", roots=[root], optimizers=[known], step_parts=[[0, 0, 1, 1, 0, 0, 0]])


def test_tried_where_it_can_help() -> None:
    technique = find("no-bias-before-norm")
    assert isinstance(consider(technique, facts()), Candidate)
    none, adam = consider(technique, facts(biases=0)), consider(technique, facts(optimizer="torch.optim.adamw.AdamW"))
    assert isinstance(none, Skipped) and "no layer here" in none.reason
    assert isinstance(adam, Skipped) and adam.reason.startswith("AdamW makes full steps")


def test_biases_are_counted_in_the_order_of_modules() -> None:
    assert _biases_before_norm(network()) == 3
    assert _biases_before_norm(nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))) == 0
    assert _biases_before_norm(nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.BatchNorm2d(8))) == 0
    assert _biases_before_norm(nn.Sequential(nn.BatchNorm2d(8), nn.BatchNorm2d(8))) == 0


def test_the_mean_is_right_when_calls_are_compiled(apply) -> None:
    """A compiled norm leaves other traces of its run."""
    plain = network()
    expected = train(plain, steps=6)
    traced = torch.compile(lambda root, x: root._call_impl(x), backend="aot_eager")  # before: the script does not
    patch = apply("no-bias-before-norm")

    def compiled(proceed, root, args, kwargs):
        return proceed(root, args, kwargs) if patch.joints.roots.is_looking else traced(root, *args)

    patch.joints.roots.quiet_updates = 0
    patch.at(patch.joints.root_called, compiled, depth=8)
    model = network()
    assert train(model, steps=6) == pytest.approx(expected, rel=1e-4)
    assert model.hidden.bias.grad.abs().max() == 0
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-5, msg=name)
