"""A layer and its norm alone: what is called, what is corrected, and what is put back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.parts.bias_free import BiasFree, Pair, watched


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def test_pairs_are_seen_in_one_call(model: nn.Sequential) -> None:
    x = torch.randn(8, 4)
    out, pairs = watched(model, lambda: model(x))
    assert [(pair.layer, pair.norm) for pair in pairs] == [(model[0], model[1])]
    assert out.shape == (8, 2) and out.requires_grad
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_channels_before_features_are_no_pair() -> None:
    """A linear layer's bias is one for each feature, and this norm takes the mean of each channel."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    assert watched(model, lambda: model(torch.randn(8, 6, 4)))[1] == []


def test_the_running_mean_has_the_bias_in_it(model: nn.Sequential) -> None:
    x, (layer, norm) = torch.randn(8, 4), model[:2]
    free = BiasFree([Pair(layer, norm)])
    expected = 0.1 * layer(x).mean(0)
    free.call(lambda: model(x)).sum().backward()
    torch.testing.assert_close(norm.running_mean, expected.detach())
    norm.eval()
    torch.testing.assert_close(free.call(lambda: model(x)), model(x))
    torch.testing.assert_close(norm.running_mean, expected.detach())


def test_the_bias_gets_zeros_and_decays(model: nn.Sequential) -> None:
    layer, norm = model[:2]
    free = BiasFree([Pair(layer, norm)])
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, weight_decay=0.5)
    before = layer.bias.detach().clone()
    free.give_gradients()
    assert layer.bias.grad is None, "no backward went through the layer"
    free.call(lambda: model(torch.randn(8, 4))).sum().backward()
    free.give_gradients()
    optimizer.step()
    torch.testing.assert_close(layer.bias.detach(), before * 0.95)
    layer.bias.grad.add_(1.0)  # by the script, in place
    optimizer.zero_grad()
    free.call(lambda: model(torch.randn(8, 4))).sum().backward()
    free.give_gradients()
    assert (layer.bias.grad == 0).all()


def test_a_call_that_raises_or_is_nested_leaves_the_bias_in_its_place(model: nn.Sequential) -> None:
    layer, norm = model[:2]
    bias, free = layer.bias, BiasFree([Pair(layer, norm)])
    with pytest.raises(RuntimeError):
        free.call(lambda: model(torch.randn(8, 5)))
    assert layer.bias is bias and (norm.running_mean == 0).all()
    x = torch.randn(8, 4)
    expected = 0.1 * layer(x).mean(0)
    free.call(lambda: BiasFree(free.pairs).call(lambda: model(x)))
    assert layer.bias is bias
    torch.testing.assert_close(norm.running_mean, expected.detach())


@pytest.mark.parametrize("allow_unused", [True, False])
def test_gradients_that_are_asked_for(model: nn.Sequential, allow_unused: bool) -> None:
    """Zeros, as in backward; what took no part in the pass has none, and raises as ever."""
    x, other = torch.randn(8, 4), nn.Linear(4, 6)
    free = BiasFree([Pair(*model[:2]), Pair(other, nn.BatchNorm1d(6))])

    def asked(inputs):
        loss = free.call(lambda: model(x)).square().sum()
        return free.gradients(torch.autograd.grad, loss, inputs, None, True, allow_unused=allow_unused)

    weights = list(model.parameters())
    expected = torch.autograd.grad(model(x).square().sum(), weights)
    found = asked(weights)
    assert isinstance(found, tuple)
    for one, gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(one, gradient, rtol=1e-4, atol=1e-4)
    if allow_unused:
        assert asked([other.weight, other.bias, model[0].bias])[:2] == (None, None)
    else:
        with pytest.raises(RuntimeError, match="at index 1 appears to not have been used"):
            asked([weights[0], other.weight, other.bias])
