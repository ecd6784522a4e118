"""One recording of a pass: where it reads its inputs, what it gives, and whether that is what the pass itself gives."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from hotlap.parts.graph_recorder import Recorder
from hotlap.parts.pass_grounds import Grounds, Unfit
from hotlap.parts.pass_look import noting_backward, tensors

NUMBERS = bool | int | float | str | None


@dataclass(eq=False)
class Recording:
    replay: Callable[[], object]
    inputs: list[torch.Tensor]  # where the graph reads them
    kept: Sequence[Any]  # the inputs that are no tensors, so that no other object gets their identity
    grounds: Grounds
    results: Any
    loss: torch.Tensor
    weights: list[torch.Tensor]
    grads: list[torch.Tensor]
    clears: bool  # whether gradients of the step before are dropped in it
    proven: int = 0

    def __post_init__(self) -> None:
        self._alone: dict[bool, int] = {}  # references to a gradient while nobody else has one; weights count as well

    @property
    def adds(self) -> bool:
        """Whether the pass would now add to gradients that are there."""
        return not self.clears and any(weight.grad is not None for weight in self.weights)

    @property
    def is_held(self) -> bool:
        """Whether the script has kept a gradient that a replay, also of another recording, would overwrite."""
        return self._references() > self._alone.setdefault(self._is_attached, self._references())

    def play(self, inputs: list[torch.Tensor]) -> None:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.replay()
        for weight, grad in zip(self.weights, self.grads, strict=True):
            if weight.grad is not grad:
                weight.grad = grad
        self._alone.setdefault(True, self._references())  # the first time, nobody has met them yet

    def played(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        self.play(inputs)
        return self.loss.clone()

    def compared(self, plain: Callable[[], Any], inputs: list[torch.Tensor]) -> tuple[Any, float]:
        """What the pass itself gives, and how far the graph is from it. Gradients, buffers and random numbers are left
        as the pass itself has left them."""
        device, known = self.loss.device, self.grounds.tensors
        before, losses = _State(known, device), list[Any]()
        with noting_backward(losses.append):
            out = plain()
        after, theirs = _State(known, device), [weight.grad for weight in self.weights]
        before.put_back()
        self.play(inputs)
        replayed = _State(known, device)
        difference = max(_difference(theirs, self.grads), _difference(losses, [self.loss]))
        for one, other in zip([*after.values, *_leaves(out)], [*replayed.values, *_leaves(self.results)], strict=True):
            difference = max(difference, _difference([one], [other]))
        after.put_back()
        for weight, grad in zip(self.weights, theirs, strict=True):
            weight.grad = grad
        return out, difference

    @property
    def _is_attached(self) -> bool:
        return any(map(operator.is_, (weight.grad for weight in self.weights), self.grads))

    def _references(self) -> int:
        return max(map(sys.getrefcount, self.grads))


def recording_of(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    leaves: Sequence[Any],
    recorder: Recorder,
    device: torch.device,
) -> Recording:
    """Nothing is computed by it, and gradients are again what they were."""
    grounds = Grounds(function, others(leaves))
    weights = [tensor for tensor in dict.fromkeys(grounds.tensors) if tensor.requires_grad]
    before = [weight.grad for weight in weights]
    own = [_static(one, device) if isinstance(one, torch.Tensor) else one for one in leaves]
    fed, seen = _like(inputs, own), _Seen(weights)
    try:
        with noting_backward(seen):
            replay = recorder.record(lambda: seen.keep(function(*fed)), device)
        grads = [weight.grad for weight in weights]
    finally:
        for weight, grad in zip(weights, before, strict=True):
            weight.grad = grad
    seen.judge()
    if not grounds.hold(function):
        raise Unfit(f"it leaves something behind: {grounds.why}")
    trained = [(weight, grad) for weight, grad in zip(weights, grads, strict=True) if grad is not None]
    if not trained or any(grad.layout != torch.strided for _, grad in trained):
        raise Unfit("gradients are sparse" if trained else "no weight gets a gradient from it")
    return Recording(
        replay,
        tensors(own),
        others(leaves),
        grounds,
        seen.results,
        seen.loss,
        [weight for weight, _ in trained],
        [grad for _, grad in trained],
        clears=any(grad is not None for grad in before),
    )


class _Seen:
    """What a recording shows of itself while the function runs."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self._weights, self._losses, self._adds = weights, [], False
        self.results: Any = None

    def __call__(self, loss: Any) -> None:
        self._losses.append(loss)
        self._adds = self._adds or any(weight.grad is not None for weight in self._weights)

    def keep(self, results: Any) -> Any:
        self.results = detached(results)
        return self.results

    def judge(self) -> None:
        if self._adds:
            raise Unfit("gradients are added up, or set to zero in place")
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
                one.copy_(value)
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(self._random, self._device)
        else:
            torch.set_rng_state(self._random)


def _static(given: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A place of ours on the device; a batch that the pass would move there itself is moved by copying it."""
    own = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=device)
    return own.copy_(given)


def _like(inputs: Sequence[Any], leaves: Sequence[Any]) -> Any:
    following: Iterator[Any] = iter(leaves)
    return tree_map(lambda _: next(following), tuple(inputs))


def flat(inputs: Sequence[Any]) -> tuple[Sequence[Any], str]:
    """The leaves of the inputs, and how they hang together: nothing to say where they are plain, as they mostly are."""
    if all(isinstance(one, torch.Tensor | NUMBERS) for one in inputs):
        return inputs, ""
    leaves, shape = tree_flatten(tuple(inputs))
    return leaves, repr(shape)


def is_weight(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad or isinstance(tensor, torch.nn.Parameter)


def others(leaves: Sequence[Any]) -> list[Any]:
    return [one for one in leaves if not isinstance(one, torch.Tensor)]


def detached(results: Any) -> Any:
    return tree_map(lambda one: one.detach() if isinstance(one, torch.Tensor) else one, results)


def copied(results: Any) -> Any:
    if isinstance(results, torch.Tensor):
        return results.clone()
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
    """How far apart, all of them together: a gradient that is nothing but rounding must not decide alone."""
    if len(theirs) != len(ours) or not all(map(_fit, theirs, ours)):
        return float("inf")
    apart = size = 0.0
    for one, two in zip(tensors(theirs), tensors(ours), strict=True):
        wide = one.detach().double()
        apart, size = apart + float((wide - two.detach()).square().sum()), size + float(wide.square().sum())
    if not math.isfinite(apart) or not math.isfinite(size):
        return float("inf")
    return math.sqrt(apart / size) if size else math.sqrt(apart)
