"""An optimizer's whole update, recorded once as a CUDA graph and replayed with a single launch.

    from hotlap.parts.captured_update import CapturedUpdate

    captured = CapturedUpdate(optimizer)
    captured.step(optimizer.step)  # in place of the update; plain until gradients keep their places
    captured.undo()  # plain again

A graph reads and writes fixed addresses, so it is replayed only where weights, gradients, state and settings are those
it was recorded with; in any other step the update runs as it is. Learning rates stay plain numbers for the script: the
graph reads a copy of them on the device. Checkpoints are written and read as a plain optimizer's."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hotlap.parts.graph_recorder import GraphRecorder, Recorder
from hotlap.parts.interruptions import pass_on
from hotlap.parts.update_grounds import (
    READS_LR,
    UpdateGrounds,
    device_of,
    in_main_memory,
    is_same,
    kind_of,
    manner_of,
    no_number,
    state_names,
    state_of,
    unfit,
    weights_of,
)

if TYPE_CHECKING:
    from hotlap.parts.compiled_form import CompiledForm

_STEADY = 3  # updates with everything in the same places before one is recorded
_GRAPHS = 4  # places that gradients may take in turns
_PATIENCE = 32  # updates in a row without a replay, after which no more is tried
_TRIED = 16  # recordings after which each must have been worth four replays
_SCALING = ("grad_scale", "found_inf")  # what a GradScaler hands to an update that undoes its scale itself

serving: weakref.WeakKeyDictionary[torch.optim.Optimizer, Any] = weakref.WeakKeyDictionary()  # who does its updates


@dataclass
class _Recording:
    replay: Callable[[], object]
    state: list[Any]  # what it writes to; kept, so that no other object gets the same identity
    weights: list[torch.Tensor]
    grounds: UpdateGrounds


class CapturedUpdate:
    """The updates of one optimizer. `refused` says why it has given up; `replays` how often a graph did the work."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, recorder: Recorder | None = None, form: CompiledForm | None = None
    ) -> None:
        """`form`: the update in another form, which is recorded in place of the plain one."""
        self._optimizer = weakref.ref(optimizer, self._forget)
        self._recorder, self._form = recorder or GraphRecorder(), form
        self.replays, self.refused = 0, form.refused if form is not None else unfit(optimizer)
        self._numbers: dict[Any, torch.Tensor] = {}  # ours: learning rates by group, and what a GradScaler hands over
        self._written: dict[Any, float] = {}
        self._graphs: dict[Any, _Recording] = {}
        self._latest: _Recording | None = None  # the one that was replayed last, which mostly fits again
        self._sightings: Counter[Any] = Counter()
        self._moved: set[str] = set()  # names of what the script's state has in main memory
        self._names: Any = None
        self._chosen: list[Any] = []  # settings of the update before
        self._is_recordable = False
        self._rehearsed: set[Any] = set()
        self._misses = self._recordings = 0
        self._why = ""
        self._hooks = [
            optimizer.register_state_dict_post_hook(self._saving),
            optimizer.register_load_state_dict_pre_hook(self._loading),
        ]
        serving[optimizer] = self

    def step(
        self, plain: Callable[[], Any], has_closure: bool = False, prepare: Callable[[], object] = lambda: None
    ) -> Any:
        """`prepare` is called first, unless everything is as it was in the update before."""
        optimizer = self._optimizer()
        latest = None if has_closure or self._recorder.is_busy else self._latest
        if optimizer is not None and latest is not None and latest.grounds.hold(optimizer):
            return self._replay(optimizer, latest)
        prepare()
        if optimizer is None or self.refused:
            return plain()
        if has_closure:
            self._why = "each update calls the model itself (a closure)"
        places = None if has_closure else self._places(optimizer)
        recording = self._graphs.get(places) if places is not None else None
        if recording is not None and is_same(recording.state, state_of(optimizer)):
            return self._replay(optimizer, recording)
        out = self._slowly(optimizer, plain, places)
        self._names = state_names(optimizer)
        if self._misses >= _PATIENCE:
            self._give_up(optimizer, self._why or "gradients never come to lie where they lay before")
        return out

    def undo(self) -> None:
        optimizer = self._optimizer()
        for hook in self._hooks:
            hook.remove()
        if optimizer is not None:
            serving.pop(optimizer, None)
            self._leave(optimizer)
        self.refused = self.refused or "undone"

    def _slowly(self, optimizer: Any, plain: Callable[[], Any], places: Any) -> Any:
        """An update that no graph is there for; it may be the one to record."""
        self._misses += 1
        if places is None:
            self._leave(optimizer)
            return plain()
        if len(self._sightings) > 16 * _GRAPHS:
            self._sightings.clear()
        self._sightings[places] += 1
        is_steady = self._sightings[places] >= _STEADY and self._names == state_names(optimizer)
        if not is_steady:
            return self._as_recorded(optimizer, plain)() if self._is_recordable else plain()
        self._enter(optimizer)
        manner = manner_of(optimizer) if self._form is not None else None
        return (self._record if manner in self._rehearsed else self._rehearse)(optimizer, plain, manner, places)

    def _rehearse(self, optimizer: Any, plain: Callable[[], Any], manner: Any, places: Any) -> Any:
        """Kernels are made and loaded when first used, which a recording does not allow."""
        update = self._as_recorded(optimizer, plain)
        if self._form is None:
            self._rehearsed.add(manner)
            return update()
        if self._form.proven(optimizer, self._as_recorded(optimizer, partial(self._form, optimizer)), update):
            self._rehearsed.add(manner)
        elif self._form.refused:
            self._give_up(optimizer, self._form.refused)
        return None

    def _record(self, optimizer: Any, plain: Callable[[], Any], manner: Any, places: Any) -> Any:
        if self._recordings >= _TRIED and self.replays < 4 * self._recordings:
            self._give_up(optimizer, "gradients or settings take too many places in turns")
            return plain()
        parameters = [p for p in weights_of(optimizer) if p.grad is not None]
        update = self._as_recorded(optimizer, partial(self._form, optimizer) if self._form is not None else plain)
        try:
            replay = self._recorder.record(update, parameters[0].device)
        except Exception as error:  # whatever torch raises where nothing is carried out
            pass_on(error)
            self._give_up(optimizer, f"the update cannot be recorded: {type(error).__name__}: {error}".splitlines()[0])
            return plain()
        self._recordings += 1
        if len(self._graphs) >= _GRAPHS and places not in self._graphs:
            oldest = next(iter(self._graphs))
            del self._graphs[oldest], self._sightings[oldest]
        told = [self._told(optimizer, group) for group in optimizer.param_groups]
        grounds = UpdateGrounds(optimizer, told, _SCALING)
        self._graphs[places] = _Recording(replay, state_of(optimizer), parameters, grounds)
        return self._replay(optimizer, self._graphs[places])

    def _replay(self, optimizer: Any, recording: _Recording) -> None:
        self._hand_over(optimizer)
        recording.replay()
        torch.autograd.graph.increment_version(recording.weights)  # autograd's guard against weights changed too early
        self.replays, self._misses, self._latest = self.replays + 1, 0, recording

    def _places(self, optimizer: Any) -> Any:
        """Everything that must be the same for a graph to be right, beside the state; None where none can be."""
        if self._recorder.is_busy:
            self._why = "the script records its updates itself"
            return None
        found: list[Any] = [getattr(optimizer, name, None) is not None for name in _SCALING]
        devices, chosen = set(), list[Any]()
        for group in optimizer.param_groups:
            if why := no_number(group["lr"]):
                self._why = why
                return None
            told = self._told(optimizer, group)
            chosen += [(name, value) for name, value in group.items() if name not in told]
            for p in group["params"]:
                grad = p.grad
                if grad is None:
                    found.append(None)
                    continue
                if grad.layout is not torch.strided or grad.is_complex():
                    self._why = "gradients are sparse or complex"
                    return None
                if p.dtype is torch.float64:
                    self._why = "it counts in float32 then, which is too coarse for weights in float64"
                    return None
                devices.add(p.device)
                found += (p.data_ptr(), p.stride(), grad.data_ptr(), grad.stride())
        if len(devices) != 1 or next(iter(devices)).type != self._recorder.device:
            self._why = f"the parameters are not all on one {self._recorder.device} device"
            return None
        places = (*found, *chosen)
        try:
            hash(places)
        except TypeError:
            self._why = "a group of parameters has settings that cannot be told apart"
            return None
        pairs = zip(chosen, self._chosen, strict=False)
        changed = [name for (name, value), (_, old) in pairs if hash(value) != hash(old)]  # no tensor is compared
        self._chosen = chosen
        self._why = f"{changed[0]} changes with each update, which a recording cannot follow" if changed else ""
        return places

    def _told(self, optimizer: Any, group: dict[str, Any]) -> tuple[str, ...]:
        """What a graph need not have in it for good."""
        return ("params", "lr") if self._reads_lr(optimizer, group) else ("params",)

    def _reads_lr(self, optimizer: Any, group: dict[str, Any]) -> bool:
        """Whether this update takes its learning rate from the device; else one is recorded for each value."""
        kind, is_batched = kind_of(optimizer), group["foreach"] is not False or self._form is not None
        return bool(group.get("fused")) or kind in ("Adam", "AdamW") or (is_batched and kind in READS_LR)

    def _hand_over(self, optimizer: Any) -> None:
        """The numbers of this step, to where the graph reads them."""
        for number, group in enumerate(optimizer.param_groups):
            if number not in self._numbers:
                self._numbers[number] = self._recorder.scalar(group["lr"], device_of(optimizer))
            elif self._written[number] != group["lr"]:
                self._numbers[number].fill_(group["lr"])
            self._written[number] = group["lr"]
        for name in _SCALING:
            given = getattr(optimizer, name, None)
            if given is not None and name not in self._numbers:
                self._numbers[name] = self._recorder.scalar(given, device_of(optimizer))
            elif given is not None:
                self._numbers[name].copy_(given)

    def _as_recorded(self, optimizer: Any, plain: Callable[[], Any]) -> Callable[[], Any]:
        """The update with its numbers on the device, in the form that can be recorded."""

        def update() -> Any:
            with self._numbers_on_device(optimizer):
                return plain()

        self._hand_over(optimizer)
        return update

    @contextmanager
    def _numbers_on_device(self, optimizer: Any) -> Iterator[None]:
        flags = self._recorder.flags
        old = [{name: group[name] for name in ("lr", *flags) if name in group} for group in optimizer.param_groups]
        given = {name: getattr(optimizer, name) for name in _SCALING if getattr(optimizer, name, None) is not None}
        for number, group in enumerate(optimizer.param_groups):
            group.update({name: value for name, value in flags.items() if name in group})
            if self._reads_lr(optimizer, group):
                group["lr"] = self._numbers[number]
        vars(optimizer).update({name: self._numbers[name] for name in given})
        try:
            yield
        finally:
            vars(optimizer).update(given)
            for group, values in zip(optimizer.param_groups, old, strict=True):
                group.update(values)

    def _enter(self, optimizer: Any) -> None:
        """What an optimizer counts in main memory goes to the device."""
        if self._is_recordable:
            return
        self._is_recordable = True
        for p in weights_of(optimizer):
            for name, value in optimizer.state.get(p, {}).items():
                if isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_cpu:
                    optimizer.state[p][name] = self._recorder.scalar(value, p.device)
                    self._moved.add(name)

    def _leave(self, optimizer: Any) -> None:
        self._drop()
        self._is_recordable = False
        for state in optimizer.state.values():
            state.update(in_main_memory(state, self._moved))
        self._moved.clear()

    def _forget(self, gone: Any) -> None:
        """Weights are not kept alive for an optimizer that the script has dropped."""
        self._drop()

    def _drop(self) -> None:
        self._graphs.clear()
        self._latest = None

    def _give_up(self, optimizer: Any, reason: str) -> None:
        self._leave(optimizer)
        self.refused = reason

    def _saving(self, optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        entries = state["state"].items()
        return {**state, "state": {key: {**one, **in_main_memory(one, self._moved)} for key, one in entries}}

    def _loading(self, optimizer: Any, state: dict[str, Any]) -> None:
        self._leave(optimizer)
        self._recordings = self._misses = 0


def replayed(optimizer: Any) -> bool:
    """Whether updates of this optimizer are replayed."""
    own = serving.get(optimizer)
    return own is not None and own.replays > 0
