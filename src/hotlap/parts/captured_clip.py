"""Clipping gradients by their norm, recorded once as a CUDA graph and replayed with a single launch.

    from hotlap.parts.captured_clip import CapturedClip

    clip = CapturedClip()
    norm = clip(model.parameters(), 1.0)  # in place of torch.nn.utils.clip_grad_norm_

Torch's own goes through the list of all gradients several times and starts a dozen kernels. A graph reads and writes
fixed addresses, so it is replayed only where gradients have the places and shapes it was recorded with; any other call
is torch's own. What is recorded is held against that once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from hotlap.parts.graph_recorder import GraphRecorder, Recorder
from hotlap.parts.interruptions import pass_on
from hotlap.parts.tensor_places import Places

_STEADY = 3  # calls with everything in the same places before one is recorded
_GRAPHS = 4  # places that gradients may take in turns
_PATIENCE = 32  # calls in a row without a replay, after which no more is tried
_TRIED = 16  # recordings after which each must have been worth four replays
_LIMIT = 1e-3  # how far norm and gradients may be apart, in proportion
_NUMBERS = bool | int | float | None
_NO_MEMORY = "there is no memory to hold a recording against the original"


@dataclass(eq=False)
class _Recording:
    replay: Callable[[], object]
    norm: torch.Tensor  # where the graph puts it
    how: tuple[Any, ...]
    places: Places

    def fits(self, grads: list[torch.Tensor], how: tuple[Any, ...]) -> bool:
        """Asked first, since it is quick. Types before values: a bound in a tensor is not to be compared."""
        is_same = list(map(type, how)) == list(map(type, self.how)) and how == self.how
        return is_same and self.places.hold(grads)


class CapturedClip:
    """`refused` says why it has given up; `replays` how often a graph did the work."""

    def __init__(self, plain: Callable[..., Any] | None = None, recorder: Recorder | None = None) -> None:
        self._plain = plain or torch.nn.utils.clip_grad_norm_
        self._recorder = recorder or GraphRecorder()
        self.replays, self.refused = 0, ""
        self._graphs: dict[Any, _Recording] = {}
        self._latest: _Recording | None = None  # the one that was replayed last, which mostly fits again
        self._sightings: Counter[Any] = Counter()
        self._misses = self._recordings = 0

    def __call__(
        self,
        parameters: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Any:
        how = (max_norm, norm_type, error_if_nonfinite, foreach)
        is_several = isinstance(parameters, Iterable) and not isinstance(parameters, torch.Tensor)
        if self.refused or error_if_nonfinite or not is_several:  # an error is raised by the host, which must wait
            return self._plain(parameters, *how)
        given = list(parameters)
        if not given:
            return self._plain(parameters, *how)  # it warns of generators that are used up
        grads = [grad for one in given if (grad := one.grad) is not None]
        recording = self._latest
        if recording is None or self._recorder.is_busy or not recording.fits(grads, how):
            places = self._places(grads, how)
            recording = self._latest = self._graphs.get(places)
            if recording is None:
                return self._slowly(lambda: self._plain(given, *how), grads, how, places)
        recording.replay()
        torch.autograd.graph.increment_version(grads)  # autograd's guard against what is changed too early
        self.replays, self._misses = self.replays + 1, 0
        return recording.norm.clone()

    def close(self) -> None:
        self._give_up("undone")

    def _places(self, grads: list[torch.Tensor], how: tuple[Any, ...]) -> Any:
        """Everything that a graph has in it for good; None where there can be none."""
        if not grads or self._recorder.is_busy or not all(isinstance(one, _NUMBERS) for one in how):
            return None
        found, device = list(how), grads[0].device
        for grad in grads:
            is_plain = type(grad) is torch.Tensor and grad.layout is torch.strided and not grad.is_complex()
            if not is_plain or grad.device != device:
                return None
            found += (grad.data_ptr(), grad.shape, grad.stride(), grad.dtype)
        return tuple(found) if device.type == self._recorder.device else None

    def _slowly(self, plain: Callable[[], Any], grads: list[torch.Tensor], how: tuple[Any, ...], places: Any) -> Any:
        """A call that no graph is there for; it may be the one to record."""
        self._misses += 1
        if self._misses >= _PATIENCE:
            self._give_up("gradients never come to lie where they lay before")
        if places is None or self.refused:
            return plain()
        if len(self._sightings) > 16 * _GRAPHS:
            self._sightings.clear()
        self._sightings[places] += 1
        if self._sightings[places] <= _STEADY:
            return plain()
        if self._recordings >= _TRIED and self.replays < 4 * self._recordings:
            self._give_up("gradients take too many places in turns")
            return plain()
        if len(self._graphs) >= _GRAPHS:
            oldest = next(iter(self._graphs))
            del self._graphs[oldest], self._sightings[oldest]
        return self._record(plain, grads, how, places)

    def _record(self, plain: Callable[[], Any], grads: list[torch.Tensor], how: tuple[Any, ...], places: Any) -> Any:
        """What the script gets is torch's own, and gradients are clipped once, whatever happens on the way."""
        norms: list[torch.Tensor] = []
        try:
            before = [grad.clone() for grad in grads]
            after = [torch.empty_like(grad) for grad in grads]
            replay = self._recorder.record(lambda: norms.append(plain()), grads[0].device)
        except torch.OutOfMemoryError:
            self._give_up(_NO_MEMORY)
            return plain()
        except Exception as error:  # whatever torch raises where nothing is carried out
            pass_on(error)
            self._give_up(f"clipping cannot be recorded: {type(error).__name__}: {error}".splitlines()[0])
            return plain()
        self._recordings += 1
        recording = _Recording(replay, norms[0], how, Places(grads))
        norm = plain()
        _copy(grads, after)
        _copy(before, grads)
        recording.replay()
        try:
            apart = _apart([norm], [recording.norm]), _apart(after, grads)
        except torch.OutOfMemoryError:
            self._give_up(_NO_MEMORY)
            return norm
        finally:
            _copy(after, grads)
        if not all(map(math.isfinite, apart)):  # norms that overflow tell nothing
            del self._sightings[places]
        elif max(apart) > _LIMIT:
            self._give_up(f"replayed it is not the same: off by {max(apart):.3g}")
        else:
            self._graphs[places] = recording
        return norm

    def _give_up(self, reason: str) -> None:
        self._graphs.clear()
        self._latest = None
        self.refused = self.refused or reason


@torch.no_grad()
def _copy(source: list[torch.Tensor], to: list[torch.Tensor]) -> None:
    torch._foreach_copy_(to, source)


@torch.no_grad()
def _apart(theirs: list[torch.Tensor], ours: list[torch.Tensor]) -> float:
    """In proportion, all together; no number where either is not finite."""
    difference = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(theirs, ours, strict=True))
    size = sum(float(a.double().square().sum()) for a in theirs)
    return math.sqrt(difference / size) if size else math.sqrt(difference)
