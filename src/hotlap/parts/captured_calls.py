"""Forward and backward of a module, recorded as CUDA graphs without compiling and replayed with one launch each.

    from hotlap.parts.captured_calls import CapturedCalls

    captured = CapturedCalls()
    output = captured.call(model, (inputs,), {})  # in place of model(inputs); plain until calls are seen to be alike

The first calls run plainly and are watched. A call is recorded once its kind has gone through forward and backward
alike a few times; each recording is held against the plain call before it is trusted. Whenever anything is different,
the call is made as it is. Several forwards before one backward get recordings of their own."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from hotlap.parts.graph_recorder import GraphRecorder, Recorder, settings, watched_by
from hotlap.parts.interruptions import pass_on
from hotlap.parts.packed import Packed
from hotlap.parts.reach import Unfit
from hotlap.parts.recorded_call import CannotRecord, PlainCall, Proceed, RecordedCall, Ticket
from hotlap.parts.replay_proof import LIMIT, Proof, proven
from hotlap.parts.steady_module import SteadyModule, why_not_recorded
from hotlap.parts.watched_call import Sighting, watched

_STEADY = 3  # calls of a kind that went through forward and backward alike, before one is recorded
_PROVEN = 2  # replays of each recording that are held against the plain call
_UNPROVEN = 32  # replays, with a plain call beside each, that showed nothing
_UNANSWERED = 16  # calls of a kind, most of them without a backward
_PENDING = 4  # forwards of a kind before a backward, each of which is recorded
_RECORDINGS = 8  # of one module: each has memory of its own
_KINDS = 64  # of inputs that are told apart
_CHANGES = 4  # times that the module itself may change,
_WORTH = 64  # unless so many replays came in between
_PATIENCE = 128  # calls in a row without a replay, after which no more is tried
_ROOM = 2.0  # free memory that a recording needs, in peaks of what the process used so far

# Weakly both ways: what is known of a module may refer to it, and both must be free to go.
_serving: weakref.WeakKeyDictionary[nn.Module, weakref.ref[CapturedCalls]] = weakref.WeakKeyDictionary()
_at_work = threading.Lock()  # a module called inside another one's call is part of that one


def plain_call(root: Any, args: Any, kwargs: Any) -> Any:
    return root(*args, **kwargs)


class _Kind:
    """Calls that are alike in all that a recording rests on."""

    def __init__(self) -> None:
        self.calls: list[RecordedCall] = []
        self.why = ""  # it is left alone
        self._sightings: list[Sighting] = []
        self._doubts = 0

    def note(self, sighting: Sighting) -> None:
        """A first doubt may be about what is done once, such as filling a table."""
        if sighting.why:
            self._doubts += 1
            self.why = sighting.why if self._doubts > 1 else ""
        else:
            self._sightings.append(sighting)

    def habit(self) -> Sighting | None:
        """What every call of this kind does; None as long as that is not known."""
        gone_back = [sighting for sighting in self._sightings if sighting.wanted]
        unusual = [sighting.unusual for sighting in gone_back if sighting.unusual]
        if unusual:
            self.why = unusual[0]
        elif any((one.form, one.wanted) != (gone_back[0].form, gone_back[0].wanted) for one in gone_back):
            self.why = "its outputs, or which of them the loss uses, are not always alike"
        elif len(gone_back) < _STEADY and len(self._sightings) >= _UNANSWERED:
            self.why = "no backward follows"
        return gone_back[0] if len(gone_back) >= _STEADY and not self.why else None


class CapturedCalls:
    """The calls of one module. `refused` says why it has given up; `replays` how often graphs did the work."""

    def __init__(self, recorder: Callable[[], Recorder] | None = None, proof: Proof | None = None) -> None:
        self._new_recorder = recorder or GraphRecorder  # one for each recording: those that are out share no memory
        self._recorder, self._proof = self._new_recorder(), proof or Alone()
        self.replays, self.refused = 0, ""
        self._kinds: dict[Any, _Kind] = {}
        self._steady: SteadyModule | None = None
        self._thread = threading.get_ident()
        self._changes = self._misses = self._replays_then = 0
        self._why = ""

    def call(self, root: nn.Module, args: Any, kwargs: Any, proceed: Proceed = plain_call) -> Any:
        if self.refused or not self._is_time(root) or not _at_work.acquire(blocking=False):
            return proceed(root, args, kwargs)
        try:
            out = self._call(root, args, kwargs, proceed)
        finally:
            _at_work.release()
        _serving[root] = weakref.ref(self)
        return out

    def _call(self, root: nn.Module, args: Any, kwargs: Any, proceed: Proceed) -> Any:
        given = Packed.arguments(args, kwargs)
        kind = self._kind(root, given)
        recorded = next((call for call in kind.calls if call.is_free), None) if kind else None
        if kind and recorded is None and not kind.why:
            recorded = self._record(kind, root, given, proceed)
        out = None if recorded is None else self._replay(recorded, given.tensors)
        return self._plainly(kind, given, root, args, kwargs, proceed) if out is None else out

    def _is_time(self, root: nn.Module) -> bool:
        """Training, and nobody who wants to see each operation."""
        return (
            root.training
            and torch.is_grad_enabled()
            and not torch.is_inference_mode_enabled()
            and not self._proof.failed
            and threading.get_ident() == self._thread
            and torch._C._current_graph_task_id() == -1  # a checkpoint recomputes inside backward
            and not torch_module._has_any_global_hook()
            and not watched_by()
            and not self._recorder.is_busy
        )

    def _kind(self, root: nn.Module, given: Packed) -> _Kind | None:
        if self._steady is None or not self._steady.holds():
            self._look_at(root)
        if self.refused or self._steady is None:
            return None
        device, self._why = self._device, ""
        if not given.packing.is_plain:
            self._why = "it is given objects that are neither tensors nor plain values"
        elif not all(is_plain_tensor(t) and t.device == device for t in given.tensors):
            self._why = f"it is given tensors that are not plain ones on the same {device.type} device"
        if self._why:
            return None
        key = (
            given.packing.key,
            tuple((t.shape, t.dtype, t.stride(), t.requires_grad) for t in given.tensors),
            tuple(p.requires_grad for p in self._steady.parameters),
            forward_settings(device),
        )
        if key not in self._kinds and len(self._kinds) >= _KINDS:
            self._why = "its inputs come in too many shapes"
            return None
        return self._kinds.setdefault(key, _Kind())

    def _look_at(self, root: nn.Module) -> None:
        """The module is new, or no longer what it was: what was recorded is of no use."""
        if self._steady is not None:
            self._changes = 1 if self.replays - self._replays_then >= _WORTH else self._changes + 1
            self._replays_then = self.replays
        self._kinds.clear()
        self._steady, self._why = None, why_not_recorded(root, self._recorder.device)
        if not self._why:
            try:
                self._steady = SteadyModule(root)
                self._device = self._steady.device
            except Unfit as reason:
                self._why = str(reason)
        if self._changes > _CHANGES or (self._why and not self.replays):  # hooks may come for a while, and go
            self._give_up(self._why or "its attributes, parts, hooks or what its code reads change between calls")

    def _record(self, kind: _Kind, root: nn.Module, given: Packed, proceed: Proceed) -> RecordedCall | None:
        habit = kind.habit()
        recordings = sum(len(one.calls) for one in self._kinds.values())
        if habit is None or len(kind.calls) >= _PENDING or recordings >= _RECORDINGS:
            return None
        if not has_room(self._device):
            kind.why = f"the device has less than {_ROOM:g} times the memory left that was used so far"
            return None
        try:
            plain = PlainCall(proceed, root, given.packing, self._device)
            call = RecordedCall(self._new_recorder(), plain, given.tensors, habit.wanted)
            if call.form != habit.form or self._steady is None or not self._steady.holds():
                raise CannotRecord("it keeps something of each call, or gives other things when it is recorded")
        except CannotRecord as error:
            self._give_up(str(error))
            return None
        except Exception as error:  # whatever the module raises where nothing is carried out
            pass_on(error)
            self._give_up(f"its calls cannot be recorded: {type(error).__name__}: {error}".splitlines()[0])
            return None
        kind.calls.append(call)
        return call

    def _replay(self, call: RecordedCall, tensors: Sequence[torch.Tensor]) -> Any:
        """None where the plain call is to be made instead."""
        is_proven = call.proven >= _PROVEN
        if not is_proven and call.replays >= _UNPROVEN:
            self._give_up("its gradients are not finite, or never come, so that no replay can be held against them")
            return None
        try:
            outs = call(tensors, Ticket()) if is_proven else proven(call, tensors, self._proof)
        except torch.OutOfMemoryError:
            self._give_up("the device has no memory left to make its calls both ways")
            return None
        if outs is None:
            self._give_up("what was replayed is not what the plain call gives")
            return None
        self.replays, self._misses = self.replays + 1, 0
        return call.packing.filled(outs)

    def _plainly(
        self, kind: _Kind | None, given: Packed, root: nn.Module, args: Any, kwargs: Any, proceed: Proceed
    ) -> Any:
        self._misses += 1
        if self._misses >= _PATIENCE and not self.refused:
            self._give_up((kind and kind.why) or self._why or "its calls are never alike for long")
        if self.refused or kind is None or kind.why or kind.calls:
            return proceed(root, args, kwargs)
        assert self._steady is not None
        steady, call = self._steady, functools.partial(proceed, root, args, kwargs)
        out, sighting = watched(call, given.tensors, steady.own, self._device, steady.buffers)
        if not given.is_still(args, kwargs):
            sighting.why = sighting.why or "it changes the lists or dicts that it is given"
        if self._steady.holds():
            kind.note(sighting)
        return out

    def _give_up(self, reason: str) -> None:
        self.refused = reason
        self._kinds.clear()


class Alone:
    """Proof where nobody keeps a record: the limit alone counts."""

    failed = False

    def add(self, difference: float) -> None:
        self.failed = self.failed or not difference <= LIMIT


def replayed(root: Any) -> bool:
    """Whether calls of this module are replayed."""
    serving = _serving.get(root)
    own = serving() if serving is not None else None
    return own is not None and own.replays > 0


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    is_known = type(tensor) in (torch.Tensor, nn.Parameter)
    return is_known and tensor.layout is torch.strided and not tensor.is_complex() and not tensor.is_quantized


def forward_settings(device: torch.device) -> Any:
    return (
        *settings(),
        torch.is_autocast_enabled(device.type),
        torch.get_autocast_dtype(device.type),
        torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0,
    )


def has_room(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return free >= _ROOM * torch.cuda.max_memory_allocated(device)
