"""One recording of a pass: where it reads its inputs, what it gives, and whether that is what the pass itself gives."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import _unsafe_preserve_version_counter
from torch.utils._pytree import tree_flatten, tree_map

from hotlap.parts.added_gradients import Added, note_recorded
from hotlap.parts.graph_recorder import Moment, Recorder
from hotlap.parts.pass_grounds import Grounds
from hotlap.parts.pass_look import noting_backward, tensors
from hotlap.parts.pass_stand_ins import taken
from hotlap.parts.reach import Unfit, is_weight
from hotlap.parts.waiting_tensor import lying_on

NUMBERS = bool | int | float | str | None


@dataclass(eq=False)
class Recording:
    replay: Callable[[], object]
    inputs: list[torch.Tensor]  # where the graph reads them,
    has_stand_ins: bool  # whether some of them stand for others,
    owed: list[torch.Tensor | None]  # and where it puts the gradients of those
    kept: Sequence[Any]  # the inputs that are no tensors, so that no other object gets their identity
    grounds: Grounds
    results: Any
    loss: torch.Tensor
    weights: list[torch.Tensor]  # that get a new gradient
    grads: list[torch.Tensor]
    cleared: list[torch.Tensor]  # the weights whose gradients it only drops
    bare: list[torch.Tensor]  # those that had none when it was recorded, whether they get one or not
    added: Added
    moment: Moment | None  # when the results are there, before it goes back
    proven: int = 0

    def __post_init__(self) -> None:
        self._alone: dict[bool, list[int]] = {}  # who has each gradient while the script keeps none; weights do as well
        note_recorded(self.grads)
        self._addresses = list(map(_address, self.grads))
        self._storages = [grad.untyped_storage() for grad in self.grads]
        self._stored_at = [storage._cdata for storage in self._storages]
        self.given = tensors(self.results)  # what copies are made of
        self._updated_at = {weight.untyped_storage().data_ptr() for weight in self.weights}

    @property
    def begins_alike(self) -> bool:
        """Whether gradients are there, and are not, as they were when it was recorded. What it drops may be either."""
        is_where_it_was = list(map(_address, self.grads)) == self._addresses  # `grad.data = ...` moves it
        return is_where_it_was and all(weight.grad is None for weight in self.bare) and self.added.are_there

    @property
    def is_held(self) -> bool:
        """Whether the script has kept a gradient that a replay, also of another recording, would overwrite."""
        holders = self._holders()
        alone = self._alone.setdefault(False, holders)  # the first time is before the script has met them
        attached = list(map(operator.is_, map(_grad, self.weights), self.grads))
        if all(attached):
            return any(map(operator.gt, holders, self._alone.get(True, alone)))
        rows = zip(attached, alone, self._alone.get(True, alone), strict=True)
        return any(map(operator.gt, holders, [row[1 + row[0]] for row in rows]))

    def updates(self, tensor: torch.Tensor) -> bool:
        """Whether it lies where a weight does, as `weight.data`: the update that follows changes it untold."""
        return type(tensor) is torch.Tensor and tensor.untyped_storage().data_ptr() in self._updated_at

    def play(self, inputs: list[torch.Tensor]) -> None:
        if self.has_stand_ins:
            inputs = [one.detach() for one in inputs]  # or each copy would hang on the one before
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(lying_on(own.device, given))
        self.replay()
        self._attach()
        if True not in self._alone:  # likewise
            self._alone[True] = self._holders()

    def hand_back(self, inputs: list[torch.Tensor]) -> None:
        """The gradients of inputs that stand for others, once it was played."""
        for given, grad in zip(inputs, self.owed, strict=True):
            if grad is not None:
                given.grad = grad.clone()

    def _attach(self) -> None:
        for weight, grad in zip(self.weights, self.grads, strict=True):
            if weight.grad is not grad:
                weight.grad = grad
        for weight in self.cleared:
            weight.grad = None

    def handed(self, early: bool) -> Any:
        """Copies of the results, for the script. Early, they are made while the replay still goes back."""
        if not early or self.moment is None:
            return copied(self.results)
        with self.moment.aside():
            made = copied(self.results)
        self.moment.spare(tensors(made))
        return made

    def played(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        self.play(inputs)
        return self.loss.clone()

    def compared(self, plain: Callable[[], Any], inputs: list[torch.Tensor]) -> tuple[Any, float, bool]:
        """What the pass itself gives, how far the graph is from it, and whether gradients had a say in that: where they
        overflow both ways, as a GradScaler lets them, nothing follows from it. Gradients, buffers and random numbers
        are left as the pass itself has left them."""
        device, known = self.loss.device, [*self.grounds.tensors, *self.added.grads()]
        before, losses = _State(known, device), list[Any]()
        with noting_backward(losses.append):
            out = plain()
        after, theirs = _State(known, device), [weight.grad for weight in self.weights]
        theirs_owed = [one.grad for one, grad in zip(inputs, self.owed, strict=True) if grad is not None]
        are_added = self.added.are_there  # or autograd has put new ones there
        before.put_back()
        self.play(inputs)
        early = _leaves(self.handed(early=True))  # before anything waits for the end of it
        replayed = _State(known, device)
        is_telling = not (_overflow([*losses, *theirs]) and _overflow([self.loss, *self.grads]))
        owed = [one for one in self.owed if one is not None]
        pairs = (theirs, self.grads), (losses, [self.loss]), (theirs_owed, owed)
        difference = max(_difference(*pair) for pair in pairs) if is_telling else 0.0
        difference = difference if are_added else math.inf
        results = _leaves(self.results)
        if _difference(early, results) > 0:
            self.moment = None  # going back changes them, and the script reads them afterwards
        ours = [*replayed.values, *results]
        for one, other in zip([*after.values, *_leaves(out)], ours, strict=True):
            difference = max(difference, _difference([one], [other]))
        after.put_back()
        for weight, grad in zip(self.weights, theirs, strict=True):
            weight.grad = grad
        return out, difference, is_telling

    def _holders(self) -> list[int]:
        """References to each gradient, and tensors that share its memory, such as `grad.detach()`."""
        shared = map(torch._C._storage_Use_Count, self._stored_at)
        return list(map(operator.add, map(sys.getrefcount, self.grads), shared))


_grad = operator.attrgetter("grad")
_address = torch.Tensor.data_ptr


def recording_of(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    leaves: Sequence[Any],
    recorder: Recorder,
    device: torch.device,
) -> Recording:
    """Nothing is computed by it, and gradients are again what they were."""
    grounds = Grounds(function, others(leaves))
    known = [tensor for tensor in grounds.tensors if is_weight(tensor)]  # frozen ones may be cleared as well
    weights = list(dict.fromkeys([*known, *grounds.updated]))
    before = [weight.grad for weight in weights]
    versions = [grad._version if grad is not None else 0 for grad in before]
    own = [_static(one, device) if isinstance(one, torch.Tensor) else one for one in leaves]
    fed, seen = _like(inputs, own), _Seen(recorder)
    try:
        with noting_backward(seen):
            replay = recorder.record(lambda: seen.keep(function(*map(taken, fed))), device)
        after = [weight.grad for weight in weights]
    finally:
        for weight, grad in zip(weights, before, strict=True):
            weight.grad = grad
    seen.judge()
    if not grounds.hold(function):
        raise Unfit(f"it leaves something behind: {grounds.why}")
    rows = list(zip(weights, before, after, strict=True))
    filled = [(weight, new) for weight, old, new in rows if new is not None and new is not old]
    kept = zip(rows, versions, strict=True)
    added = [weight for (weight, old, new), seen_at in kept if old is new is not None and old._version != seen_at]
    grads = [*(grad for _, grad in filled), *(weight.grad for weight in added)]
    if not grads or any(grad.layout != torch.strided for grad in grads):
        raise Unfit("gradients are sparse" if grads else "no weight gets a gradient from it")
    return Recording(
        replay,
        [one.detach() for one in tensors(own)],
        any(one.requires_grad for one in tensors(own)),
        [one.grad if one.requires_grad else None for one in tensors(own)],
        others(leaves),
        grounds,
        seen.results,
        seen.loss,
        [weight for weight, _ in filled],
        [grad for _, grad in filled],
        cleared=[weight for weight, old, new in rows if old is not None and new is None],
        bare=[weight for weight, old, _ in rows if old is None],
        added=Added(added),
        moment=seen.moment,
    )


class _Seen:
    """What a recording shows of itself while the function runs."""

    def __init__(self, recorder: Recorder) -> None:
        self._losses: list[Any] = []
        self._recorder = recorder
        self.results: Any = None
        self.moment: Moment | None = None

    def __call__(self, loss: Any) -> None:
        self.moment = self._recorder.moment()
        self._losses.append(loss)

    def keep(self, results: Any) -> Any:
        self.results = detached(results)
        return self.results

    def judge(self) -> None:
        if len(self._losses) != 1 or not isinstance(self._losses[0], torch.Tensor):
            raise Unfit("it does not go back just once")

    @property
    def loss(self) -> torch.Tensor:
        loss: torch.Tensor = self._losses[0].detach()
        return loss


class _State:
    """What a pass changes beside gradients: buffers, such as running statistics, and the device's generator. Not
    weights, of which frozen ones may fill the memory."""

    def __init__(self, known: list[torch.Tensor], device: torch.device) -> None:
        self._tensors = [one for one in dict.fromkeys(known) if not is_weight(one)]
        self.values = [one.detach().clone() for one in self._tensors]
        self._device = device
        self._random = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()

    def put_back(self) -> None:
        with torch.no_grad():
            for one, value in zip(self._tensors, self.values, strict=True):
                # as if nobody had been there: what was made before, outside of the pass, may still go back through it
                with _unsafe_preserve_version_counter(one):
                    one.copy_(value)
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(self._random, self._device)
        else:
            torch.set_rng_state(self._random)


def _static(given: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A place of ours on the device; a batch that the pass would move there itself is moved by copying it."""
    own = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=device)
    with torch.no_grad():
        own.copy_(lying_on(device, given))
    return own.requires_grad_(given.requires_grad)


def _like(inputs: Sequence[Any], leaves: Sequence[Any]) -> Any:
    following: Iterator[Any] = iter(leaves)
    return tree_map(lambda _: next(following), tuple(inputs))


def flat(inputs: Sequence[Any]) -> tuple[Sequence[Any], str]:
    """The leaves of the inputs, and how they hang together: nothing to say where they are plain, as they mostly are."""
    if all(isinstance(one, torch.Tensor | NUMBERS) for one in inputs):
        return inputs, ""
    leaves, shape = tree_flatten(tuple(inputs))
    return leaves, repr(shape)


def others(leaves: Sequence[Any]) -> list[Any]:
    return [one for one in leaves if not isinstance(one, torch.Tensor)]


def detached(results: Any) -> Any:
    return tree_map(lambda one: one.detach() if isinstance(one, torch.Tensor) else one, results)


def copied(results: Any) -> Any:
    if isinstance(results, torch.Tensor):
        return results.clone()
    if type(results) is tuple and all(isinstance(one, torch.Tensor) for one in results):
        return tuple(one.clone() for one in results)
    return tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, results)


def can_be_copied(results: Any) -> bool:
    return all(isinstance(leaf, torch.Tensor | NUMBERS) for leaf in tree_flatten(results)[0])


def _leaves(results: Any) -> list[Any]:
    return list(tree_flatten(results)[0])


def _fit(one: Any, other: Any) -> bool:
    """Whether two things can be compared at all: what is no tensor must be equal."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and bool(one == other)
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def _difference(theirs: Sequence[Any], ours: Sequence[Any]) -> float:
    """How far apart, all of them together: a gradient that is nothing but rounding must not decide alone. What is
    infinite or no number both ways, as in masks, is alike."""
    if len(theirs) != len(ours) or not all(map(_fit, theirs, ours)):
        return float("inf")
    apart = size = 0.0
    for one, two in zip(tensors(theirs), tensors(ours), strict=True):
        wide, other = one.detach().double(), two.detach().double()
        is_alike = (wide == other) | (wide.isnan() & other.isnan())
        apart += float((wide - other).where(~is_alike, 0.0).square().sum())
        size += float(wide.where(wide.isfinite(), 0.0).square().sum())
    if not math.isfinite(apart):
        return float("inf")
    return math.sqrt(apart / size) if size else math.sqrt(apart)


def _overflow(values: Sequence[Any]) -> bool:
    return not all(bool(one.isfinite().all()) for one in tensors(values))
