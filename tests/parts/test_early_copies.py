"""A tensor that was copied early is what it was, until it is moved: then the copy is there, once, or not at all."""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import os
import pickle
import weakref
from collections import OrderedDict, namedtuple

import pytest
import torch
from clone_copier import CloneCopier
from torch.nn.utils.rnn import pack_sequence
from waiting import PATIENCE_SECONDS

from hotlap.parts.cuda_copier import are_too_many, pinned
from hotlap.parts.early_copies import copy_early, is_plain, tensors_in, wish_of

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass(slots=True)
class Slotted:
    x: torch.Tensor


class Store:
    def __init__(self, **values) -> None:
        self.mapping = values


class Graphs:
    """As graph libraries pack them: an object that holds a store, which holds a dict."""

    def __init__(self, **values) -> None:
        self.store = Store(**values)


@pytest.fixture
def copier() -> CloneCopier:
    return CloneCopier()


def early(copier: CloneCopier, values=(1.0, 2.0)) -> torch.Tensor:
    tensor = torch.tensor(values)
    copy_early([tensor], copier)
    return tensor


CALLS = {
    "device": lambda x: x.to("meta"),
    "keyword": lambda x: x.to(device=torch.device("meta"), non_blocking=True),
    "same dtype": lambda x: x.to("meta", torch.float32),
    "copy": lambda x: x.to("meta", copy=True),
    "layout kept": lambda x: x.to("meta", memory_format=torch.preserve_format),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_early_copy_is_handed_out_once(copier: CloneCopier, call) -> None:
    tensor = early(copier)
    moved = call(tensor)
    assert moved is copier.copied[0] and moved.tolist() == [1.0, 2.0]
    assert vars(tensor) == {}
    again = call(tensor)
    assert again is not moved and again.is_meta, "the script may write into the first"


def test_a_tensor_that_is_gone_before_it_is_moved(copier: CloneCopier) -> None:
    batch = {"x": early(copier), "y": early(copier), "z": early(copier)}
    moved = batch.pop("x").to("meta")  # outside of `assert`, which would hold it
    assert moved is copier.copied[0]
    view = batch["y"][:1]
    view.zero_()
    moved = batch.pop("y").to("meta")
    assert moved.is_meta, "a write through any view is still seen"
    moved = batch.pop("z").to(torch.float64)
    assert moved.tolist() == [1.0, 2.0]


OTHERS = {
    "another dtype": lambda x: x.to("meta", torch.float64),
    "only a dtype": lambda x: x.to(torch.float64),
    "another layout": lambda x: x.reshape(1, 1, 1, 2).to("meta", memory_format=torch.channels_last),
    "the same device": lambda x: x.to("cpu"),
    "like another": lambda x: x.to(torch.zeros(1, dtype=torch.float64, device="meta")),
    "written to": lambda x: x.add_(1).to("meta"),
    "a view of it written to": lambda x: (x[:1].zero_(), x.to("meta"))[1],
    "with a gradient": lambda x: x.requires_grad_().to("meta"),
}


@pytest.mark.parametrize("call", OTHERS.values(), ids=OTHERS)
def test_what_asks_for_more_is_torchs(copier: CloneCopier, call) -> None:
    expected = call(torch.tensor([1.0, 2.0]))
    found = call(early(copier))
    assert copier.handed == []
    assert (found.device, found.dtype, found.requires_grad) == (expected.device, expected.dtype, expected.requires_grad)
    assert found.stride() == expected.stride()


def test_errors_are_torchs(copier: CloneCopier) -> None:
    for wrong in (("nowhere",), ("meta", "meta")):
        with pytest.raises((TypeError, RuntimeError)) as expected:
            torch.zeros(2).to(*wrong)
        with pytest.raises(type(expected.value)) as found:
            early(copier).to(*wrong)
        assert str(found.value) == str(expected.value)


def test_calls_of_cuda_are_understood() -> None:
    tensor = torch.zeros(2)
    one = torch.device("cuda", 1)
    for args, kwargs in (((1,), {}), (("cuda:1",), {}), ((), {"device": one}), ((one, True), {})):
        wish = wish_of(tensor, "cuda", args, kwargs)
        assert wish is not None and wish.device == one and wish.blocking is (len(args) < 2)
    assert wish_of(tensor, "cuda", (1,), {"memory_format": torch.channels_last}) is None
    assert wish_of(tensor, "cuda", (1, True, None, 4), {}) is None


def test_pickles_and_copies_know_nothing(copier: CloneCopier) -> None:
    for through in (
        lambda x: pickle.loads(pickle.dumps(x)),
        copy.deepcopy,
        copy.copy,
        lambda x: copy.deepcopy({"x": x})["x"],
    ):
        twin = through(early(copier))
        assert vars(twin) == {} and twin.tolist() == [1.0, 2.0] and twin.to("meta").is_meta
    file = io.BytesIO()
    torch.save({"x": early(copier)}, file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["x"].tolist() == [1.0, 2.0]


def test_copies_die_with_their_tensor(copier: CloneCopier) -> None:
    tensor = early(copier)
    made, owner = weakref.ref(copier.copied.pop()), weakref.ref(tensor)
    gc.disable()
    try:
        del tensor
        assert owner() is None and made() is None, "no cycle: nothing waits for the collector"
    finally:
        gc.enable()


def test_under_a_mode_that_sees_every_operation_torch_moves(copier: CloneCopier) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    tensor = early(copier)
    with FlopCounterMode(display=False):
        assert tensor.to("meta").is_meta


def test_tensors_are_found_in_any_structure() -> None:
    a, b, c, d = (torch.full((1,), float(number)) for number in range(4))
    batches = [
        [a, b, c, d],
        {"a": a, "rest": [b, (c, {"d": d})]},
        (Pair(a, b), OrderedDict(c=c, d=d)),
        [Slotted(a), Graphs(b=b, c=c), "text", 3, None, d],
        Graphs(x=[a, b], y={"c": c}, z=d),
    ]
    for batch in batches:
        assert [int(one) for one in tensors_in(batch)] == [0, 1, 2, 3]
    assert [int(one) for one in tensors_in([a, a, b])] == [0, 1], "each once"
    packed = pack_sequence([torch.ones(2), torch.ones(1)])
    assert next(tensors_in(packed)) is packed.data
    loop: list = [a]
    loop.append(loop)
    assert len(list(tensors_in(loop))) == 1
    assert list(tensors_in(["word"] * 100_000)) == []


def test_only_plain_tensors_are_copied() -> None:
    class Special(torch.Tensor):
        pass

    plain = [torch.zeros(2), torch.zeros(4, 4).t(), torch.zeros(4)[::2], torch.tensor(1)]
    other = [
        torch.zeros(0),
        torch.zeros(2, requires_grad=True),
        torch.zeros(2, device="meta"),
        torch.eye(2).to_sparse(),
    ]
    other += [torch.zeros(2).as_subclass(Special), torch.nn.Parameter(torch.zeros(2)), torch.ones(2).cfloat().conj()]
    with torch.inference_mode():
        other.append(torch.zeros(2))
    assert all(map(is_plain, plain)) and not any(map(is_plain, other))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.uint8]
)
def test_what_is_pinned_has_the_same_values_and_strides(dtype: torch.dtype) -> None:
    whole = (torch.arange(48) % 2).to(dtype)
    image = whole.reshape(2, 4, 3, 2)
    for tensor in (whole, image, image.contiguous(memory_format=torch.channels_last), whole[8:], whole.view(6, 8).t()):
        twin = pinned(tensor, pin=False)
        assert twin is not tensor and torch.equal(twin, tensor) and twin.stride() == tensor.stride()
    for gaps in (whole[::2], image[:, :2], whole[:1].expand(4)):
        assert pinned(gaps, pin=False) is gaps, "its copy would have other strides than torch's"
    assert pinned(torch.tensor(1, dtype=dtype), pin=False).item() == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_fork_while_a_copy_begins(copier: CloneCopier) -> None:
    import threading

    inside, go_on, forked = threading.Event(), threading.Event(), threading.Event()

    class Slow(CloneCopier):
        def copy(self, tensors):
            inside.set()
            go_on.wait()
            return super().copy(tensors)

    def fork() -> None:
        child = os.fork()
        if not child:
            os._exit(0)
        forked.set()
        os.waitpid(child, 0)

    copying = threading.Thread(target=early, args=(Slow(),))
    copying.start()
    inside.wait()
    forking = threading.Thread(target=fork)
    forking.start()
    assert not forked.wait(0.2)
    go_on.set()
    assert forked.wait(PATIENCE_SECONDS)
    copying.join()
    forking.join()


def test_a_host_far_ahead_is_held_up_by_large_batches_and_by_very_many() -> None:
    assert not are_too_many([1 << 30] * 4) and are_too_many([1 << 30] * 5)
    assert not are_too_many([1 << 17] * 64) and are_too_many([1 << 17] * 65)
