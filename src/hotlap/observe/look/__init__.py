"""A closer look, in a few extra steps after those that were timed: one to warm up and some under torch's profiler, then
one counted operation by operation. Everything only watches: the training goes on bit for bit as it would have."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

from hotlap.observe.look.counting import Counter, Tally
from hotlap.observe.look.roofline import measure
from hotlap.observe.look.shape import notes, remarks
from hotlap.observe.look.timeline import device_seconds, idle_seconds, pieces
from hotlap.observe.look.timing import Profile, Times, Trace, times
from hotlap.observe.look.tracks import Tracks, clock
from hotlap.observe.look.unused import Unused
from hotlap.observe.scrutiny_facts import LayerFacts, LookFacts

_WARM_UP_STEPS = 1  # the profiler's own first costs: buffers, names of kernels
_TIMED_STEPS = 3
_COMPILED = "the script compiles its model: its layers are not looked into"
_TIMED_SECONDS = 20.0  # steps of many seconds need no average, and their events would fill the memory


def why_not() -> str:
    """One clause why there can be no look, or nothing."""
    import torch

    if torch.autograd._profiler_enabled():
        return "a torch profiler of the script's own is running"
    kind = getattr(sys.modules.get("torch.profiler"), "profile", None)
    if kind is not None and any(issubclass(type(thing), kind) for thing in gc.get_objects()):
        return "the script has a torch profiler of its own"  # it may start in any step, and two cannot run
    if not torch.autograd.kineto_available():
        return "this torch was built without its profiler"
    return ""


class Look:
    """`next()` is called at each boundary between two steps, on the script's own thread, until it says False.

    A script that compiles is only looked at from outside, by the profiler: hooks and modes would be compiled in."""

    def __init__(
        self, roots: Sequence[Any], optimizers: Sequence[Any], device: str, script_compiles: bool = False
    ) -> None:
        self._device, self._from_outside = device, script_compiles
        self._tracks = Tracks(roots)
        self._unused = Unused(roots, optimizers, self._tracks)
        self._profile = Profile(device)
        self._counter = Counter(self._tracks)
        self._boundaries: list[float] = []  # of the steps under the profiler
        self._calls: dict[int, int] = {}  # up to the last boundary
        self._counted_calls: dict[int, int] = {}
        self._peaks: tuple[dict[str, float], float] = ({}, 0.0)
        self._phase = "new"  # then "timed", "counted", "over"
        self._failure = ""

    def next(self) -> bool:
        try:
            return self._advance()
        except Exception as error:  # a look must never end the script
            self._failure = f"the look failed: {type(error).__name__}: {error}"
            self.close()
            return False

    def _advance(self) -> bool:
        now = clock()
        if self._phase == "over":
            return False
        if self._phase == "new":
            _mind_forks()
            _looks.add(self)
            self._profile.start()
            self._tracks.on_thread = self._profile.mark
            if not self._from_outside:
                self._tracks.hang_up()
                self._unused.hang_up()
            self._phase = "timed"
        elif not self._from_outside:
            self._unused.see()
        if self._phase == "timed":
            self._boundaries.append(now if self._boundaries else clock())
            self._calls = dict(self._tracks.calls)
            if not self._is_timed():
                self._profile.mark(self._tracks.here())
                self._tracks.boundary()
                return True
            self._profile.stop()
            if self._from_outside:
                self.close()
                return False
            self._phase = "counted"
            self._tracks.boundary()
            self._counter.start()
            return True
        self._counted_calls = {place: n - self._calls.get(place, 0) for place, n in self._tracks.calls.items()}
        self._counter.is_complete = True
        self.close()
        self._peaks = measure(self._device)
        return False

    def _is_timed(self) -> bool:
        done = len(self._boundaries) - 1 - _WARM_UP_STEPS
        return done >= _TIMED_STEPS or (done >= 1 and self._boundaries[-1] - self._boundaries[0] > _TIMED_SECONDS)

    def close(self) -> None:
        """Take everything down, whatever state it is in. What fails to come down must not keep the rest up."""
        self._phase = "over"
        _looks.discard(self)
        self._tracks.on_thread = None
        for take_down in (self._counter.stop, self._profile.stop, self._tracks.take_down, self._unused.take_down):
            try:
                take_down()
            except Exception as error:
                self._failure = self._failure or f"the look failed: {type(error).__name__}: {error}"

    def _drop_in_child(self) -> None:
        """Loader workers forked in these steps would carry all this through their lives. A profiler cannot be stopped
        there, since its threads are not, but it can be kept from being told anything."""
        import torch

        if self._profile.is_running:
            self._profile.abandon()
            torch.autograd._enable_record_function(False)
        self.close()

    def facts(self, host: Sequence[tuple[str, float, float]]) -> LookFacts:
        """`host`: what the host did in these steps, as (share, start, end) on the clock of `time.perf_counter`."""
        window = self._boundaries[_WARM_UP_STEPS:] if len(self._boundaries) > _WARM_UP_STEPS + 1 else self._boundaries
        steps = len(window) - 1
        if steps < 1:
            return LookFacts(skipped=self._failure or "the script ended before a step could be looked at")
        start, end = window[0], window[-1]
        trace, on_device = self._profile.trace(), self._device == "cuda"
        spent = times(trace, self._tracks, start, end, on_device)
        on_cuda = _device_facts(trace, host, start, end, steps) if on_device else {}
        flops, bandwidth = self._peaks
        if self._from_outside:
            return LookFacts(steps=steps, remarks=[_COMPILED], skipped=self._failure, **on_cuda)
        return LookFacts(
            steps=steps,
            layers=self._layers(spent, steps),
            unused=self._unused.facts(),
            remarks=remarks(spent.by_operation, spent.pieces, steps, (end - start) / steps, on_device),
            peak_flops=flops,
            peak_bandwidth=bandwidth,
            activations=self._counter.activations,
            skipped=self._failure,
            **on_cuda,
        )

    def _layers(self, spent: Times, steps: int) -> list[LayerFacts]:
        """One for each module with work of its own, in the order of the model."""
        total = sum(spent.forward.values()) + sum(spent.backward.values())
        tallies = self._counter.tallies if self._counter.is_complete else {}
        looked_at = len(self._boundaries) - 1
        layers = []
        for number, (root, name, module) in enumerate(self._tracks.places):
            forward, backward = spent.forward.get(number, 0.0), spent.backward.get(number, 0.0)
            tally = tallies.get(number, Tally())
            if not (forward or backward or tally.flops or tally.moved_bytes):
                continue
            calls = self._counted_calls.get(number, 0) if tallies else round(self._calls.get(number, 0) / looked_at)
            by_flops = tally.flops_by_dtype
            layers.append(
                LayerFacts(
                    root=root,
                    name=name,
                    kind=type(module).__name__,
                    calls=calls,
                    forward_seconds=forward / steps,
                    backward_seconds=backward / steps,
                    flops=float(tally.flops),
                    moved_bytes=float(tally.moved_bytes),
                    saved_bytes=float(tally.saved_bytes),
                    parameters=sum(p.numel() for p in module.parameters(recurse=False)),
                    dtype=max(by_flops, key=by_flops.__getitem__) if by_flops else self._tracks.dtypes.get(number, ""),
                    notes=notes(module, tally, (forward + backward) / total if total else 0.0),
                )
            )
        return layers


_looks: weakref.WeakSet[Look] = weakref.WeakSet()


@cache
def _mind_forks() -> None:
    os.register_at_fork(after_in_child=lambda: [look._drop_in_child() for look in list(_looks)])


def _device_facts(
    trace: Trace, host: Sequence[tuple[str, float, float]], start: float, end: float, steps: int
) -> dict[str, Any]:
    """By the step: what the device did and when it did nothing, by what the host was doing."""
    on_host = pieces(host, start, end)
    launches = sum(start <= kernel.launched < end and not kernel.is_transfer for kernel in trace.kernels)
    return {
        "device_seconds": {name: s / steps for name, s in device_seconds(trace.kernels, on_host).items()},
        "idle_seconds": {name: s / steps for name, s in idle_seconds(trace.kernels, on_host).items()},
        "kernels": round(launches / steps),
    }
