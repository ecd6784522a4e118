"""Watching: subscribes to the joints, counts steps as they happen, and makes the record at the end.

The steady state costs a few clock readings a step."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident, main_thread
from typing import Any

from hotlap.observe import events as at
from hotlap.observe.compiling import compiled_facts
from hotlap.observe.device_clock import DeviceClock, Mark
from hotlap.observe.inventory import Inventory
from hotlap.observe.ledger import Ledger, in_forked_child
from hotlap.observe.loaders import DRAWS_LOOKED_AT
from hotlap.observe.opened_images import OpenedImages
from hotlap.observe.patch import Patch
from hotlap.observe.process import Process
from hotlap.observe.record import Snapshot, complete
from hotlap.observe.run import Run
from hotlap.observe.trips import Trips
from hotlap.observe.waits import Waits

clock = time.perf_counter

_LOSSES_KEPT = 4096
_UPDATES_LOOKED_AT = 8  # for gradients: generator and discriminator take turns
_ALL_MARKED, _MARKED = 16, 8  # the first steps, then one in so many: a mark costs the host some microseconds
_OWN_SECONDS = 20e-6  # what takes hotlap longer than this between two steps is cut out of them


class Watch:
    """`on_step(count)` is called at each boundary between two steps, on the script's own thread. With `closely` also
    waits and copies are recorded, and the device's clock at every joint; with a `folder` the events lie there, for
    whoever comes after a kill."""

    def __init__(
        self, patch: Patch, on_step: Callable[[int], None] | None = None, closely: bool = False, folder: str = ""
    ) -> None:
        self.steps = 0
        self.trouble = ""  # the first error of our own
        self._on_step = on_step
        self._thread, self._has_trained = get_ident(), False
        self._draws_with_gradients = False
        self._process = Process()
        self._first_draw: float | None = None
        self.ledger = Ledger(os.path.join(folder, "events") if folder else "")
        self._device = DeviceClock(self.ledger)
        self._closely, self._marks = closely, closely  # whether this step is marked at every joint
        self._losses: deque[Any] = deque(maxlen=_LOSSES_KEPT)
        self._inventory = Inventory(patch.joints.roots)
        self._loaders = self._inventory.loaders
        self._trips = Trips()
        self._updating: dict[int, tuple[float, Any]] = {}  # the optimizers at work, since when
        self._updates = 0
        self._refresh_at = 8
        self._images = OpenedImages()
        self._compiles = self._anomaly_mode = False
        self._joints = joints = patch.joints
        patch.at(joints.loader_built, self._loader_built)
        patch.at(joints.loader_started, self._loader_started)
        patch.at(joints.batch_drawn, self._batch_drawn)
        patch.at(joints.image_opened, self._images.opened)
        patch.at(joints.image_read, self._images.opened)
        patch.at(joints.optimizer_built, self._optimizer_built)
        patch.at(joints.root_found, self._inventory.add_root)
        patch.at(joints.root_called, self._root_called, depth=-1)
        patch.at(joints.loss_known, self._loss_known, depth=-1)
        patch.at(joints.weights_updating, self._weights_updating)
        patch.at(joints.weights_updated, self._weights_updated)
        patch.at(joints.compile_called, self._compile_called)
        if closely:
            patch.at(joints.method_called, self._root_called, depth=-1)
        self._waits = Waits(patch, self.ledger, self._device, self._mark) if closely else None
        in_forked_child(self._leave)

    def _leave(self) -> None:
        """A child that trains itself is none of ours: it must neither be counted nor be stopped."""
        self._on_step = None

    # the loop, in its order --------------------------------------------------------------------------------------

    def _loader_built(self, proceed: Any, loader: Any, bound: Any) -> None:
        proceed(loader, bound)
        self._loaders.add(loader)

    def _loader_started(self, loader: Any) -> None:
        if get_ident() != self._thread:
            return
        now = clock()
        key = id(loader._index_sampler)
        self._own(self._loaders.describe, key, loader)
        if key not in self._loaders.no_workers:  # before the first draw, which may open files
            self._own(self._loaders.ask_for_workers, key, loader)
        self._loaders.forget_dataset(key)
        if self._trips.started(key):
            self._boundary()
        self.ledger.note(at.STARTED, key, now, now)

    def _batch_drawn(self, proceed: Any, iterator: Any) -> Any:
        if get_ident() != self._thread:  # a thread that loads ahead: the loop does not wait here
            return proceed(iterator)
        key = id(iterator._index_sampler)
        if self._trips.asked(key):
            self._boundary()
        before = self._loaders.generators(key, iterator)
        mark = self._device.mark()
        start = clock()
        if self._first_draw is None:
            self._first_draw = start
        try:
            batch = proceed(iterator)
        except StopIteration:
            self._trips.ended(key)
            self._device.put(self.ledger.note(at.END, key, start, clock()), mark)
            self._own(self._loaders.look_at_dataset, key, iterator)
            raise
        end = clock()
        self._trips.drew(key)
        self._inventory.uses[key] += 1
        self._device.put(self.ledger.note(at.DRAW, key, start, end), mark, self._mark())
        if sys.modules["torch"].is_grad_enabled():
            self._draws_with_gradients = True
        elif self._draws_with_gradients:  # drawn for an evaluation, whatever calls the model there
            self._trips.judged()
            self.ledger.note(at.JUDGED, 0, end, end)
        if iterator._num_yielded in DRAWS_LOOKED_AT:
            self._own(self._loaders.look_at_dataset, key, iterator)
        if key not in self._loaders.batch_bytes:
            self._own(self._loaders.weigh, key, batch)
        if before is not None:
            self._own(self._loaders.compare_generators, key, before)
        return batch

    def _root_called(self, proceed: Any, root: Any, args: Any, kwargs: Any) -> Any:
        if get_ident() != self._thread and self._has_trained:
            return proceed(root, args, kwargs)
        self._inventory.uses[id(root)] += 1
        trains = root.training and sys.modules["torch"].is_grad_enabled()
        if not trains:
            self._trips.judged()
        mark = self._mark()
        start = clock()
        try:
            return proceed(root, args, kwargs)
        finally:
            number = self.ledger.note(at.FORWARD if trains else at.JUDGED, id(root), start, clock())
            self._device.put(number, mark, self._mark())

    def _trains_here(self) -> bool:
        """The thread that trains first is the one that is watched."""
        if not self._has_trained:
            self._thread, self._has_trained = get_ident(), True
        return get_ident() == self._thread

    def _loss_known(self, proceed: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._trains_here():
            return proceed(tensors, *args, **kwargs)
        if not self._closely and getattr(tensors, "numel", lambda: 0)() == 1:
            self._losses.append(tensors.detach())
        self._inventory.closures.update(self._updating)
        self._anomaly_mode |= sys.modules["torch"].is_anomaly_enabled()
        mark = self._mark()
        start = clock()
        try:
            result = proceed(tensors, *args, **kwargs)
        finally:
            self._device.put(self.ledger.note(at.BACKWARD, 0, start, clock()), mark, self._mark())
            self._trips.trained()
        if self._first_draw is None:
            self._first_draw = start
        if self._trips.went_back():
            self._boundary()
        return result

    def _optimizer_built(self, proceed: Any, optimizer: Any, bound: Any) -> None:
        proceed(optimizer, bound)
        self._inventory.add_optimizer(optimizer)

    def _weights_updating(self, optimizer: Any) -> None:
        if not self._trains_here():
            return
        self._inventory.add_optimizer(optimizer)
        self._updates += 1
        if self._updates <= _UPDATES_LOOKED_AT:
            self._own(self._joints.roots.note_gradients)
        if self._updates <= 2:
            self._own(self.refresh)
        self._updating[id(optimizer)] = clock(), self._mark()

    def _weights_updated(self, optimizer: Any) -> None:
        if not self._trains_here():
            return
        key, now = id(optimizer), clock()
        start, mark = self._updating.pop(key, (now, None))
        number = self.ledger.note(at.UPDATE, key, start, now)
        self._device.put(number, mark, self._mark() if self._trips.trainers else self._device.mark())
        self._inventory.uses[key] += 1
        if self._first_draw is None:
            self._first_draw = now
        if self._trips.updated(key):
            self._boundary()

    def _compile_called(self) -> None:
        self._compiles = True

    def _mark(self) -> Mark | None:
        return self._device.mark() if self._marks else None

    def _boundary(self) -> None:
        self.steps += 1
        self._marks = self._closely and (self.steps < _ALL_MARKED or self.steps % _MARKED == 0)
        self._updating.clear()  # a step of an optimizer that raised
        if self.steps == self._refresh_at:
            self._refresh_at *= 4
            self._own(self.refresh)
        if self._on_step is not None:
            self._own(self._on_step, self.steps)

    def _own(self, action: Callable[..., None], *args: Any) -> None:
        """What hotlap does between two steps is not the script's time."""
        start = clock()
        try:
            action(*args)
        except Exception as error:  # never the script's trouble
            self.trouble = self.trouble or f"{type(error).__name__}: {error}"
        finally:
            end = clock()
            if end - start > _OWN_SECONDS:
                self.ledger.note(at.OWN, 0, start, end)

    # the record ------------------------------------------------------------------------------------------------

    @property
    def roots(self) -> list[Any]:
        return self._inventory.roots

    @property
    def optimizers(self) -> list[Any]:
        return self._inventory.optimizers

    @property
    def trains_in_main_thread(self) -> bool:
        return self._thread == main_thread().ident

    @property
    def device(self) -> str:
        return self._inventory.device

    @property
    def compiles(self) -> bool:
        return self._compiles

    def refresh(self) -> None:
        """Write down what the script's objects are, while they live."""
        self._inventory.refresh()
        if self._waits is not None and self.device != "cpu" and not self._compiles:
            self._waits.device_is_used(self.steps)

    def snapshot(self, withdrawn: list[str] | None = None) -> Snapshot:
        """All but the steps, and without a wait for the device."""
        cache = sys.modules.get("hotlap.parts.file_pool")
        loaders = self._inventory.loader_facts()
        run = Run(
            loaders=list(loaders.values()),
            steps=self.steps,
            images_opened=self._images.count,
            data_folder=self._images.folder.path,
            image_cache_hits=cache.hits() if cache is not None else 0,
            startup_seconds=(self._first_draw or clock()) - self._process.since,
            withdrawn=withdrawn or [],
            compared=[one.facts for one in self._joints.comparisons if one.facts.count],
            script_compiles=self._compiles,
            compiled=compiled_facts(),
            anomaly_mode=self._anomaly_mode,
            trouble=self.trouble,
            **self._inventory.facts(),
            **self._process.facts(self.device),
        )
        return Snapshot(run, list(loaders), list(self._waits.sites) if self._waits is not None else [])

    def record(self, withdrawn: list[str] | None = None) -> Run:
        import torch

        self.refresh()
        self._device.settle(wait=True)
        losses = torch.stack([loss.reshape(()).double() for loss in self._losses]).tolist() if self._losses else []
        return dataclasses.replace(complete(self.snapshot(withdrawn), self.ledger.events()), losses=losses)
