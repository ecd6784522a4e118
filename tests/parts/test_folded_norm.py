"""Batch norms that are folded away while a model evaluates."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.parts.folded_norm import folded


class Norms(TorchDispatchMode):
    """How many batch norms really run."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += "batch_norm" in str(function)
        return function(*args, **(kwargs or {}))


class Block(nn.Module):
    def __init__(self, reads_twice: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.reads_twice = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), reads_twice

    def forward(self, x):
        out = self.conv(x)
        return torch.relu(self.norm(out)) + (out if self.reads_twice else x)


def network(**options) -> nn.Sequential:
    torch.manual_seed(0)
    head = [nn.Flatten(), nn.Linear(4 * 64, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)]
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), Block(**options), *head)
    for _ in range(5):  # so that there is something in the statistics
        model(1 + 2 * torch.randn(16, 3, 8, 8))
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.uniform_(module.bias, -1, 1)
    return model.eval()


@torch.no_grad()
def test_the_same_without_the_norms() -> None:
    model, x = network(), torch.randn(4, 3, 8, 8)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    expected = model(x)
    with folded(model) as folding:
        assert torch.equal(model(x), expected), "the first is the model's own"
        with Norms() as norms:
            torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
        assert norms.count == 0 and len(folding.pairs) == 3 and folding.reason == ""
    with Norms() as norms:
        assert torch.equal(model(x), expected)
    assert norms.count == 3
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all("_compiled_call_impl" not in vars(module) for module in model.modules())
    assert isinstance(model[0].weight, nn.Parameter) and model[0].bias is None


@torch.no_grad()
def test_each_time_with_the_weights_there_are() -> None:
    model, x = network(), torch.randn(4, 3, 8, 8)
    for _ in range(2):
        model[0].weight.data.mul_(1.5)  # which leaves its version as it was
        with folded(model):
            model(x)
            found = model(x)
        torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_what_is_read_elsewhere_is_left_alone() -> None:
    model, x = network(reads_twice=True), torch.randn(4, 3, 8, 8)
    expected = model(x)
    with folded(model) as folding:
        model(x)
        assert torch.equal(model(x), expected)
    assert folding.pairs == [] and "something else reads" in folding.reason


@pytest.mark.parametrize("case", ["training", "gradients", "hooks"])
def test_where_it_does_nothing(case: str) -> None:
    model, x, seen = network(), torch.randn(4, 3, 8, 8), []
    if case == "training":
        model.train()
    for module in model.modules() if case == "hooks" else ():
        module.register_forward_hook(lambda *_: seen.append(1))
    with torch.set_grad_enabled(case == "gradients"), folded(model) as folding:
        model(x)
        with Norms() as norms:
            model(x)
    assert norms.count == 3 and folding.pairs == [] and folding.reason
    assert not seen or len(seen) % 2 == 0


@torch.no_grad()
def test_an_error_inside_leaves_nothing_behind() -> None:
    model = network()
    with pytest.raises(ValueError, match="planted"), folded(model):
        model(torch.randn(4, 3, 8, 8))
        raise ValueError("planted")
    assert all("_compiled_call_impl" not in vars(module) for module in model.modules())
