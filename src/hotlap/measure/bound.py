"""Who the steps are bound by: data, copies, waits for the device, launches, Python, arithmetic or memory, with the
figures that show it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Literal

from hotlap.observe.run import Run, shares
from hotlap.observe.scrutiny_facts import LayerFacts, LookFacts
from hotlap.report import figures
from hotlap.report.profile_findings import Bound, By

_BUSY = 0.85  # a device this busy leaves nothing to gain by feeding it faster
_MOST = 0.4  # a share of the host's time that decides without a closer look
_PLAIN = "float32"
_FAR_BELOW = 0.1  # of the roofline: neither arithmetic nor memory holds the layers up
UNCOUNTED = ("RNN", "LSTM", "GRU")  # torch's counter has no formula for these
_NO_LOOK = "no closer look: what runs inside these is not known"
_KERNELS_PAY = 0.5  # less than this of forward and backward inside kernels: the rest is handing over


def bound(run: Run, step_seconds: float) -> Bound:
    host = run.shares
    if run.device == "cpu":
        return _on_processor(run, host)
    busy_seconds = sum(run.look.device_seconds.values())
    if not busy_seconds:
        return _without_look(run, host)
    busy = min(1.0, busy_seconds / step_seconds)
    idle = f"the device is idle {figures.percent(1 - busy)} of a step"
    if busy >= _BUSY:
        kind, shown = _compute_or_memory(run.look)
        return Bound(kind, [f"the device is busy {figures.percent(busy)} of a step", *shown])
    waiting, copying, syncing = (step_seconds * host[name] for name in ("wait", "copy", "sync"))
    idle_seconds = step_seconds * (1 - busy)
    if waiting >= idle_seconds / 2:
        said = f"{figures.seconds(waiting)} of a step ({figures.percent(host['wait'])}) pass waiting for the next batch"
        return Bound("data", [said, idle, *_queue(run)])
    handing_over = step_seconds - waiting - copying - syncing
    if handing_over >= busy_seconds or syncing + copying < idle_seconds / 2:
        host_needs = figures.seconds(handing_over)
        said = f"the host needs {host_needs} to hand a step over, the device {figures.seconds(busy_seconds)} to run it"
        kernels = run.look.kernels
        each = f"{kernels:,} kernels a step, {figures.seconds(busy_seconds / kernels)} each" if kernels else ""
        return Bound("launch", [said, idle, *([each] if each else [])])
    waits = f"the host waits {figures.seconds(syncing + copying)} a step for the device and then has to hand over anew"
    worst = max(run.syncs, key=lambda sync: sync.seconds, default=None)
    place = [f"longest at {worst.path}:{worst.line} ({worst.kind})"] if worst is not None else []
    return Bound("sync" if syncing >= copying else "copy", [waits, idle, *place])


def _without_look(run: Run, host: dict[str, float]) -> Bound:
    device = shares(run.device_parts)
    if host["wait"] > _MOST:
        waits = f"{figures.percent(host['wait'])} of a step pass waiting for the next batch"
        return Bound("data", [waits, *_queue(run)])
    if host["copy"] > _MOST:
        return Bound("copy", [f"{figures.percent(host['copy'])} of a step pass moving batches to the device"])
    said = ", ".join(f"{name} {figures.percent(device[name])}" for name in ("forward", "backward", "update"))
    return Bound("unknown", [f"by the device's clock: {said}", _NO_LOOK])


def _on_processor(run: Run, host: dict[str, float]) -> Bound:
    groups: dict[By, float] = {"data": host["wait"], "copy": host["copy"], "python": host["other"]}
    groups["sync"] = host["sync"]
    computing = host["forward"] + host["backward"] + host["update"]
    name = max(groups, key=lambda one: groups[one])
    if groups[name] > computing:
        words = {"data": "waiting for the next batch", "copy": "moving batches", "python": "in the script's own Python"}
        words["sync"] = "reading tensors"
        said = f"{figures.percent(groups[name])} of a step pass {words[name]}"
        return Bound(name, [said, *(_queue(run) if name == "data" else [])])
    told = f"{figures.percent(computing)} of a step pass in forward, backward and update"
    if not run.look.layers:
        return Bound("unknown", [told, _NO_LOOK])
    inside = sum(layer.forward_seconds + layer.backward_seconds for layer in run.look.layers)
    there = statistics.median(map(sum, run.step_parts)) * (host["forward"] + host["backward"]) if run.step_parts else 0
    if inside and inside < _KERNELS_PAY * there:
        part = figures.percent(inside / there)
        return Bound("launch", [told, f"only {part} of forward and backward is spent inside operations"])
    reached = roof_share(run.look)
    if reached is not None and reached < _FAR_BELOW:
        small = f"operations reach {figures.percent(reached)} of what this machine could do: they are too small"
        return Bound("launch", [told, small])
    kind, shown = _compute_or_memory(run.look)
    return Bound(kind, [told, *shown])


def _compute_or_memory(look: LookFacts) -> tuple[By, list[str]]:
    """By the roofline measured here: which of the two holds most of the layers' time."""
    timed = [(layer, layer.forward_seconds + layer.backward_seconds) for layer in look.layers]
    total = sum(seconds for _, seconds in timed)
    if not total or not look.peak_bandwidth:
        return "compute", []
    moving = sum(seconds for layer, seconds in timed if layer_bound(layer, look) == "memory")
    kind: By = "memory" if moving > total / 2 else "compute"
    part = moving if kind == "memory" else total - moving
    what = "move more bytes than they compute" if kind == "memory" else "compute more than they move"
    reached = sum(layer.flops for layer, _ in timed) / total
    return kind, [f"layers with {figures.percent(part / total)} of the layers' time {what}", *_reached(reached, look)]


def _reached(flops_a_second: float, look: LookFacts) -> Iterable[str]:
    peak = look.peak_flops.get(_PLAIN)
    if peak and flops_a_second:
        reached, best = figures.si(flops_a_second, "FLOP/s"), figures.si(peak, "FLOP/s")
        yield f"{reached} reached; float32 matrix products reach {best} here"


def peak_of(layer: LayerFacts, look: LookFacts) -> float:
    """The arithmetic this chip reaches in a layer's dtype; convolutions may round to TF32 where torch lets them."""
    rounds = layer.dtype == "float32" and layer.kind.startswith("Conv")
    return (
        (rounds and look.peak_flops.get("tf32")) or look.peak_flops.get(layer.dtype) or look.peak_flops.get(_PLAIN, 0)
    )


def least_seconds(layer: LayerFacts, look: LookFacts) -> float:
    """What a layer's work and bytes take on this machine at best; 0 where that is not known."""
    if not layer_bound(layer, look):
        return 0.0
    return max(layer.flops / peak_of(layer, look), layer.moved_bytes / look.peak_bandwidth)


def roof_share(look: LookFacts) -> float | None:
    """How near all layers together come to the roofline."""
    known = [one for one in look.layers if layer_bound(one, look)]
    seconds = sum(one.forward_seconds + one.backward_seconds for one in known)
    return sum(least_seconds(one, look) for one in known) / seconds if seconds else None


def layer_bound(layer: LayerFacts, look: LookFacts) -> Literal["compute", "memory", ""]:
    """On which side of the roofline's balance point for its dtype it lies; "" where that is not known."""
    peak = peak_of(layer, look)
    if not peak or not look.peak_bandwidth or not layer.moved_bytes or layer.kind in UNCOUNTED:
        return ""
    return "compute" if layer.flops / layer.moved_bytes >= peak / look.peak_bandwidth else "memory"


def _queue(run: Run) -> list[str]:
    feed = run.feed
    if not feed.draws:
        return []
    empty = figures.percent(feed.draws_from_empty / feed.draws)
    return [f"{empty} of the draws found no batch ready, of at most {feed.capacity}"]
