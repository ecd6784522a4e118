"""Weights and inputs change their strides; everything a script can print stays as it was."""

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


def test_weights_and_inputs_are_converted(apply) -> None:
    expected = train(network())
    apply("channels-last")
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pointers = [id(p) for p in model.parameters()]
    with torch.enable_grad():
        model(torch.randn(2, 3, 8, 8))
    assert all(is_nhwc(layer.weight) for layer in (model.body[0], model.body[3]))
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
