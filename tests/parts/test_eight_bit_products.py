"""Products in 8 bits: near the plain ones, forward and backward, in layers that stay linear layers."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from hotlap.parts.eight_bit_products import PIECE, EightBitLinear, convert, restore, scaled, suitable


def layer(inputs: int = 64, outputs: int = 48, **options) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, **options)


def both(x: torch.Tensor, bias: bool = True) -> list[list[torch.Tensor]]:
    """Output and gradients, plain and in 8 bits."""
    found = []
    for is_converted in (False, True):
        one, input = layer(bias=bias), x.clone().requires_grad_()
        if is_converted:
            convert(one)
        out = one(input)
        out.square().mean().backward()
        found.append([out.detach(), input.grad, one.weight.grad, *([one.bias.grad] if bias else [])])
    return found


def off(one: torch.Tensor, other: torch.Tensor) -> float:
    return ((one.double() - other.double()).norm() / other.double().norm()).item()


@pytest.mark.parametrize("shape", [(32, 64), (4, 8, 64)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_nearly_the_same_and_not_the_same(shape: tuple, bias: bool) -> None:
    torch.manual_seed(1)
    plain, eight = both(torch.randn(shape), bias)
    for one, other in zip(eight, plain, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert 1e-4 < off(one, other) < 0.08
        assert torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.995


def test_by_the_definition() -> None:
    torch.manual_seed(1)
    one, x = layer(), torch.randn(32, 64)
    x8, x_scale = scaled(x, torch.float8_e4m3fn)
    w8, w_scale = scaled(one.weight, torch.float8_e4m3fn)
    expected = (x8.float() @ w8.float().t()) * x_scale * w_scale + one.bias
    convert(one)
    torch.testing.assert_close(one(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("factor", [1e-20, 1.0, 1e20])
def test_any_size_of_numbers_is_scaled_into_range(factor: float) -> None:
    x = factor * torch.randn(16, 16)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        eight, scale = scaled(x, dtype)
        assert off(eight.float() * scale, x) < 0.08
    eight, scale = scaled(torch.zeros(4, 4), torch.float8_e4m3fn)
    assert (eight.float() * scale).abs().max() == 0


def test_evaluation_odd_batches_and_float64_are_plain() -> None:
    one, plain = layer(), layer()
    convert(one)
    x = torch.randn(32, 64)
    assert not torch.equal(one(x), plain(x))
    assert torch.equal(one(x[: PIECE + 1]), plain(x[: PIECE + 1]))
    with torch.no_grad():
        assert torch.equal(one(x), plain(x))
    assert torch.equal(one.eval()(x), plain(x))
    assert torch.equal(one.train().double()(x.double()), plain.double()(x.double()))


def test_under_autocast_the_output_is_as_autocast_makes_it() -> None:
    one, x = layer(), torch.randn(32, 64)
    convert(one)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = one(x)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert one.weight.grad.dtype == torch.float32


def test_copies_pickles_names_and_checkpoints_are_a_linear_layers() -> None:
    one = layer()
    text, keys = repr(one), list(one.state_dict())
    convert(one)
    assert isinstance(one, EightBitLinear) and repr(one) == text and list(one.state_dict()) == keys
    content = pickle.dumps(one)
    assert b"hotlap" not in content
    for other in (copy.deepcopy(one), pickle.loads(content)):
        assert type(other) is nn.Linear and torch.equal(other.weight, one.weight)
    restore(one)
    assert type(one) is nn.Linear


def test_which_layers() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.odd, self.small = layer(32, 32), layer(40, 64), layer(16, 64)
            self.good, self.one, self.other = layer(64, 32), layer(64, 64), layer(64, 64)
            self.other.weight = self.one.weight
            self.attention, self.last = nn.MultiheadAttention(32, 2), layer(32, 32)

    model = Tied()
    assert suitable(model, 32) == [model.good]
    assert suitable(model) == []
    assert suitable(Tied().double(), 32) == []


def test_a_compiler_sees_the_products() -> None:
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.print_readable(print_output=False))
        return graph

    model = nn.Sequential(layer(64, 64), nn.ReLU(), layer(64, 64))
    convert(model[2])
    x = torch.randn(32, 64)
    expected = model(x)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    assert len(graphs) == 1 and "float8_e4m3fn" in graphs[0]
    torch._dynamo.reset()


def test_gradients_of_gradients_are_refused_aloud() -> None:
    """A penalty on the gradient would reach no weight of the layer."""
    one, x = layer(), torch.randn(32, 64, requires_grad=True)
    convert(one)
    (slope,) = torch.autograd.grad(one(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()
