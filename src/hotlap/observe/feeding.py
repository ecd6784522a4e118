"""How batches are made: what the processes that make them do meanwhile, and how many wait to be drawn.

Each process keeps its own figures and leaves them in a folder, as one small file, so that they can be read from outside
also when the script was killed. Forked workers inherit what is attached here; others cannot be looked into."""

from __future__ import annotations

import functools
import gc
import json
import linecache
import os
import random
import sys
import time
import weakref
from _thread import get_ident, start_new_thread  # bare threads: nothing to join, no locks to hold across a fork
from collections.abc import Callable, Collection
from pathlib import Path
from types import CodeType
from typing import Any

from hotlap.observe.batches import batch_samples, ready_batches
from hotlap.observe.feed_ledger import LOOKED_AT, FeedLedger
from hotlap.observe.feed_record import feed_facts
from hotlap.observe.meters import Meter, Reading, resident_bytes, shm_room, thread_asked_bytes
from hotlap.observe.patch import Patch
from hotlap.observe.scrutiny_facts import FeedFacts
from hotlap.observe.stacks import stack_below

clock = time.perf_counter

_SAMPLE_SECONDS = 0.005  # on average
_SWITCH_SECONDS = 0.0001  # how soon a thread that makes a batch lets the sampler in
_WRITE_SECONDS = 0.5
_PATIENCE_SECONDS = 5.0  # with a disk that does not come to an end


class Feeding:
    def __init__(self, patch: Patch, folder: str) -> None:
        from torch.utils.data._utils import fetch

        self._folder = folder
        self._process: _Process | None = None
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            patch.set(kind, "fetch", self._watched(kind.fetch))
        self._code: CodeType = fetch._MapDatasetFetcher.fetch.__code__  # the wrapper's, the same for both
        patch.at(patch.joints.batch_drawn, self._batch_drawn, depth=-1)  # outside what others time
        patch.on_undo(self._leave)

    def facts(self, datasets: Collection[int] | None = None) -> FeedFacts:
        """Of these data sets, by `id`, or of all: those that are only evaluated on are not what training waits for."""
        if self._process is not None:
            self._process.write_last()
        return feed_facts(self._folder, datasets)

    def _watched(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def fetch(fetcher: Any, possibly_batched_index: Any) -> Any:
            process, thread = self._here(), get_ident()
            if thread in process.making or process.ledger(_dataset(fetcher)).passes():
                return original(fetcher, possibly_batched_index)  # in the first case a data set that draws itself
            task = process.begin(thread, fetcher)
            collate = fetcher.collate_fn
            fetcher.collate_fn = _Collating(collate, task)
            try:
                batch = original(fetcher, possibly_batched_index)
            except BaseException:
                process.end(thread, task, 0)
                raise
            finally:
                fetcher.collate_fn = collate
            process.end(thread, task, task.weight)
            task.ledger.made(batch_samples(fetcher, possibly_batched_index, batch), task.weight)
            return batch

        return fetch

    def _batch_drawn(self, proceed: Any, iterator: Any) -> Any:
        workers = getattr(iterator, "_num_workers", 0)
        if not workers and iterator._num_yielded > LOOKED_AT:
            return proceed(iterator)
        depth = ready_batches(iterator) if workers else 0
        batch = proceed(iterator)
        process = self._here()
        ledger = process.ledger(iterator._dataset)
        if workers:
            ledger.drew(iterator, depth)
        if len(ledger.batch_bytes) < LOOKED_AT:
            ledger.look_at(batch)
        process.told()
        return batch

    def _here(self) -> _Process:
        """This process's figures; a forked worker starts its own."""
        pid = os.getpid()
        if self._process is None or self._process.pid != pid:
            if self._process is not None:
                self._process.close()  # the parent's, as inherited
            self._process = _Process(pid, self._folder, self._code)
        return self._process

    def _leave(self) -> None:
        if self._process is not None and self._process.pid == os.getpid():
            self._process.stop()
            self._process = None


class _Task:
    """A batch in the making."""

    __slots__ = ("before", "collate_seconds", "ledger", "since", "weight")

    def __init__(self, ledger: FeedLedger, weight: int, before: Reading | None) -> None:
        self.ledger, self.weight, self.before = ledger, weight, before
        self.collate_seconds = 0.0
        self.since = clock()


class _Collating:
    """Stands for a collate function while one batch is made. Its time is taken by the clock: samples favour it, since
    it lets go of the interpreter's lock for longer than the small steps before it do."""

    __slots__ = ("_collate", "_task")

    def __init__(self, collate: Any, task: _Task) -> None:
        self._collate, self._task = collate, task

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = clock()
        try:
            return self._collate(*args, **kwargs)
        finally:
            self._task.collate_seconds += clock() - start


def _frame_of(thread: int) -> Any:
    """Python before 3.13 waits for itself for ever, and the script with it, if the collector comes in while it looks at
    all threads and finds something that belongs to one."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        if collects:
            gc.enable()


def _dataset(fetcher: Any) -> Any:
    """The script's own, where something of ours stands before it."""
    return getattr(fetcher.dataset, "__wrapped__", fetcher.dataset)


class _Process:
    """The figures of this process, and the thread that looks at what is going on in it."""

    def __init__(self, pid: int, folder: str, code: CodeType) -> None:
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        self.pid, self.worker = pid, -1 if info is None else info.id
        self.making: dict[int, _Task] = {}
        self._code = code
        self._ledgers: dict[int, FeedLedger] = {}
        self._path = os.path.join(folder, f"feed-{pid}-{time.monotonic_ns()}.json")  # pids come again
        self._meter = Meter()
        self._written = float("-inf")
        self._is_changed = self._is_over = self._has_started = self._is_sampling = False
        self._is_being_written = self._is_held = False  # by the sampler; from writing
        self._failed = ""
        self._own_asked = 0  # bytes the sampler read itself
        self._switch_seconds = _SWITCH_SECONDS
        self._shm_free = sys.maxsize
        self._at_exit: Any = None

    def ledger(self, dataset: Any) -> FeedLedger:
        found = self._ledgers.get(id(dataset))
        if found is None:
            found = self._ledgers[id(dataset)] = FeedLedger(dataset, _Collating.__call__.__code__)
        return found

    # round each batch: only some microseconds ------------------------------------------------------------------------

    def begin(self, thread: int, fetcher: Any) -> _Task:
        dataset = _dataset(fetcher)
        ledger = self.ledger(dataset)
        if ledger.fetcher() is not fetcher:  # a new epoch
            ledger.fetcher = weakref.ref(fetcher)
            ledger.labels.learn(dataset)
        if not self._has_started:
            self._start()
        weight, ledger.passed = ledger.passed + 1, 0
        before = self._meter.read(thread, self._own_asked) if ledger.meters(weight) else None
        if not self.making:
            now = sys.getswitchinterval()
            if abs(now - _SWITCH_SECONDS) > 1e-6:
                self._switch_seconds = now
                sys.setswitchinterval(_SWITCH_SECONDS)
        task = self.making[thread] = _Task(ledger, weight, before)
        return task

    def end(self, thread: int, task: _Task, batches: int) -> None:
        ledger = task.ledger
        ledger.seconds += (clock() - task.since) * task.weight
        ledger.collate_seconds += task.collate_seconds * task.weight
        del self.making[thread]
        if not self.making and abs(sys.getswitchinterval() - _SWITCH_SECONDS) < 1e-6:  # else the script's own wish
            sys.setswitchinterval(self._switch_seconds)
        ledger.batches += batches
        after = self._meter.read(thread, self._own_asked) if task.before is not None else None
        if task.before is not None and after is not None:
            read, asked, waited = after.since(task.before)
            weight, ledger.unmetered = ledger.unmetered + task.weight, 0
            ledger.read_bytes += read * weight
            ledger.asked_bytes += asked * weight
            ledger.waited_seconds += waited * weight
        else:
            ledger.unmetered += batches
        self.told()

    # the sampler -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        from multiprocessing.util import Finalize  # workers leave without `atexit`

        self._has_started = self._is_sampling = True
        self._at_exit = Finalize(None, self.write_last, exitpriority=100)
        try:
            start_new_thread(self._sample, ())
        except RuntimeError as error:
            self._is_sampling, self._failed = False, f"stacks could not be sampled: {error}"

    def _sample(self) -> None:
        try:
            self._keep_sampling()
        except Exception as error:  # the training must not suffer, but the record says why it is empty
            self._is_sampling, self._failed = False, f"stacks could not be sampled: {type(error).__name__}: {error}"
            self._write_unless_held()

    def _keep_sampling(self) -> None:
        """At random times without memory, because regular ones fall into step with the batches. A thread that holds
        the interpreter's lock lets us in late; since it did one thing all the while, a late sample counts for more."""
        pauses = random.Random(self.pid)  # our own: the script's generators stay as they are
        sources = len(linecache.cache)
        while not self._is_over:
            pause = pauses.expovariate(1 / _SAMPLE_SECONDS)
            due = clock() + pause
            time.sleep(pause)
            for thread, task in list(self.making.items()):
                stack = stack_below(_frame_of(thread), self._code)
                if stack and stack[-1][0].co_filename != self._code.co_filename:  # not our own part of it
                    label, seen = task.ledger.labels.label(stack), task.ledger.seen
                    blind_seconds = clock() - max(due, task.since)  # with what labelling took
                    seen[label] = seen.get(label, 0.0) + 1 + blind_seconds / _SAMPLE_SECONDS
                    self._is_changed = True
            if len(linecache.cache) != sources:
                sources = len(linecache.cache)
                self._own_asked = thread_asked_bytes()
            if self._is_changed and clock() - self._written >= _WRITE_SECONDS:
                self._write_unless_held()

    def _write_unless_held(self) -> None:
        self._is_being_written = True
        try:
            if not self._is_held:
                self.write()
        finally:
            self._is_being_written = False

    # the record ------------------------------------------------------------------------------------------------------

    def told(self) -> None:
        """There is something to write. A process that only draws has no sampler that does it."""
        self._is_changed = True
        if not self._is_sampling and clock() - self._written >= _WRITE_SECONDS:
            self.write()

    def write(self) -> None:
        self._written, self._is_changed = clock(), False
        shm_bytes, shm_free = shm_room()
        self._shm_free = min(self._shm_free, shm_free)
        record = {
            "worker": self.worker,
            "resident_bytes": resident_bytes(),
            "shm_bytes": shm_bytes,
            "shm_free_bytes": self._shm_free,
            "failed": self._failed,
            "ledgers": [ledger.record() for ledger in list(self._ledgers.values())],
        }
        rough = f"{self._path}.{get_ident()}"
        try:
            Path(rough).write_text(json.dumps(record))
            os.replace(rough, self._path)
        except OSError:  # a worker that outlives the folder
            pass

    def write_last(self) -> None:
        """Once the sampler's record has been put in its place: an older one must not come after this."""
        self._is_held = True
        limit = clock() + _PATIENCE_SECONDS
        while self._is_being_written and clock() < limit:
            time.sleep(_SWITCH_SECONDS)
        self.write()
        self._is_held = False

    def stop(self) -> None:
        self._is_over = True
        self.write_last()
        if self._at_exit is not None:
            self._at_exit.cancel()
        self.close()

    def close(self) -> None:
        self._meter.close()
