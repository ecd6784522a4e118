"""What goes on while the loop waits for data, and why more workers would or would not help."""

from __future__ import annotations

import math
from collections import defaultdict

from hotlap.observe.run import LoaderFacts, Run
from hotlap.observe.scrutiny_facts import FeedFacts
from hotlap.report import figures
from hotlap.report.profile_findings import Feeding, Making, Worker

_HARDLY = 0.05  # a share of the step not worth a word
_STARVED = 0.2  # of its making time a process stood without a core
_CROWDED = 0.9  # of the cores busy
_WORKER_BYTES = 1.1  # what a further worker is allowed to need beside what one needs now
_READY = 0.9  # of the draws found a batch ready: workers keep up
_ROWS = 12


def feeding(run: Run, step_seconds: float) -> Feeding | None:
    feed = run.feed
    batches, seconds = sum(one.batches for one in feed.makers), sum(one.seconds for one in feed.makers)
    if not batches:
        return None
    trained = max(run.wall_seconds - run.startup_seconds, 1e-9)
    makings = [Making(one.what, one.seconds / batches, one.path, one.line) for one in feed.makings]
    return Feeding(
        batch_seconds=seconds / batches,
        batch_bytes=feed.batch_bytes,
        batch_samples=feed.batch_samples,
        makings=sorted(makings, key=lambda one: -one.seconds)[:_ROWS],
        workers=[Worker(one.worker, one.batches, min(1.0, one.seconds / trained)) for one in feed.makers],
        queue_depth=feed.mean_depth if feed.draws else None,
        queue_capacity=feed.capacity,
        queue_empty=feed.draws_from_empty / feed.draws if feed.draws else None,
        read_rate=sum(one.read_bytes for one in feed.makers) / trained,
        shm_bytes=feed.shm_bytes,
        shm_free_bytes=feed.shm_free_bytes,
        advice=[*_advice(run, seconds / batches, step_seconds), *([feed.unwatched] if feed.unwatched else [])],
    )


def _advice(run: Run, batch_seconds: float, step_seconds: float) -> list[str]:
    wait, feed = run.share("wait"), run.feed
    trainers = [loader for loader in run.loaders if loader.trains]
    if wait < _HARDLY:
        return [f"only {figures.percent(wait)} of a step pass waiting: more workers would change little"]
    workers = max((loader.num_workers for loader in trainers), default=0)
    without = step_seconds * (1 - wait)
    wanted = batch_seconds / max(without, 1e-6)
    made, trained = figures.seconds(batch_seconds), figures.seconds(without)
    rates = f"a batch takes {made} to make in one process and {trained} to train on"
    ready = 1 - feed.draws_from_empty / feed.draws if feed.draws else 0.0
    if ready > _READY:
        size = figures.bytes_(feed.batch_bytes)
        said = f"a batch was ready at {figures.percent(ready)} of the draws: the wait is for taking {size} over"
        return [rates, f"{said} from the worker, which more workers do not shorten"]
    reason = _short_of(run, feed, workers, wanted)
    if reason:
        return [rates, reason, *_heaviest(feed)]
    if workers and wanted <= workers and feed.draws:
        said = f"{figures.plural(workers, 'worker')} keep up on average, yet {figures.percent(1 - ready)} of the draws"
        return [rates, f"{said} found the queue empty: rates vary, which a deeper queue (prefetch_factor) evens out"]
    return [rates, f"about {figures.plural(max(1, math.ceil(wanted)), 'worker')} would keep up; {_has(trainers)}"]


def _short_of(run: Run, feed: FeedFacts, workers: int, wanted: float) -> str:
    """Cores, memory or shared memory that more workers would need and that is not there."""
    making = sum(one.seconds for one in feed.makers)
    starved = sum(one.waited_seconds for one in feed.makers) / making if making else 0.0
    busy = run.cpu_seconds / max(run.wall_seconds, 1e-9)
    if workers and (starved > _STARVED or busy > _CROWDED * run.cores):
        return f"all {run.cores} cores are busy: more workers would only take them from one another"
    if wanted > run.cores:
        return f"{wanted:.0f} processes would be needed and {run.cores} cores are here: make the samples cheaper first"
    each = max((one.resident_bytes for one in feed.makers if one.worker >= 0), default=0)
    if each and run.memory.free and (wanted - workers) * each * _WORKER_BYTES > run.memory.free:
        return (
            f"each worker holds {figures.bytes_(each)} and {figures.bytes_(run.memory.free)} are free: memory is short"
        )
    ahead = wanted * 2 * feed.batch_bytes
    if feed.shm_free_bytes and ahead > feed.shm_free_bytes:
        return (
            f"/dev/shm has {figures.bytes_(feed.shm_free_bytes)} free and the queues would hold {figures.bytes_(ahead)}"
        )
    return ""


def _heaviest(feed: FeedFacts) -> list[str]:
    sums: defaultdict[str, float] = defaultdict(float)
    for one in feed.makings:
        sums[one.what] += one.seconds
    if not sums:
        return []
    name = max(sums, key=lambda one: sums[one])
    return [f"most of a batch's time is {name} ({figures.percent(sums[name] / sum(sums.values()))})"]


def _has(trainers: list[LoaderFacts]) -> str:
    workers = max((loader.num_workers for loader in trainers), default=0)
    return f"the script has {figures.plural(workers, 'worker')}" if workers else "the script has none"
