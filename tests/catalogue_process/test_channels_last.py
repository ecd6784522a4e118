"""Inputs change their strides, and with them all that is made of them; weights and what a script can print do not."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
        self.head = nn.Linear(4, 2)
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, x, extra=None):
        self.seen.append((is_nhwc(x), extra is None or is_nhwc(extra)))
        return self.head(self.body(x).mean((2, 3)))


def is_nhwc(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def network() -> Net:
    torch.manual_seed(0)
    return Net()


def train(model: nn.Module, steps: int = 4, **options) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(2, 3, 8, 8, generator=generator), **options).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_inputs_are_converted_and_weights_are_not(apply) -> None:
    expected = train(network())
    apply("channels-last")
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pointers = [id(p) for p in model.parameters()]
    with torch.enable_grad():
        model(torch.randn(2, 3, 8, 8))
    assert not any(is_nhwc(one) for one in (*model.parameters(), *model.state_dict().values()))
    state = model.state_dict()
    assert list(state) == list(before)
    for name, value in before.items():
        if "running" not in name and "tracked" not in name:
            assert torch.equal(state[name], value) and state[name].shape == value.shape
    assert [id(p) for p in model.parameters()] == pointers, "an optimizer built before must still hold them"
    model = network()
    assert train(model, extra=torch.randn(2, 3, 8, 8)) == pytest.approx(expected, rel=1e-5)
    assert model.seen == [(False, False)] + [(True, True)] * 3


def test_copies_and_pickles_are_plain(apply) -> None:
    apply("channels-last")
    model = network()
    train(model)
    x = torch.randn(2, 3, 8, 8)
    model.eval()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert vars(copied).get("_compiled_call_impl") is None
        assert torch.allclose(copied(x), model(x), atol=1e-6)
        with torch.no_grad():
            copied.head.bias.add_(1.0)
        assert torch.allclose(copied(x), model(x) + 1, atol=1e-5), "a copy must run its own weights"


def test_undone(apply) -> None:
    patch = apply("channels-last")
    model = network()
    train(model)
    patch.undo()
    assert not any(is_nhwc(p) for p in model.parameters())
    model.seen.clear()
    train(model, steps=1)
    assert model.seen == [(False, True)]


@pytest.mark.parametrize("kind", ["linear", "video", "volume buffer"])
def test_models_without_that_layout_are_left_alone(apply, kind: str) -> None:
    apply("channels-last")
    if kind == "linear":
        model, x = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), torch.randn(2, 3, 2, 2)
    elif kind == "video":
        model, x = nn.Sequential(nn.Conv3d(3, 2, 1), nn.Flatten(2), nn.Conv1d(2, 2, 1)), torch.randn(2, 3, 2, 2, 2)
    else:
        model, x = nn.Sequential(nn.Conv2d(3, 2, 1)), torch.randn(2, 3, 2, 2)
        model.register_buffer("volume", torch.zeros(1, 1, 1, 1, 1))
    strides = [p.stride() for p in model.parameters()]
    for _ in range(2):
        model(x).sum().backward()
    assert [p.stride() for p in model.parameters()] == strides


class Maker(nn.Module):
    """Images that come of something else, and once more in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.up = nn.Linear(6, 4 * 16), nn.ConvTranspose2d(4, 8, 2, stride=2)
        self.middle, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 1, 3)
        self.seen: dict[str, list[bool]] = {}
        for name in ("up", "middle", "last"):
            layer = getattr(self, name)
            plain = layer.forward
            layer.forward = lambda x, name=name, plain=plain: (
                self.seen.setdefault(name, []).append(is_nhwc(x)),
                plain(x),
            )[1]

    def forward(self, x):
        x = self.middle(self.up(self.first(x).view(-1, 4, 4, 4)).relu())
        return self.last(x.flatten(1).view(-1, 8, 8, 8))


def test_images_that_enter_within_a_network(apply) -> None:
    torch.manual_seed(0)
    plain, model = Maker(), Maker()
    model.load_state_dict(plain.state_dict())
    apply("channels-last")
    x = torch.randn(3, 6)
    for _ in range(14):
        out = model(x)
        out.square().mean().backward()
    assert model.seen["up"][1:] == [True] * 13 and model.seen["last"][1:] == [True] * 13
    assert model.seen["middle"][1:] == [True] * 13, "handed on"
    assert vars(model.middle).get("_compiled_call_impl") is None, "nobody stands there any more"
    assert vars(model.up)["_compiled_call_impl"] is not None
    for _ in range(14):
        expected = plain(x)
        expected.square().mean().backward()
    torch.testing.assert_close(out, expected)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
        assert one.grad.is_contiguous() and one.is_contiguous()


def test_a_single_channel_is_taken_for_the_layout(apply) -> None:
    apply("channels-last")
    seen: list[bool] = []

    class Watching(nn.Identity):
        def forward(self, x):
            seen.append(is_nhwc(x))
            return x

    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), Watching())
    x = torch.randn(2, 1, 8, 8)
    for _ in range(3):
        model(x)
    assert seen == [False, True, True]


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_a_checkpoint_of_either_kind_goes_on_with_a_fused_optimizer(apply, optimizer) -> None:
    """The kernel walks over memory as it lies: state in another layout than its weights goes on wrongly."""

    def trained(saved=None, steps=4):
        model = network()
        own = optimizer(
            model.parameters(), lr=0.01, fused=True, **({"momentum": 0.9} if optimizer is torch.optim.SGD else {})
        )
        if saved is not None:
            model.load_state_dict(saved[0])
            own.load_state_dict(copy.deepcopy(saved[1]))
        generator, losses = torch.Generator().manual_seed(len(saved or ())), []
        for _ in range(steps):
            own.zero_grad()
            loss = model(torch.randn(2, 3, 8, 8, generator=generator)).square().mean()
            loss.backward()
            own.step()
            losses.append(loss.item())
        return losses, (copy.deepcopy(model.state_dict()), copy.deepcopy(own.state_dict()))

    _, plain = trained()
    expected, _ = trained(plain)
    patch = apply("channels-last")
    _, ours = trained()
    resumed, _ = trained(plain)
    patch.undo()
    assert resumed == pytest.approx(expected, rel=1e-4)
    assert trained(ours)[0] == pytest.approx(expected, rel=1e-4)
    torch.nn.utils.parameters_to_vector(ours[0].values())


class Flattened(nn.Module):
    """As LeNet is often written; only when it is judged, or always."""

    def __init__(self, only_judged: bool) -> None:
        super().__init__()
        drop = nn.Dropout(0.0 if only_judged else 0.3)  # which draws in the order of the memory
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), drop)
        self.head, self.only_judged = nn.Linear(4 * 36, 2), only_judged

    def forward(self, x):
        x = self.body(x)
        return self.head(x.flatten(1) if self.only_judged and self.training else x.view(-1, 4 * 36))


@pytest.mark.parametrize("only_judged", [False, True])
def test_a_network_that_flattens_by_view_goes_on_as_it_was(apply, only_judged: bool) -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model, seen = Flattened(only_judged), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            model.train()
            for _ in range(3):
                optimizer.zero_grad()
                out = model(torch.randn(4, 3, 8, 8))
                out.square().mean().backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                seen += [out.detach(), model(torch.randn(4, 3, 8, 8))]
        return [*seen, *model.state_dict().values(), torch.rand(1)]

    expected = run()
    patch = apply("channels-last")
    for one, other in zip(run(), expected, strict=True):
        torch.testing.assert_close(one, other)
    (reason,) = patch.joints.withdrawn
    assert "`view`" in reason and patch.is_withdrawn


def test_other_errors_are_the_scripts(apply) -> None:
    apply("channels-last")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    model(torch.randn(1, 3, 8, 8))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.randn(1, 3, 9, 9))


def images() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1))


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = images()

    def forward(self, x):
        out = self.body(x)
        return {"out": out, "rows": out.flatten(2)}


def test_results_lie_as_the_script_expects_them(apply) -> None:
    apply("channels-last")
    model = Named()
    for _ in range(3):
        found = model(torch.randn(2, 3, 8, 8))
        assert all(one.is_contiguous() for one in found.values())
        found["out"].view(-1, 3 * 64).square().mean().backward()
    with torch.no_grad():
        assert model.eval()(torch.randn(2, 3, 8, 8))["rows"].view(2, -1).shape == (2, 192)


@pytest.mark.parametrize("of", ["arguments", "weights"])
def test_results_of_a_script_that_chose_the_layout_keep_it(apply, of: str) -> None:
    apply("channels-last")
    model, x, layout = images(), torch.randn(2, 3, 8, 8), torch.channels_last
    model = model.to(memory_format=layout) if of == "weights" else model
    x = x.to(memory_format=layout) if of == "arguments" else x
    for _ in range(3):
        assert model(x).permute(0, 2, 3, 1).view(-1, 3).shape == (128, 3)


def test_gradients_lie_as_the_script_expects_them(apply) -> None:
    """Of images, as a penalty asks for, and of weights."""
    apply("channels-last")
    model = images()
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8, requires_grad=True)
        (found,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        found.view(2, -1).norm(dim=1).sum().backward()
        for one in torch.autograd.grad(model(x).square().sum(), list(model.parameters())):
            one.view(-1)
        found, unused = torch.autograd.grad(model(x).sum(), [x, torch.zeros(1, requires_grad=True)], allow_unused=True)
        assert found.is_contiguous() and unused is None


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.is_late, self.calls = images(), False, 0

    def forward(self, x):
        self.calls += 1
        return self.body(x if self.is_late and self.calls < 4 else x.sub_(0.5).mul_(2))


@pytest.mark.parametrize("is_late", [False, True])
def test_a_network_that_works_in_place_on_its_images_goes_on_as_it_was(apply, is_late: bool) -> None:
    def run() -> list[torch.Tensor]:
        model, seen = InPlace(), []
        model.is_late = is_late
        for _ in range(6):
            x = torch.rand(2, 3, 8, 8)
            out = model(x)
            (out - x).square().mean().backward()
            seen += [x, out.detach()]
        return seen

    expected = run()
    patch = apply("channels-last")
    for one, other in zip(run(), expected, strict=True):
        torch.testing.assert_close(one, other)
    (reason,) = patch.joints.withdrawn
    assert "in place" in reason


class FlatteningLate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.is_late = images(), False

    def forward(self, x):
        x = self.body(x)
        return x.view(-1, 192) if self.is_late else x.flatten(1)


def test_a_network_that_begins_to_flatten_by_view_goes_on(apply) -> None:
    patch = apply("channels-last")
    model, x = FlatteningLate(), torch.randn(2, 3, 8, 8)
    for _ in range(3):
        expected = model(x)
    model.is_late = True
    torch.testing.assert_close(model(x), expected)
    (reason,) = patch.joints.withdrawn
    assert "`view`" in reason


def test_gradients_of_each_sample(apply) -> None:
    """Within such transforms nobody can ask how an image lies."""
    apply("channels-last")
    model, x = images(), torch.randn(4, 3, 8, 8)
    model(x), model(x)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights, one):
        return torch.func.functional_call(model, weights, one[None]).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)
    expected = torch.func.grad(loss)(weights, x[1])
    for name, value in found.items():
        torch.testing.assert_close(value[1], expected[name], rtol=1e-4, atol=1e-4)
