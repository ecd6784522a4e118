"""Watching: subscribes to the joints, counts steps as they happen, and makes the record at the end.

The steady state costs a few clock readings a step. Device time is taken from events that are read only at the end."""

from __future__ import annotations

import mmap
import os
import resource
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from hotlap.observe import anatomy as at
from hotlap.observe.dataset_state import dataset_state
from hotlap.observe.facts import global_generators, loader_facts, optimizer_facts, root_facts
from hotlap.observe.patch import Patch
from hotlap.observe.run import Run, SyncFacts

clock = time.perf_counter

_EVENTS_KEPT = 200_000  # bounds the record however long the script runs
_LOSSES_KEPT = 4096
_DRAWS_PROBED = 5
_DRAWS_LOOKED_AT = (1, 2, 4, 8, 16, 32, 64, 128)
_SLOTS = 64


class Watch:
    """`on_step(count)` is called at each boundary between two steps, on the script's own thread."""

    def __init__(self, patch: Patch, on_step: Callable[[int], None] | None = None, waits: bool = False) -> None:
        self.steps = 0
        self._on_step = on_step
        self._launched = clock()
        self._cpu_before = _cpu_seconds()
        self._first_draw: float | None = None
        self._events: deque[Any] = deque(maxlen=_EVENTS_KEPT)
        self._losses: deque[Any] = deque(maxlen=_LOSSES_KEPT)
        self._loaders: dict[int, Any] = {}
        self._optimizers: dict[int, Any] = {}
        self._roots: dict[int, Any] = {}
        self._counts: dict[int, int] = {}
        self._random: dict[int, bool] = {}
        self._closures: set[int] = set()
        self._datasets: dict[int, int] = {}
        self._changing: set[int] = set()
        self._probes: dict[int, int] = {}
        self._trips = at.Trips()
        self._updating: dict[int, float] = {}  # the optimizers at work, since when
        self._syncs: dict[tuple[str, int], list[float]] = {}
        self._images = mmap.mmap(-1, 8 * _SLOTS)  # shared with forked workers
        self._cuda: Any = None
        self._compiles = False
        self._joints = joints = patch.joints
        patch.at(joints.loader_built, self._loader_built)
        patch.at(joints.loader_started, self._loader_started)
        patch.at(joints.batch_drawn, self._batch_drawn)
        patch.at(joints.image_opened, self._image_opened)
        patch.at(joints.optimizer_built, self._optimizer_built)
        patch.at(joints.root_found, self._root_found)
        patch.at(joints.root_called, self._root_called, depth=-1)
        patch.at(joints.loss_known, self._loss_known, depth=-1)
        patch.at(joints.weights_updating, self._weights_updating)
        patch.at(joints.weights_updated, self._weights_updated)
        patch.at(joints.compile_called, self._compile_called)
        if waits:
            patch.at(joints.host_waited, self._host_waited)
            patch.at(joints.batch_moved, self._batch_moved)

    # the loop, in its order --------------------------------------------------------------------------------------

    def _loader_built(self, proceed: Any, loader: Any, bound: Any) -> None:
        proceed(loader, bound)
        self._loaders[id(loader._index_sampler)] = loader

    def _loader_started(self, loader: Any) -> None:
        now = clock()
        key = id(loader._index_sampler)
        self._loaders.setdefault(key, loader)
        self._datasets.pop(key, None)  # between epochs it may change
        if self._trips.started(key):
            self._boundary()
        self._events.append((at.STARTED, key, now, now, None))

    def _batch_drawn(self, proceed: Any, iterator: Any) -> Any:
        key = id(iterator._index_sampler)
        if self._trips.asked(key):
            self._boundary()
        before = global_generators() if self._is_probed(key, iterator) else None
        mark = self._mark()
        start = clock()
        if self._first_draw is None:
            self._first_draw = start
        try:
            batch = proceed(iterator)
        except StopIteration:
            self._look_at_dataset(key, iterator)
            self._trips.ended(key)
            self._events.append((at.END, key, start, clock(), mark))
            raise
        if iterator._num_yielded in _DRAWS_LOOKED_AT:
            self._look_at_dataset(key, iterator)
        self._trips.drew(key)
        self._counts[key] = self._counts.get(key, 0) + 1
        self._events.append((at.DRAW, key, start, clock(), mark))
        if before is not None:
            self._random[key] = self._random.get(key, False) or before != global_generators()
        return batch

    def _look_at_dataset(self, key: int, iterator: Any) -> None:
        """Whether the data set has changed since the first batch of this epoch, in the reading or by the loop."""
        now = dataset_state(iterator._dataset)
        if self._datasets.setdefault(key, now) != now:
            self._changing.add(key)

    def _is_probed(self, key: int, iterator: Any) -> bool:
        """Some draws of each loader, but never the first of an epoch: that starts the sampler, which draws a seed."""
        if iterator._num_workers or not iterator._num_yielded or self._probes.get(key, 0) >= _DRAWS_PROBED:
            return False
        self._probes[key] = self._probes.get(key, 0) + 1
        return True

    def _image_opened(self, proceed: Any, *args: Any, **kwargs: Any) -> Any:
        slot = os.getpid() % _SLOTS * 8
        struct.pack_into("Q", self._images, slot, struct.unpack_from("Q", self._images, slot)[0] + 1)
        return proceed(*args, **kwargs)

    def _root_found(self, root: Any) -> None:
        self._roots[id(root)] = root

    def _root_called(self, proceed: Any, root: Any, args: Any, kwargs: Any) -> Any:
        self._counts[id(root)] = self._counts.get(id(root), 0) + 1
        trains = root.training and sys.modules["torch"].is_grad_enabled()
        if not trains:
            self._trips.judged()
        start = clock()
        try:
            return proceed(root, args, kwargs)
        finally:
            self._events.append((at.FORWARD if trains else at.JUDGED, id(root), start, clock(), None))

    def _loss_known(self, proceed: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(tensors, "numel", lambda: 0)() == 1:
            self._losses.append(tensors.detach())
        self._closures.update(self._updating)
        start = clock()
        try:
            return proceed(tensors, *args, **kwargs)
        finally:
            self._events.append((at.BACKWARD, 0, start, clock(), None))
            self._trips.trained()

    def _optimizer_built(self, proceed: Any, optimizer: Any, bound: Any) -> None:
        proceed(optimizer, bound)
        self._optimizers[id(optimizer)] = optimizer

    def _weights_updating(self, optimizer: Any) -> None:
        self._optimizers.setdefault(id(optimizer), optimizer)
        self._updating[id(optimizer)] = clock()

    def _weights_updated(self, optimizer: Any) -> None:
        key, now = id(optimizer), clock()
        self._events.append((at.UPDATE, key, self._updating.pop(key, now), now, None))
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._first_draw is None:
            self._first_draw = now
        if self._trips.updated(key):
            self._boundary()

    def _host_waited(self, proceed: Any, name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return self._timed(at.SYNC, proceed, name, tensor, args, kwargs)

    def _batch_moved(self, proceed: Any, name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return self._timed(at.COPY, proceed, name, tensor, args, kwargs)

    def _timed(self, kind: int, proceed: Any, name: str, tensor: Any, args: Any, kwargs: Any) -> Any:
        start = clock()
        try:
            return proceed(name, tensor, *args, **kwargs)
        finally:
            end = clock()
            self._events.append((kind, 0, start, end, None))
            if kind == at.SYNC:
                self._blame(end - start)

    def _blame(self, seconds: float) -> None:
        frame: Any = sys._getframe(2)
        while frame is not None and _is_ours(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            entry = self._syncs.setdefault((frame.f_code.co_filename, frame.f_lineno), [0, 0.0])
            entry[0] += 1
            entry[1] += seconds

    def _compile_called(self) -> None:
        self._compiles = True

    def _boundary(self) -> None:
        self.steps += 1
        self._updating.clear()  # a step of an optimizer that raised
        if self._on_step is not None:
            self._on_step(self.steps)

    def _mark(self) -> Any:
        """A device event at this point of the device's own queue; nothing waits for it before the end."""
        if self._cuda is None:
            torch = sys.modules["torch"]
            if not torch.cuda.is_initialized():
                return None
            self._cuda = torch.cuda
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    # the record ------------------------------------------------------------------------------------------------

    def record(self, withdrawn: list[str] | None = None) -> Run:
        import torch

        wall, cpu = clock() - self._launched, _cpu_seconds() - self._cpu_before
        parts = at.anatomy(self._resolved())
        optimizers = list(self._optimizers.values())
        parameters = {id(p): p for o in optimizers for group in o.param_groups for p in group["params"]}
        device = next((p.device.type for p in parameters.values()), "cpu")
        cache = sys.modules.get("hotlap.parts.image_cache")
        return Run(
            torch=torch.__version__,
            device=device,
            loaders=[
                loader_facts(
                    loader,
                    draws=self._counts.get(key, 0),
                    trains=key in parts.training_loaders,
                    draws_random=self._random.get(key),
                    changes=key in self._changing,
                )
                for key, loader in self._loaders.items()
            ],
            optimizers=[optimizer_facts(o, self._counts.get(id(o), 0), id(o) in self._closures) for o in optimizers],
            roots=[root_facts(r, self._joints.roots, self._counts.get(id(r), 0)) for r in self._roots.values()],
            syncs=[SyncFacts(path, line, int(n), s) for (path, line), (n, s) in self._syncs.items()],
            step_seconds=[step.seconds for step in parts.steps],
            epoch_starts=[number for number, step in enumerate(parts.steps) if step.starts_epoch],
            step_parts=[list(step.parts) for step in parts.steps],
            steps=self.steps,
            evaluation_seconds=parts.evaluation_seconds,
            losses=[float(loss) for loss in self._losses],
            images_opened=sum(struct.unpack(f"{_SLOTS}Q", self._images)),
            image_cache_hits=cache.hits() if cache is not None else 0,
            peak_bytes=_peak_bytes(torch),
            parameter_bytes=sum(p.numel() * p.element_size() for p in parameters.values()),
            wall_seconds=wall,
            cpu_seconds=cpu,
            queue_seconds=_queue_seconds(),
            startup_seconds=(self._first_draw or clock()) - self._launched,
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            threads=torch.get_num_threads(),
            device_capability=tuple(torch.cuda.get_device_capability()) if device == "cuda" else (),
            withdrawn=withdrawn or [],
            script_compiles=self._compiles,
        )

    def _resolved(self) -> list[at.Event]:
        """Events with device marks turned into seconds since the first mark."""
        if self._cuda is not None:
            self._cuda.synchronize()
        marks = [event[4] for event in self._events if event[4] is not None]
        return [
            at.Event(*event[:4], marks[0].elapsed_time(event[4]) / 1e3 if event[4] is not None else None)
            for event in self._events
        ]


def _is_ours(path: str) -> bool:
    """Whether a frame's file belongs to hotlap or torch, not to the user."""
    folders = (os.path.dirname(os.path.dirname(__file__)), os.path.dirname(sys.modules["torch"].__file__ or ""))
    return path.startswith("<") or any(path.startswith(folder + os.sep) for folder in folders)


def _cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _peak_bytes(torch: Any) -> int:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _queue_seconds() -> float:
    """How long threads of this process stood runnable but without a core: the sign of a disturbed trial."""
    total = 0
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/schedstat") as file:
                total += int(file.read().split()[1])
    except (OSError, IndexError):
        return 0.0
    return total / 1e9
