"""Attention written by hand in many ways, traced by dynamo: what becomes of it gives the same, or it is left alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hotlap.parts.attention_in_graphs import Fused, fuse_attention

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 8, 16
INF = float("inf")
TRIANGLE = torch.ones(LENGTH, LENGTH).tril()
PADDING = torch.tensor([[[[True] * LENGTH]], [[[True] * 5 + [False] * 3]]])  # kept
BIAS = torch.linspace(-1, 1, HEADS * LENGTH * LENGTH).view(1, HEADS, LENGTH, LENGTH)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(*, flat: bool = False, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    size = (BATCH * HEADS, LENGTH, WIDTH) if flat else (BATCH, HEADS, LENGTH, WIDTH)
    return [torch.randn(size, generator=generator).to(dtype).requires_grad_() for _ in range(3)]


def traced(function: Callable[..., Any], *given: Any) -> tuple[Any, Fused]:
    """What the changed graph gives, and what was changed in it."""
    found: list[Fused] = []

    def backend(graph: Any, _: Any) -> Any:
        found.append(fuse_attention(graph))
        return graph.forward

    out = torch.compile(function, backend=backend, dynamic=False)(*given)
    return out, found[0] if len(found) == 1 else Fused(left=["pieces"])


def outcome(run: Callable[..., Any], given: list[torch.Tensor]) -> list[torch.Tensor]:
    out = run(*given)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return [out, *torch.autograd.grad((out * weights).sum(), given)]


def check_same(function: Callable[..., Any], given: list[torch.Tensor], count: int = 1) -> None:
    expected, found = outcome(function, given), []

    def ours(*tensors: torch.Tensor) -> torch.Tensor:
        out, fused = traced(function, *tensors)
        found.append(fused)
        return out

    actual = outcome(ours, given)
    assert found[0].count == count, found[0]
    assert actual[0].is_contiguous() or actual[0].stride() == expected[0].stride()
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


FORMS: dict[str, Callable[..., torch.Tensor]] = {}


def form(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    FORMS[function.__name__] = function
    return function


@form
def plain(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1), dim=-1) @ v


@form
def scaled_and_causal(q, k, v):
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    scores = scores.masked_fill(TRIANGLE[:LENGTH, :LENGTH] == 0, -INF)
    return torch.matmul(torch.softmax(scores, -1), v)


@form
def divided_and_padded(q, k, v):
    scores = torch.matmul(q, k.mT).div(4.0)
    return scores.masked_fill(PADDING == 0, -1e9).softmax(dim=3).matmul(v)


@form
def in_place(q, k, v):
    scores = q @ k.transpose(2, 3)
    scores /= 4
    scores.masked_fill_(TRIANGLE == 0, -1e10)
    scores.mul_(1.5)
    return nn.Softmax(dim=-1)(scores) @ v


@form
def a_mask_is_added(q, k, v):
    return (BIAS + (q * 0.25) @ k.transpose(-1, -2)).softmax(-1) @ v


@form
def a_mask_is_subtracted_and_all_scaled(q, k, v):
    return ((q @ k.transpose(-1, -2) - 1e4 * (1 - TRIANGLE)) / 4 + BIAS[:, 0]).softmax(-1) @ v


@form
def masks_of_both_kinds(q, k, v):
    scores = q @ k.transpose(-1, -2) + BIAS
    scores = scores.masked_fill(~PADDING, torch.finfo(torch.float32).min).masked_fill(TRIANGLE == 0, -INF)
    return scores.softmax(-1) @ v


@form
def chosen(q, k, v):
    low = torch.full([], torch.finfo(torch.float32).min)
    scores = torch.where(TRIANGLE.bool(), q @ k.transpose(-1, -2), low)
    return torch.where(PADDING, scores, -INF).softmax(-1) @ v


@form
def chosen_the_other_way(q, k, v):
    return torch.where(TRIANGLE == 0, -INF, q @ k.transpose(-1, -2)).softmax(-1) @ v


@form
def a_mask_of_one_row(q, k, v):
    return (q @ k.transpose(-1, -2) + BIAS[0, 0, 0]).softmax(-1) @ v


@form
def a_scale_in_a_tensor(q, k, v):
    scores = (q @ k.transpose(-1, -2) + BIAS) / torch.sqrt(torch.FloatTensor([WIDTH]))
    return scores.softmax(-1) @ v


@form
def einsum(q, k, v):
    weights = torch.einsum("b h i d, b h j d -> b h i j", q, k).softmax(-1)
    return torch.einsum("bhij,bhjd->bihd", weights, v)


@form
def einsum_of_other_layouts(q, k, v):
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    weights = (torch.einsum("blhd,bshd->bhls", [q, k]) * 0.25).softmax(-1)
    return torch.einsum("bhls,bshd->blhd", [weights, v])


@form
def keys_first(q, k, v):
    return torch.einsum("bhjd,bhid->bhij", k, q).softmax(-1) @ v


@form
def softmax_in_single_precision(q, k, v):
    return F.softmax(q @ k.transpose(-1, -2), dim=-1, dtype=torch.float32).to(q.dtype) @ v


@form
def channels_before_places(q, k, v):
    q, k, v = (one.flatten(0, 1).transpose(1, 2) for one in (q, k, v))
    weights = torch.einsum("bct,bcs->bts", q * 0.5, k * 0.5)
    weights = torch.softmax(weights.float(), dim=-1).type(weights.dtype)
    return torch.einsum("bts,bcs->bct", weights, v)


@form
def values_before_weights(q, k, v):
    weights = torch.softmax(q @ k.mT, dim=-1)
    return v.transpose(-1, -2) @ weights.permute(0, 1, 3, 2)


@form
def values_before_weights_that_are_turned_twice(q, k, v):
    weights = torch.softmax(q @ k.mT, dim=-1).transpose(1, 2).swapaxes(-1, 1)
    return torch.einsum("bhjd,bjhi->bihd", v, weights)


@form
def another_width_of_values(q, k, v):
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v[..., :4]


@form
def fewer_queries(q, k, v):
    return (q[:, :, :3] @ k.transpose(-1, -2)).softmax(-1) @ v


@form
def heads_are_put_together(q, k, v):
    out = (q @ k.transpose(-1, -2)).softmax(-1) @ v
    return out.transpose(1, 2).contiguous().view(BATCH, LENGTH, HEADS * WIDTH)


@form
def what_comes_out_is_viewed(q, k, v):
    return ((q @ k.transpose(-1, -2)).softmax(-1) @ v).view(BATCH, -1)


@form
def what_comes_out_is_copied_and_viewed(q, k, v):
    return ((q @ k.transpose(-1, -2)).softmax(-1) @ v).clone().view(BATCH, -1)


@form
def what_comes_out_is_changed_in_place(q, k, v):
    out = (q @ k.transpose(-1, -2)).softmax(-1) @ v
    out += 1
    return out


@form
def what_comes_out_is_changed_through_a_view(q, k, v):
    out = ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).contiguous().view(BATCH, LENGTH, HEADS * WIDTH)
    out[:, 0] *= 2
    return out * 2


@pytest.mark.parametrize("function", FORMS.values(), ids=FORMS)
def test_it_is_found_and_gives_the_same(function: Callable[..., torch.Tensor]) -> None:
    check_same(function, inputs())


@pytest.mark.parametrize("mask", [None, TRIANGLE == 0, BIAS[0].repeat(BATCH, 1, 1)], ids=["none", "two", "three"])
def test_with_heads_and_batch_in_one_dimension(mask: Any) -> None:
    def flat(q, k, v):
        scores = torch.bmm(q, k.transpose(1, 2))
        if mask is not None:
            scores = scores.masked_fill(mask, -INF) if mask.dtype is torch.bool else scores + mask
        return torch.bmm(F.softmax(scores, dim=2), v).view(BATCH, HEADS, LENGTH, WIDTH)

    check_same(flat, inputs(flat=True))


def test_two_in_one_graph() -> None:
    check_same(lambda q, k, v: plain(q, k, v) + scaled_and_causal(q, k, plain(k, q, v)), inputs(), count=3)


def test_under_autocast_from_outside_and_within() -> None:
    def within(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return scaled_and_causal(q, k, v)

    def outside(function):
        def run(q, k, v):
            with torch.autocast("cpu", torch.bfloat16):
                return function(q, k, v)

        return run

    given = inputs()
    expected = scaled_and_causal(*given)
    for run in (lambda *all_: traced(within, *all_), outside(lambda *all_: traced(scaled_and_causal, *all_))):
        out, fused = run(*given)
        assert fused.count == 1 and out.dtype is torch.bfloat16
        torch.testing.assert_close(out.float(), expected, rtol=0.03, atol=0.03)


def changed_meanwhile(q, k, v):
    k = k.clone()
    scores = q @ k.transpose(-1, -2)
    k.zero_()
    return scores.softmax(-1) @ v + k


def weights_without_gradients(q, k, v):
    with torch.no_grad():
        weights = (q @ k.transpose(-1, -2)).softmax(-1)
    return weights @ v


def a_softmax_without_gradients(q, k, v):
    scores = q @ k.transpose(-1, -2)
    with torch.no_grad():
        weights = scores.softmax(-1)
    return weights @ v


def scores_outside_autocast(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            weights = (q @ k.transpose(-1, -2)).softmax(-1)
        return weights @ v


def a_mask_that_is_changed_later(q, k, v):
    mask = BIAS.clone()
    out = (q @ k.transpose(-1, -2) + mask).softmax(-1) @ v
    mask.zero_()
    return out


def queries_that_are_changed_later(q, k, v):
    q = q * 1
    out = (q @ k.transpose(-1, -2)).softmax(-1) @ v
    q.data.mul_(2)
    return out + q


def whole_numbers(q, k, v):
    return (q @ k.transpose(-1, -2)).softmax(-1).round().long().float() @ v


def given_by_name(q, k, v):
    return torch.matmul(input=torch.matmul(q, other=k.transpose(-1, -2)).softmax(-1), other=v)


def weights_are_given_back(q, k, v):
    weights = (q @ k.transpose(-1, -2)).softmax(-1)
    return (weights @ v, weights)


def scores_are_given_back(q, k, v):
    scores = q @ k.transpose(-1, -2)
    return (scores.softmax(-1) @ v, scores)


def not_along_the_keys(q, k, v):
    return (q @ k.transpose(-1, -2)).softmax(-2) @ v


def weights_of_heads(q, k, v):
    return ((q @ k.transpose(-1, -2)).softmax(-1) * BIAS) @ v


def a_number_that_matters(q, k, v):
    return (q @ k.transpose(-1, -2)).masked_fill(TRIANGLE == 0, -5.0).softmax(-1) @ v


def clamped(q, k, v):
    return (q @ k.transpose(-1, -2)).clamp(max=1).softmax(-1) @ v


def shared_keys(q, k, v):
    return (q @ k[:, :1].transpose(-1, -2)).softmax(-1) @ v


def values_first(q, k, v):
    return v.transpose(-1, -2) @ (q @ k.transpose(-1, -2)).softmax(-1)


def scaled_one_by_one(q, k, v):
    return (q @ k.transpose(-1, -2) * BIAS).softmax(-1) @ v


def a_mask_makes_it_larger(q, k, v):
    return (q[:1] @ k[:1].transpose(-1, -2) + BIAS.repeat(BATCH, 1, 1, 1)).softmax(-1) @ v


def turned_round_after_masking(q, k, v):
    return ((q @ k.transpose(-1, -2)).masked_fill(TRIANGLE == 0, INF) * -1).softmax(-1) @ v


def dropped_on_a_cpu(q, k, v):
    return F.dropout((q @ k.transpose(-1, -2)).softmax(-1), 0.1) @ v


def one_axis_of_weights(q, k, v):
    return torch.einsum("i,bhid->bhd", (q * k).sum((0, 1, 3)).softmax(-1), v)


def weights_for_pooling(q, k, v):
    return torch.einsum("bhi,bhid->bhd", (q * k).sum(-1).softmax(-1), v)


def a_classifier(q, k, v):
    return (q @ k.transpose(-1, -2)).softmax(-1).log() @ v


LEFT = [weights_without_gradients, a_softmax_without_gradients, scores_outside_autocast, a_mask_that_is_changed_later]
LEFT += [whole_numbers, given_by_name, changed_meanwhile, weights_are_given_back, scores_are_given_back]
LEFT += [not_along_the_keys, weights_of_heads, a_number_that_matters, clamped, shared_keys, values_first]
LEFT += [scaled_one_by_one, a_mask_makes_it_larger, turned_round_after_masking, dropped_on_a_cpu, a_classifier]
LEFT += [queries_that_are_changed_later, one_axis_of_weights, weights_for_pooling]


@pytest.mark.parametrize("function", LEFT, ids=lambda one: one.__name__)
def test_what_is_something_else_is_left_alone(function: Callable[..., Any]) -> None:
    given = inputs()
    torch.manual_seed(0)
    expected = function(*given)
    torch.manual_seed(0)
    out, fused = traced(function, *given)
    assert fused.count == 0
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


@pytest.mark.parametrize("low", [-1e4, -65504.0, -1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("mask", ["row", "all", "queries", "with another"])
def test_a_row_of_nothing_but_a_number_has_even_weights_and_no_gradient(low: float, mask: str) -> None:
    left_out = {
        "row": TRIANGLE.flip(0).triu(1) == 1,
        "all": torch.ones(LENGTH, LENGTH, dtype=torch.bool),
        "queries": ~PADDING.transpose(-1, -2),
        "with another": TRIANGLE == 1,
    }[mask]

    def run(q, k, v):
        scores = (q @ k.transpose(-1, -2)).masked_fill(left_out, low)
        if mask == "with another":
            scores = scores.masked_fill((TRIANGLE + torch.eye(LENGTH).roll(1, 1)) == 0, -INF)
        return scores.softmax(-1) @ v

    check_same(run, inputs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("low", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_a_row_to_which_a_low_number_is_added_has_the_weights_of_its_scores(low: float, dtype: torch.dtype) -> None:
    added = torch.where(TRIANGLE.roll(-1, 0) == 1, 0.0, low)
    added[3] = low

    def within(function: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            return function(q / 4, k, v).float()

    def expected(q, k, v):
        mask = added.clone()
        mask[3] = 0
        return (q @ k.transpose(-1, -2) + mask).softmax(-1) @ v

    def run(q, k, v):
        return traced(lambda q, k, v: (q @ k.transpose(-1, -2) + added).softmax(-1) @ v, q, k, v)[0]

    given = inputs()
    near = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 0.05, "atol": 0.05}
    ours, plain = (outcome(lambda *all_, one=one: within(one, *all_), given) for one in (run, expected))
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, **near)


def test_a_mask_may_be_other_in_the_next_call() -> None:
    """It stays a tensor: nothing rests on what it held when the graph was made."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", TRIANGLE.clone())

        def forward(self, q, k, v):
            return (q @ k.transpose(-1, -2)).masked_fill(self.mask == 0, -INF).softmax(-1) @ v

    module, given, counts = Masked(), inputs(), []

    def backend(graph: Any, _: Any) -> Any:
        counts.append(fuse_attention(graph).count)
        return graph.forward

    compiled = torch.compile(module, backend=backend)
    for mask in (TRIANGLE, TRIANGLE.flip(0, 1), torch.eye(LENGTH)):
        module.mask.data.copy_(mask)
        torch.testing.assert_close(compiled(*given), module(*given), rtol=1e-4, atol=1e-5)
    assert counts == [1]


@pytest.mark.parametrize("wanted", [False, True])
def test_torchs_own_module_makes_no_weights_that_nobody_wants(wanted: bool) -> None:
    module = nn.MultiheadAttention(24, 3, batch_first=True)
    x = torch.randn(2, 5, 24)

    def run(x):
        out, weights = module(x, x, x)
        return out + weights.sum() if wanted else out

    out, fused = traced(run, x)
    assert fused.count == (not wanted)
    torch.testing.assert_close(out, run(x), rtol=1e-4, atol=1e-5)


def test_dropout_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share, and that it is off in evaluation; on a GPU, where the fused kernel has it."""
    monkeypatch.setattr("hotlap.parts.attention_in_graphs.NO_DROPOUT", ())
    dropout = nn.Dropout(0.25)

    def run(q, k, v):
        return dropout((q @ k.transpose(-1, -2)).softmax(-1)) @ v

    q, k, v = inputs()
    many, ones = q.repeat(200, 1, 1, 1).detach() * 0, torch.ones(400, HEADS, LENGTH, WIDTH)
    out, fused = traced(run, many, many, ones)
    assert fused.count == 1
    kept = out * LENGTH * 0.75  # how many of the weights, which are all alike
    assert abs(kept.mean().item() / LENGTH - 0.75) < 0.02 and kept.std() > 0.5
    dropout.eval()
    check_same(run, [q, k, v])
