"""Where the host waits for the device, and where batches are moved to it, with the line of the script's own code."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hotlap.observe import events as at
from hotlap.observe import joint, stand_ins
from hotlap.observe.anatomy import Anatomy
from hotlap.observe.device_clock import DeviceClock, Mark
from hotlap.observe.ledger import Ledger, in_forked_child
from hotlap.observe.patch import Patch
from hotlap.observe.run import SyncFacts
from hotlap.observe.whose import LIBRARY, SCRIPT, is_ours, is_users, whose

clock = time.perf_counter

COPY, PAGEABLE = "copy", "pageable copy"  # a copy from pinned memory lets the host go on: only the other kind waits
_NAMES = {"__bool__": "if", "__float__": "float", "__int__": "int", "__index__": "index", "__repr__": "print"}
_NAMES |= {"__format__": "print", "__getitem__": "boolean index", "__setitem__": "boolean index"}
_SITES_KEPT = 4096
_ASKED = 8
_MASKS_AWAITED = 24  # steps
_OF_JOINTS = (joint.__file__, stand_ins.__file__, __file__)


@dataclass(frozen=True)
class Site:
    path: str
    line: int
    kind: str


class Waits:
    """Subscribes to waits and moves. Only the script's own thread counts, and of nested waits only the outermost."""

    def __init__(self, patch: Patch, ledger: Ledger, device: DeviceClock, mark: Callable[[], Mark | None]) -> None:
        self.sites: list[Site] = []
        self._ledger, self._device, self._mark = ledger, device, mark
        self._pinned: dict[Any, tuple[int, str]] = {}  # by line: how often it was asked, and what it said last
        self._thread, self._is_inside = threading.get_ident(), False
        self._numbers: dict[tuple[Any, int, str], int] = {}
        in_forked_child(self._leave)
        patch.at(patch.joints.host_waited, self._waited)
        patch.at(patch.joints.batch_moved, self._moved)
        self._masks, self._masks_since, self._has_masks = Patch(patch.joints), -1, False
        patch.on_undo(self._masks.undo)

    def device_is_used(self, steps: int) -> None:
        """Now masks are looked for too, which only wait where there is a device. That means a look at every index into
        a tensor, and data sets index all the time: a loop whose first steps had no mask is believed to have none."""
        if self._masks_since < 0:
            self._masks_since = steps
            self._masks.at(self._masks.joints.mask_waited, self._mask_waited)
        elif steps - self._masks_since >= _MASKS_AWAITED and not self._has_masks:
            self._masks.undo()

    def _mask_waited(self, proceed: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        self._has_masks = True
        return self._waited(proceed, name, *args, **kwargs)

    def _leave(self) -> None:
        self._thread = -1  # a loader worker's waits are its own affair

    def _waited(self, proceed: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if self._is_inside or threading.get_ident() != self._thread:
            return proceed(name, *args, **kwargs)
        self._is_inside = True
        start = clock()
        try:
            return proceed(name, *args, **kwargs)
        finally:
            end = clock()
            self._is_inside = False
            site = self._site(name, not args or is_on_device(args[0]))
            if site is not None:
                self._ledger.note(at.SYNC, site, start, end)

    def _moved(self, proceed: Any, name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_inside or threading.get_ident() != self._thread:
            return proceed(name, tensor, *args, **kwargs)
        was_there = is_on_device(tensor)
        before = None if was_there else self._mark()
        start = clock()
        moved = proceed(name, tensor, *args, **kwargs)
        end = clock()
        if was_there is is_on_device(moved):
            return moved
        to_host = was_there
        site = self._site("cpu" if to_host else "", True, tensor)
        if site is not None:
            number = self._ledger.note(at.SYNC if to_host else at.COPY, site, start, end)
            if before is not None:
                self._device.put(number, before, self._mark())
        return moved

    def _site(self, name: str, on_device: bool, copied: Any = None) -> int | None:
        """The number of the line that called; None where that was hotlap, or a library reading its own numbers."""
        caller: Any = sys._getframe(2)
        while caller.f_code.co_filename in _OF_JOINTS:  # the joint, and the method that was replaced
            caller = caller.f_back
        path = caller.f_code.co_filename
        if is_ours(path) or not (on_device or is_users(path)):
            return None
        frame = user_frame(caller)
        place = (frame.f_code, frame.f_lineno) if frame is not None else (None, 0)
        name = name or self._kind_of_copy(place, copied)
        key = (*place, name)
        number = self._numbers.get(key)
        if number is None:
            if len(self.sites) >= _SITES_KEPT:
                return -1
            number = self._numbers[key] = len(self.sites)
            path = frame.f_code.co_filename if frame is not None else ""
            self.sites.append(Site(path, key[1], _NAMES.get(name, name)))
        return number

    def _kind_of_copy(self, place: tuple[Any, int], copied: Any) -> str:
        """Whether the memory is pinned: asked of torch for a line's first copies only, since asking costs."""
        asked, kind = self._pinned.get(place, (0, ""))
        if asked < _ASKED:
            kind = COPY if copied.is_pinned() else PAGEABLE
            self._pinned[place] = asked + 1, kind
        return kind


def is_on_device(thing: Any) -> bool:
    """Never through the script's own `__torch_function__`. What is no tensor waits for the device if it waits."""
    import torch

    if type(thing) is torch.Tensor:
        return bool(thing.is_cuda)
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return bool(getattr(thing, "is_cuda", True))
    except Exception:
        return False


def sync_facts(sites: list[Site], events: list[at.Event], parts: Anatomy) -> list[SyncFacts]:
    """What each line cost in the training steps, in how many of them, and how often it came in evaluation."""
    found: dict[int, list[float]] = {}  # count, steps, seconds, the last step it was in, count in evaluation
    spans = iter([*parts.steps, None])
    step, number = next(spans), 0
    for event in sorted(events, key=lambda event: event.start):
        if event.kind not in (at.SYNC, at.COPY) or not 0 <= event.key < len(sites) or sites[event.key].kind == COPY:
            continue
        while step is not None and step.end <= event.start:
            step, number = next(spans), number + 1
        entry = found.setdefault(event.key, [0, 0, 0.0, -1, 0])
        if any(start <= event.start < end for start, end in parts.evaluations):
            entry[4] += 1
        elif step is not None and step.start <= event.start:
            entry[0] += 1
            entry[2] += event.end - event.start
            if entry[3] != number:
                entry[1], entry[3] = entry[1] + 1, number
    merged: dict[Site, list[float]] = {}
    for key, entry in found.items():  # one line in two functions' code, as after a reload
        total = merged.setdefault(sites[key], [0, 0, 0.0, 0, 0])
        total[:] = [a + b for a, b in zip(total, entry, strict=True)]
    return [
        SyncFacts(site.path, site.line, site.kind, int(count), int(steps), seconds, int(judged))
        for site, (count, steps, seconds, _, judged) in merged.items()
        if count or judged
    ]


def user_frame(frame: Any) -> Any:
    """The innermost frame of the script's own code; where there is none, of a library that is neither torch nor us."""
    library = None
    while frame is not None:
        owner = whose(frame.f_code.co_filename)
        if owner == SCRIPT:
            return frame
        if owner == LIBRARY and library is None:
            library = frame
        frame = frame.f_back
    return library
