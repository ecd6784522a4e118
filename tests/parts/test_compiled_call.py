"""A module's call, compiled: the same numbers, nothing kept alive, other shapes let through."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from hotlap.parts.compiled_call import CompiledCall, Gradients, _parameters_in, is_compilers


def eager(function, mode=None, dynamic=None):
    """Stands for torch.compile with its backend left out: dynamo's part is what is tested here."""
    return torch._dynamo.optimize("eager", dynamic=dynamic)(function)


@pytest.fixture(autouse=True)
def without_inductor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "compile", eager)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_built_in_container_is_compiled_and_gives_the_same() -> None:
    """`module.compile()` silently compiles nothing where the root is a class of torch's own."""
    torch._dynamo.utils.counters.clear()
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(3, 4)
    call = CompiledCall()
    assert torch.equal(call(model, (x,), {}), model(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert call.has_run


def test_the_module_may_go() -> None:
    model, call = nn.Linear(4, 2), CompiledCall()
    call(model, (torch.randn(3, 4),), {})
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_each_module_has_its_own_variants() -> None:
    """Dynamo gives up after eight for one piece of code: a tenth model must still be compiled."""
    torch._dynamo.utils.counters.clear()
    for width in range(1, 13):
        CompiledCall()(nn.Linear(width, 2), (torch.randn(3, width),), {})
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 12


def test_with_graphs_another_shape_runs_as_it_is() -> None:
    torch._dynamo.utils.counters.clear()
    model, call = nn.Linear(4, 2), CompiledCall("reduce-overhead")
    for size in (8, 8, 5, 8):
        x = torch.randn(size, 4)
        assert torch.equal(call(model, (x,), {}), model(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_with_graphs_the_output_is_the_callers_own() -> None:
    class Same(nn.Module):
        def forward(self, x):
            return {"out": x, "more": [x]}

    x = torch.randn(3)
    out = CompiledCall("reduce-overhead")(Same(), (x,), {})
    assert out["out"].data_ptr() != x.data_ptr() and out["more"][0].data_ptr() != x.data_ptr()


@pytest.mark.parametrize(("sizes", "graphs"), [((8,) * 15 + (5,), 1), ((8, 5, 6, 7) * 4, 2)], ids=["last", "changing"])
def test_without_graphs_rare_shapes_run_as_they_are_and_frequent_ones_share_a_variant(sizes, graphs: int) -> None:
    model, call = nn.Linear(4, 2), CompiledCall()
    for size in sizes:
        x = torch.randn(size, 4)
        assert torch.equal(call(model, (x,), {}), model(x))
    assert call.graphs == graphs and call.pieces == 1


def test_calls_that_others_replay_count() -> None:
    """A last batch of every epoch is as rare as it is, also where all other steps never come here."""
    model, epochs = nn.Linear(4, 2), [0]
    call = CompiledCall(steps=lambda: 391 * epochs[0])
    call(model, (torch.randn(3, 4),), {})
    for _ in range(9):
        epochs[0] += 1
        call(model, (torch.randn(2, 4),), {})
    assert call.graphs == 1


def test_with_graphs_another_shape_that_stays_is_recorded() -> None:
    model, call = nn.Linear(4, 2), CompiledCall("reduce-overhead")
    for size in (8, *(5, 6) * 9, *(7,) * 8):
        call(model, (torch.randn(size, 4),), {})
    assert call.graphs == 2


def test_modules_that_are_built_alike_share_one_graph() -> None:
    call, x = CompiledCall(), torch.randn(3, 4)
    models = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(12)]
    for model in models:
        assert torch.equal(call(model, (x,), {}), model(x))
    assert call.graphs == 1


def test_whose_error() -> None:
    assert is_compilers(torch._dynamo.exc.Unsupported("this"))
    assert not is_compilers(ValueError("that"))


def test_with_graphs_gradients_that_wait_are_moved_away() -> None:
    """Before the next forward of whatever module: all graphs share one piece of memory. Others stay as they are."""
    one, other, x = nn.Linear(4, 2), nn.Linear(4, 2), torch.randn(3, 4)
    calls = {module: CompiledCall("reduce-overhead") for module in (one, other)}
    calls[one](one, (x,), {}).sum().backward()
    first, values = one.weight.grad, one.weight.grad.clone()
    calls[other](other, (x,), {})
    second = one.weight.grad
    assert second is not first and torch.equal(second, values)
    calls[one](one, (x,), {}).sum().backward()
    assert one.weight.grad is second and torch.equal(second, 2 * values)
    one.zero_grad()
    calls[one](one, (x,), {})
    assert one.weight.grad is None


def test_without_graphs_gradients_stay_where_they_are() -> None:
    model, call, x = nn.Linear(4, 2), CompiledCall(), torch.randn(3, 4)
    call(model, (x,), {}).sum().backward()
    first = model.weight.grad
    call(model, (x,), {})
    assert model.weight.grad is first


def test_gradients_that_last_are_moved_right_after_the_update() -> None:
    """A loop that clears them after the forward, as many do, and one that clears them before, for which they are moved
    for nothing, once."""
    model, call, kept = nn.Linear(4, 2), CompiledCall("reduce-overhead"), Gradients()
    moved: list[bool] = []

    def step(clears_late: bool) -> None:
        if not clears_late:
            model.zero_grad()
        kept.keep()
        out = call(model, (torch.randn(3, 4),), {})
        if clears_late:
            model.zero_grad()
        out.sum().backward()
        kept.written(model)
        before, values = model.weight.grad.data_ptr(), model.weight.grad.clone()
        kept.keep_early()
        moved.append(model.weight.grad.data_ptr() != before)
        assert torch.equal(model.weight.grad, values)

    for clears_late in (True, True, True, False, False, False):
        step(clears_late)
    assert moved == [False, True, True, False, False, False]


def test_gradients_that_the_script_holds_are_cleared_by_what_it_holds() -> None:
    """A loop that takes them before the update and clears those after it."""
    model, kept = nn.Linear(4, 2), Gradients()
    for _ in range(3):
        kept.keep()
        model(torch.randn(3, 4)).sum().backward()
        kept.written(model)
        held = [parameter.grad for parameter in model.parameters()]
        kept.keep_early()
        torch._foreach_zero_(held)
        assert not model.weight.grad.any()


def test_all_parameters_are_found_once() -> None:
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.Sequential(shared, nn.Linear(3, 3, bias=False)), nn.BatchNorm1d(3, affine=False))
    model.register_module("none", None)
    found = _parameters_in([model, shared])
    assert {id(one) for one in found} == {id(one) for one in model.parameters()} and len(found) == 3
