"""Calls of a module without gradients, as in a test or when a sample is drawn, recorded as a CUDA graph.

    from hotlap.parts.captured_evaluation import CapturedEvaluation

    captured = CapturedEvaluation()
    output = captured.call(model, (inputs,), {})  # in place of model(inputs); plain until calls are seen to be alike

A call is recorded once several in a row were alike: two of them are watched, and two replays are held against the plain
call. The graph reads the weights where they lie, so it goes on being right while they are trained. Whenever anything
is different, the call is made as it is."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from hotlap.parts.captured_calls import Alone, forward_settings, has_room, is_plain_tensor, plain_call
from hotlap.parts.graph_recorder import GraphRecorder, Recorder, watched_by
from hotlap.parts.interruptions import pass_on
from hotlap.parts.packed import Packed
from hotlap.parts.reach import Unfit
from hotlap.parts.recorded_call import Proceed, copy, generator_of, recorded_work
from hotlap.parts.replay_proof import Proof, distance
from hotlap.parts.steady_module import SteadyModule, why_not_recorded
from hotlap.parts.watched_call import watched

_UNWATCHED = 2  # calls in a row that are alike before one is watched
_WATCHED = 2
_PROVEN = 2  # replays of each recording that are held against the plain call
_RECORDINGS = 4  # of one module: each has memory of its own
_CHANGES = 8  # times that the module itself may change,
_WORTH = 64  # unless so many replays came in between


class CapturedEvaluation:
    """The calls of one module. `refused` says why it has given up; `replays` how often graphs did the work."""

    def __init__(self, recorder: type[Recorder] | None = None, proof: Proof | None = None) -> None:
        self._new_recorder: Any = recorder or GraphRecorder  # one for each recording, with memory of its own
        self._recorder: Recorder = self._new_recorder()
        self._proof = proof or Alone()
        self.replays, self.refused = 0, ""
        self._recordings: dict[Any, _Recording] = {}
        self._left_alone: set[Any] = set()
        self._steady: SteadyModule | None = None
        self._thread = threading.get_ident()
        self._last: Any = None  # kind of the call before,
        self._row = 0  # and how many there were of it in a row
        self._forms: list[Any] = []
        self._changes = self._replays_then = 0

    def call(self, root: nn.Module, args: Any, kwargs: Any, proceed: Proceed = plain_call) -> Any:
        if self.refused or not self._is_time(root):
            return proceed(root, args, kwargs)
        given = Packed.arguments(args, kwargs)
        kind = self._kind(root, given)
        if kind is None:
            return proceed(root, args, kwargs)
        plain = _PlainCall(proceed, root, (args, kwargs), given, self._device)
        recording = self._recordings.get(kind)
        if recording is not None:
            return self._replayed(recording, plain)
        return self._slowly(kind, plain)

    def close(self) -> None:
        self._give_up("undone")

    def _is_time(self, root: nn.Module) -> bool:
        return (
            not root.training
            and not torch.is_grad_enabled()
            and not self._proof.failed
            and threading.get_ident() == self._thread
            and not torch_module._has_any_global_hook()
            and not watched_by()
            and not self._recorder.is_busy
        )

    def _kind(self, root: nn.Module, given: Packed) -> Any:
        """What calls must have in common to share a graph; None where there can be none."""
        if self._steady is None or not self._steady.holds():
            self._look_at(root)
        if self.refused or self._steady is None or not given.packing.is_plain:
            return None
        if not all(is_plain_tensor(one) and one.device == self._device for one in given.tensors):
            return None
        return (
            given.packing.key,
            tuple((one.shape, one.dtype, None if one.is_contiguous() else one.stride()) for one in given.tensors),
            *forward_settings(self._device),
            torch.is_inference_mode_enabled(),
        )

    def _look_at(self, root: nn.Module) -> None:
        """The module is new, or no longer what it was: what was recorded is of no use."""
        if self._steady is not None:
            self._changes = 1 if self.replays - self._replays_then >= _WORTH else self._changes + 1
            self._replays_then = self.replays
        self._recordings.clear()
        self._left_alone.clear()
        self._steady, self._last = None, None
        why = why_not_recorded(root, self._recorder.device)
        if not why:
            try:
                self._steady = SteadyModule(root)
                self._device = self._steady.device
            except Unfit as reason:
                why = str(reason)
        if why or self._changes > _CHANGES:
            self._give_up(why or "its attributes, parts, hooks or what its code reads change between calls")

    def _slowly(self, kind: Any, plain: _PlainCall) -> Any:
        """A call that no graph is there for; it may be the one to record."""
        if kind != self._last:
            self._last, self._row, self._forms = kind, 0, []
        self._row += 1
        if kind in self._left_alone or self._row <= _UNWATCHED or len(self._recordings) >= _RECORDINGS:
            return plain()
        if len(self._forms) < _WATCHED:
            return self._watched(kind, plain)
        try:
            if not has_room(self._device):
                raise Unfit("memory is short")
            recording = _Recording(self._new_recorder(), plain)
        except Exception as error:  # whatever the module raises where nothing is carried out
            pass_on(error)
            self._leave_alone(kind, str(error))
            return plain()
        self._recordings[kind] = recording
        return self._replayed(recording, plain)

    def _watched(self, kind: Any, plain: _PlainCall) -> Any:
        assert self._steady is not None
        out, sighting = watched(plain, plain.given.tensors, self._steady.own, self._device, trains=False)
        is_other = self._forms and self._forms[0] != sighting.form
        if sighting.why or is_other or not plain.given.is_still(*plain.arguments):
            self._leave_alone(kind, sighting.why)
        self._forms.append(sighting.form)
        return out

    def _replayed(self, recording: _Recording, plain: _PlainCall) -> Any:
        self.replays += 1
        tensors = plain.given.tensors
        if recording.proven >= _PROVEN:
            return recording.packing.filled(recording(tensors))
        recording.proven += 1
        generator = generator_of(self._device)
        before = generator.get_state()
        out = plain()
        after = generator.get_state()
        generator.set_state(before)
        apart = distance(recording(tensors), Packed(out).tensors)
        self._proof.add(apart if torch.equal(generator.get_state(), after) else float("inf"))
        generator.set_state(after)
        if self._proof.failed:
            self._give_up("what was replayed is not what the plain call gives")
        return out

    def _leave_alone(self, kind: Any, why: str) -> None:
        if len(self._left_alone) >= 64:
            self._give_up(f"too many kinds of calls cannot be recorded: {why}")
        self._left_alone.add(kind)

    def _give_up(self, reason: str) -> None:
        self.refused = self.refused or reason
        self._recordings.clear()


class _PlainCall:
    """The call as it was asked for, and with tensors of the same kind in place of the script's."""

    def __init__(self, proceed: Proceed, root: nn.Module, arguments: Any, given: Packed, device: torch.device) -> None:
        self._proceed, self._root, self.device = proceed, weakref.ref(root), device
        self.arguments, self.given = arguments, given

    def __call__(self) -> Any:
        return self._proceed(self._root(), *self.arguments)

    def upon(self, tensors: Sequence[torch.Tensor]) -> Any:
        return self._proceed(self._root(), *self.given.packing.filled(tensors))


class _Recording:
    """Made without carrying anything out. Autocast must not hand over weights that it has cast before."""

    def __init__(self, recorder: Recorder, plain: _PlainCall) -> None:
        self.proven = 0
        self._places = [one.clone() for one in plain.given.tensors]
        kind = plain.device.type
        is_cast, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

        def forward() -> list[torch.Tensor]:
            with torch.autocast(kind, dtype=dtype, enabled=is_cast, cache_enabled=False):
                made = Packed(plain.upon(self._places))
            self.packing = made.packing
            return made.tensors

        self._replay, self._outs = recorded_work(recorder, forward, plain.device)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        copy(self._places, tensors)
        self._replay()
        return [one.clone() for one in self._outs]
