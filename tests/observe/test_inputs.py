"""What is told of the inputs of a module against inputs that are known."""

from __future__ import annotations

import gc
import math
import warnings
import weakref

import pytest
import torch
from torch import nn

from hotlap.observe.inputs import Inputs
from hotlap.observe.scrutiny_facts import InputFacts


class Net(nn.Module):
    pass


def fed(*calls, look: bool = False) -> dict[str, InputFacts]:
    """Every call is (args, kwargs)."""
    inputs, root = Inputs(), Net()
    for args, kwargs in calls:
        (inputs.look if look else inputs.saw)(root, args, kwargs)
    facts = inputs.facts()
    assert all(fact.root == "Net" for fact in facts)
    return {fact.name: fact for fact in facts}


def test_shapes_are_told_apart_and_kept_in_order() -> None:
    batches = [torch.zeros(size, 3) for size in (4, 4, 4, 2, 4, 4, 1, 2)]
    fact = fed(*(((batch,), {}) for batch in batches))["0"]
    assert fact.shapes == [[4, 3], [2, 3], [1, 3]] and fact.shapes_seen == 3
    assert fact.dtype == "float32" and fact.mean == []


def test_many_shapes_are_counted_but_not_listed() -> None:
    fact = fed(*(((torch.zeros(1, n),), {}) for n in range(1, 1101)))["0"]
    assert len(fact.shapes) == 8 and fact.shapes_seen == 1000


def test_names_of_positions_keywords_and_one_level_inside() -> None:
    x, ids = torch.zeros(2, 3), torch.zeros(2, 5, dtype=torch.int64)
    calls = [((x, {"image": x, "more": [x]}, [x, None, ids]), {"mask": ids, "label": (ids,), "flag": True})] * 3
    facts = fed(*calls)
    assert list(facts) == ["0", "1.image", "2.0", "2.2", "mask", "label.0"]
    assert facts["2.2"].dtype == "int64" and facts["2.2"].shapes == [[2, 5]]


def test_a_change_inside_a_batch_or_by_keyword_is_seen() -> None:
    def calls(*sizes):
        return [(({"image": torch.zeros(n, 3)}, [torch.zeros(n)]), {"mask": torch.zeros(n, 1)}) for n in sizes]

    facts = fed(*calls(4, 4, 4, 2))
    assert [facts[name].shapes_seen for name in ("0.image", "1.0", "mask")] == [2, 2, 2]
    x = torch.zeros(2, 3)
    assert list(fed(((), {"a": x}), ((), {"a": x}), ((), {"b": x}))) == ["a", "b"]
    assert list(fed((({"a": x},), {}), (({"a": x},), {}), (({"b": x},), {}))) == ["0.a", "0.b"]


def test_mean_and_spread_by_channel_over_several_looks() -> None:
    images = [torch.randn(n, 3, 5, 5) * torch.tensor([1.0, 2, 3]).view(3, 1, 1) + 7 for n in (4, 2)]
    fact = fed(*(((image,), {}) for image in images), look=True)["0"]
    joined = torch.cat(images).transpose(0, 1).flatten(1).double()
    assert fact.mean == pytest.approx(joined.mean(1).tolist(), rel=1e-5)
    assert fact.spread == pytest.approx(joined.std(1, correction=0).tolist(), rel=1e-5)
    assert fact.finite and fact.shapes == [[4, 3, 5, 5], [2, 3, 5, 5]]


def test_rows_are_taken_together_and_halves_in_single_precision() -> None:
    rows = (torch.randn(64, 300) + 100).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # of the script's
        fact = fed(((rows,), {}), look=True)["0"]
    assert fact.mean == pytest.approx([rows.double().mean().item()], rel=1e-5)
    assert fact.spread == pytest.approx([rows.double().std(correction=0).item()], rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite(bad) -> None:
    rows = torch.zeros(4, 2)
    rows[1, 1] = bad
    fact = fed(((torch.ones(4, 2),), {}), ((rows,), {}), look=True)["0"]
    assert fact.finite is False and (fact.mean, fact.spread) == ([1.0], [0.0])  # of the batch that can be read
    assert fed(((rows,), {}), look=True)["0"].mean == []


def test_values_too_large_for_their_squares_are_still_finite() -> None:
    fact = fed(((torch.tensor([[3e38, -3e38]]),), {}), look=True)["0"]
    assert fact.finite and (fact.mean, fact.spread) == ([], [])


class Graph:
    """As graph libraries have them: a batch that is no tensor and answers to anything."""

    def __getattr__(self, name):
        raise RuntimeError(name)


class Sub(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        raise RuntimeError("not to be asked")


def odd_inputs() -> list:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
        rows = torch.ones(2, 2).to_sparse_csr()
    return [
        None,
        Graph(),
        nested,
        quantised,
        torch.ones(2, 2).to_sparse(),
        rows,
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2, device="meta"),
        torch.empty(0, 3),
        torch.ones(2).as_subclass(Sub),
        torch.ones(2, dtype=torch.int8),
        {1: None, Graph(): [torch.ones(1)]},
        [[torch.ones(1)]],
        "text",
        print,
    ]


def test_odd_inputs_do_no_harm_and_say_nothing_of_values() -> None:
    for odd in odd_inputs():
        facts = fed(((odd,), {}), ((odd,), {"x": odd}), ((odd,), {"x": odd}), look=True)
        assert all(fact.mean == [] and fact.finite for fact in facts.values())
    subs = [((torch.ones(n).as_subclass(Sub),), {}) for n in (2, 2, 3)]
    assert fed(*subs)["0"].shapes == [[2], [3]]
    assert fed(((), {}), look=True) == {}


def test_an_odd_input_does_not_hide_a_plain_one() -> None:
    for odd in odd_inputs():
        fact = fed(((odd, torch.full((2, 2), 3.0)), {}), look=True)["1"]
        assert fact.mean == [3.0] and fact.shapes == [[2, 2]]


def test_neither_a_root_nor_a_batch_is_kept() -> None:
    inputs, root, batch = Inputs(), Net(), torch.ones(2, 3, 4)
    inputs.look(root, ({"x": batch},), {})
    gone = weakref.ref(root), weakref.ref(batch)
    gc.disable()
    try:
        del root, batch
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()
    (fact,) = inputs.facts(lambda root: "asked")  # there is no one to ask
    assert fact.root == "Net" and fact.mean == [1.0, 1.0, 1.0]


def test_roots_are_told_apart_and_named_by_the_caller() -> None:
    inputs, one, two = Inputs(), Net(), nn.Identity()
    inputs.saw(one, (torch.ones(1),), {})
    inputs.saw(two, (torch.ones(2),), {})
    facts = inputs.facts({one: "one", two: "two"}.__getitem__)
    assert [(fact.root, fact.shapes) for fact in facts] == [("one", [[1]]), ("two", [[2]])]


def test_a_root_in_the_place_of_a_dead_one_is_another() -> None:
    inputs, one, two = Inputs(), Net(), nn.Identity()
    inputs.saw(one, (torch.ones(1),), {})
    inputs._roots[id(two)] = inputs._roots.pop(id(one))  # as when memory is used again
    inputs.saw(two, (torch.ones(2),), {})
    assert [(fact.root, fact.shapes) for fact in inputs.facts()] == [("Net", [[1]]), ("Identity", [[2]])]


def test_looking_moves_no_random_generator_and_leaves_no_graph() -> None:
    before, batch = torch.get_rng_state(), torch.ones(2, 3, 4, requires_grad=True)
    inputs, root = Inputs(), Net()
    inputs.look(root, (batch,), {})
    assert torch.equal(before, torch.get_rng_state())
    assert not any(part.requires_grad for row in inputs._roots[id(root)].fed["0"].moments for part in row[1:])
    with torch.device("meta"):  # a mode of the script's
        inputs.look(root, (batch,), {})
    assert inputs.facts()[0].mean == [1.0, 1.0, 1.0]
