"""Forward, loss and backward of a step, recorded once as a CUDA graph and replayed with a single launch.

    from hotlap.parts.recorded_pass import read_early, recorded

    for x, y in loader:
        def one_pass(x, y):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            return loss

        loss = recorded(one_pass, x, y)  # plain at first, then one launch
        optimizer.step()
        total += read_early(one_pass, loss)  # loss.item() that does not wait for backward and update

A graph repeats work on the device at fixed addresses, and nothing of what Python did. So a pass is watched before it is
recorded; it is replayed only while everything that its code can reach is what and where it was; and the first replays
are held against the pass itself. Any other step runs as it is. What is handed back are copies without a graph."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from hotlap.parts.added_gradients import Lasting
from hotlap.parts.compilable import graphs_made, interpreted
from hotlap.parts.early_results import Handed, Made, can_be_read
from hotlap.parts.graph_recorder import GraphRecorder, Recorder
from hotlap.parts.interruptions import pass_on
from hotlap.parts.listening import listening
from hotlap.parts.pass_calls import Call, call_of
from hotlap.parts.pass_grounds import Grounds
from hotlap.parts.pass_listeners import Listeners, Nobody
from hotlap.parts.pass_look import Look, host_generators, noting_backward, tensors
from hotlap.parts.pass_recording import (
    Recording,
    can_be_copied,
    detached,
    flat,
    others,
    recording_of,
)
from hotlap.parts.pass_stand_ins import go_back, has_a_past, stand_in
from hotlap.parts.reach import Unfit, address, is_weight

_UNWATCHED = 2  # passes with inputs of one kind before one is watched
_UNRECORDED = 4  # passes before one is recorded
_PROVEN = 2  # replays that are held against the pass itself
_LIMIT = 1e-3  # how far loss and gradients may be apart, in proportion: 16-bit kernels may add up in another order
_GRAPHS = 4  # kinds of passes: the usual batch, a smaller last one; each with gradients to add to and without
_PATIENCE = 48  # passes in a row without a replay, after which no more is tried
_TRIED = 8  # recordings after which each must have been worth eight replays


listeners: Listeners = Nobody()
_passes: dict[Any, RecordedPass] = {}


def recorded(function: Callable[..., Any], *inputs: Any) -> Any:
    """Does what `function(*inputs)` does, by a graph where one is there for it. One for each function in the text."""
    code = function.__code__  # type: ignore[attr-defined]
    own = _passes.get(code)
    if own is None:
        own = _passes[code] = RecordedPass()
    return own.run(function, inputs)


def reading_early(function: Callable[..., Any], *values: Any) -> AbstractContextManager[Any]:
    """For statements that work with the values alone, which are results of the function's last pass, its inputs and
    plain numbers, and that make no tensor for others. After a replay they wait for its forward, and not for backward
    and update; in any other case they are what they are without it."""
    own = _passes.get(function.__code__)  # type: ignore[attr-defined]
    if own is None or not all(map(can_be_read, values)):
        return nullcontext()
    own.is_read = True
    return own.made.reading(values) if own.made is not None else nullcontext()


def read_early(function: Callable[..., Any], result: torch.Tensor) -> Any:
    """`result.item()`, of one result of the function's last pass: in every step, or only in some."""
    own = _passes.get(function.__code__)  # type: ignore[attr-defined]
    if own is None or type(result) is not torch.Tensor:
        return result.item()
    own.is_asked = True
    if own.made is None:
        return result.item() if own.handed is None else own.handed.item(result)
    with own.made.reading([result]):
        return result.item()


class RecordedPass:
    """The passes of one place. `refused` says why it has given up; `replays` how often a graph did the work."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recorder = recorder or GraphRecorder()
        self.replays, self.refused = 0, ""
        self._graphs: dict[Any, Recording] = {}
        self._sightings: Counter[Any] = Counter()
        self._misses = self._recordings = 0
        self._lasting = Lasting()
        self._why = ""
        self.is_read = False  # whether the script works with its results in every step,
        self.is_asked = False  # or asks for single numbers
        self.made: Made | None = None  # by the last replay
        self.handed: Handed | None = None  # likewise

    def run(self, function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        self.made = self.handed = None
        if self.refused:
            return function(*inputs)
        if not any(map(has_a_past, inputs)):
            return self._run(function, inputs)
        stand_ins = [stand_in(one) if has_a_past(one) and torch.is_grad_enabled() else one for one in inputs]
        out = self._run(function, stand_ins)
        go_back(inputs, stand_ins)
        return out

    def _run(self, function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        call = call_of(function, inputs, self._recorder, listeners.changes)
        self._why = call.why_not
        call, recording = self._fitting(call)
        if recording is None:
            return self._slowly(call)
        if not recording.grounds.hold(function):
            self._why = recording.grounds.why
            self._drop(call.kind)
            return self._slowly(call)
        if any(one.is_held for one in list(self._graphs.values())):  # they share their memory
            self._misses += 1
            return call.plain()
        if recording.proven < _PROVEN:
            return self._prove(call, recording)
        given = call.tensors
        if listeners.are_there:
            listeners.played(lambda: recording.played(given), given)
        else:
            recording.play(given)
        recording.hand_back(given)
        self.replays, self._misses = self.replays + 1, 0
        results = recording.handed(self.is_read)
        if self.is_read and recording.moment is not None:
            self.made = Made(recording.moment, tensors(results), [one for one in given if not recording.updates(one)])
        elif self.is_asked and recording.moment is not None:
            self.handed = Handed(recording.moment, tensors(results), recording.given)
        return results

    def _fitting(self, call: Call) -> tuple[Call, Recording | None]:
        """What was recorded of its kind. A pass that finds gradients where the recorded one found none, as the second
        of several that add up to one update, is of another kind."""
        recording = self._graphs.get(call.kind) if call.kind is not None else None
        if recording is None or recording.begins_alike:
            return call, recording
        if recording.added.are_lost:
            self._lose(call.kind)
            return call, None
        call = replace(call, kind=(call.kind, "otherwise"))
        recording = self._graphs.get(call.kind)
        if recording is None or recording.begins_alike:
            return call, recording
        self._lose(call.kind)
        return call, None

    def _slowly(self, call: Call) -> Any:
        """A pass that no graph is there for; it may be the one to record."""
        why = self._why or listeners.why_not
        self._misses += 1
        if self._misses > _PATIENCE:
            self._give_up(why or "its inputs are never of the same kind for long")
        device = self._device(call.leaves) if call.kind is not None and not self.refused else None
        if device is None:
            return call.plain()
        if len(self._sightings) > 64:
            self._sightings.clear()
        self._sightings[call.kind] += not why
        if self._sightings[call.kind] == _UNWATCHED + 1 and not why:
            return self._watched(call, device)
        if self._sightings[call.kind] > _UNRECORDED and not why and not self._lasting.are_passing:
            return self._record(call, device)
        return self._aside(call, device)

    def _aside(self, call: Call, device: torch.device) -> Any:
        """The pass itself, where it would be recorded: what autograd keeps from one pass to the next, as long as
        somebody has its graph, must fit a recording. So graphs are not handed out either."""
        made = graphs_made()
        with self._recorder.aside(device):
            out = detached(call.plain())
        if graphs_made() != made:  # what is compiled only now cannot be recorded yet
            self._sightings[call.kind] -= 1
        return out

    def _device(self, leaves: Sequence[Any]) -> torch.device | None:
        """Where the pass computes: where its inputs lie, or the one device there is, where they lie in main memory or
        there are none."""
        devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}
        own = {device for device in devices if device.type == self._recorder.device}
        others = {device.type for device in devices - own} - {"cpu"}
        if len(own) == 1 and not others:
            return own.pop()
        if own or others or self._recorder.number is None:
            self._give_up(f"its inputs are not on one {self._recorder.device} device")
            return None
        return torch.device(self._recorder.device, self._recorder.number)

    def _watched(self, call: Call, device: torch.device) -> Any:
        """The pass itself, looked at on the way. Whoever watches would be looked at as well, so they are told of it as
        of a replay."""
        try:
            grounds = Grounds(call.function, others(call.leaves))
        except Unfit as reason:
            self._give_up(str(reason))
            return call.plain()
        buffers = {address(one) for one in grounds.tensors if not is_weight(one)} - {0}
        if not buffers.isdisjoint(map(address, call.tensors)):
            self._give_up("it is given a buffer of its model, which it may change on the way")
            return call.plain()
        if any(one.is_inference() for one in (*grounds.tensors, *call.tensors)):
            self._give_up("it works with tensors of inference mode, of which nobody can tell whether they change")
            return call.plain()
        self._lasting.watched(call.kind, grounds.grads())
        look, before = Look(device.type, call.inputs, grounds), host_generators(device.type)
        lasting = [one for one in grounds.tensors if is_weight(one)] + call.tensors
        versions, losses = [one._version for one in lasting], list[Any]()
        aside = self._recorder.aside(device)
        with listeners.recording(), aside, noting_backward(losses.append), interpreted(), listening() as heard, look:
            out = call.plain()
        for loss in detached(losses):
            listeners.played(lambda loss=loss: loss, call.tensors)
        if look.reason or heard:
            self._give_up(look.reason or heard[0])
        elif host_generators(device.type) != before:
            self._give_up("it draws random numbers on the host")
        elif not grounds.hold(call.function):
            self._give_up(f"it leaves something behind: {grounds.why}")
        elif not _are_the_same(call.leaves, flat(call.inputs)[0]):
            self._give_up("it puts something into what it is given")
        elif versions != [one._version for one in lasting]:
            self._give_up("it changes its inputs or weights")
        elif not can_be_copied(out):
            self._give_up("it hands on more than tensors and numbers")
        elif (grounds.addresses() - {0}) & set(map(address, tensors(out))):
            self._give_up("it hands on its weights, or what else is there before and after it")
        return out if self.refused else detached(out)

    def _record(self, call: Call, device: torch.device) -> Any:
        if self._recordings >= _TRIED and self.replays < 8 * self._recordings:
            self._give_up("what it rests on changes too often")
        if self.refused or len(self._graphs) >= _GRAPHS:
            return call.plain()
        try:
            with listeners.recording():
                recording = recording_of(call.function, call.inputs, call.leaves, self._recorder, device)
        except Exception as error:  # whatever the script raises where nothing is carried out
            pass_on(error)
            reason = str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}"
            self._give_up(f"it cannot be recorded: {reason.splitlines()[0]}")
            return call.plain()
        if not self._lasting.accept(call.kind, recording.added):
            if self._lasting.are_hopeless:
                self._give_up("it adds to gradients that lie elsewhere each time")
            return self._aside(call, device)
        self._recordings += 1
        self._graphs[call.kind] = recording
        recording.grounds.gone.tell = functools.partial(self._drop, call.kind)
        return self._prove(call, recording)

    def _prove(self, call: Call, recording: Recording) -> Any:
        """The pass itself, and then the same by the graph, from the same state; the script gets its own."""
        with self._recorder.aside(recording.loss.device):
            out, difference, is_telling = recording.compared(call.plain, call.tensors)
        recording.proven += is_telling
        self._misses = 0 if is_telling else self._misses + 1
        if is_telling or not difference <= _LIMIT:
            listeners.compared(difference, _LIMIT)
        if not difference <= _LIMIT:
            self._give_up(f"replayed it is not the same: off by {difference:.3g}")
        elif self._misses > _PATIENCE:
            self._give_up("its loss or gradients are not finite, so that no replay can be held against them")
        return out if self.refused else detached(out)

    def _lose(self, kind: Any) -> None:
        """Its gradients are gone, or others are there now."""
        self._lasting.lost(kind)
        self._drop(kind)

    def _drop(self, kind: Any) -> None:
        """What it rests on is another now, or gone. Its memory is free for what comes next."""
        self._graphs.pop(kind, None)
        self._sightings.pop(kind, None)

    def _give_up(self, reason: str) -> None:
        if not self.refused:
            self._graphs.clear()
            self.refused = reason
            listeners.refused(reason)


def _are_the_same(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(ones) == len(others) and all(one is other for one, other in zip(ones, others, strict=True))
