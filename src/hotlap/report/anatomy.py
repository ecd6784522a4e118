"""What a profile found, in the words and the order that every format shares."""

from __future__ import annotations

from hotlap.report import figures
from hotlap.report.profile_findings import Feeding, Growth, Input, Layer, Making, ProfileReport, Sync, Verdict

BOUND = {
    "data": "data",
    "launch": "kernel launches",
    "compute": "arithmetic",
    "memory": "memory bandwidth",
    "sync": "host waits",
    "copy": "copies to the device",
    "python": "Python",
}
# what memory names besides the parts of its peak
AROUND = ("peak", "reserved", "fragmentation", "total", "free")
REST = "the rest"
ENDINGS = {"enough": "then stopped", "finished": "then the script was done"}
NEARLY_ALL = 0.98  # of the steps: "every step", though the last of an epoch may do without


def headline(report: ProfileReport) -> str:
    """How long a step takes, and what holds it up."""
    step, by = f"{figures.seconds(report.step_seconds)} a step", bound_by(report)
    return f"{step}, bound by {by}" if by else step


def bound_by(report: ProfileReport) -> str:
    """What holds the steps up; a processor launches no kernels, it is held up between its operations. "" if unknown."""
    is_small = report.bound.by == "launch" and report.device == "cpu"
    return "small operations" if is_small else BOUND.get(report.bound.by, "")


def timed(report: ProfileReport) -> str:
    """What the figures are taken from."""
    warm = f", {report.warmup_steps} of them warm-up" if report.warmup_steps else ""
    said = f"{figures.plural(report.steps, 'step')}{warm}"
    return f"{said}, {ENDINGS[report.ending]}" if report.ending in ENDINGS else said


def failure(report: ProfileReport) -> str:
    """How the script came to a bad end; nothing where it did not."""
    how = figures.line(report.ending).removeprefix("raised: ").rstrip(":")
    return "" if report.ending in ENDINGS else f"the script ended early: {how}"


def evaluation(report: ProfileReport) -> str:
    """What evaluation took, which no step is charged with."""
    if not report.evaluation_seconds:
        return ""
    said = figures.seconds(report.evaluation_seconds)
    if report.evaluation_passes:
        said += f" in {figures.count(report.evaluation_passes)} pass{'es' if report.evaluation_passes > 1 else ''}"
    known = {name: share for name, share in report.evaluation_shares.items() if figures.known(share) and share > 0}
    most = max(known, key=lambda name: known[name], default="")
    return f"{said}, {figures.percent(known[most])} of it {most}" if most else said


def busy(report: ProfileReport) -> str:
    """How busy processor and device were."""
    cores = f"{report.cpu_busy:.1f}" if figures.known(report.cpu_busy) else figures.UNKNOWN
    said = [f"cores busy {cores}"]
    if figures.known(report.device_busy):
        said.append(f"device busy {figures.percent(report.device_busy)}")
    if figures.known(report.device_idle):
        said.append(f"no kernel {figures.percent(report.device_idle)} of a step")
    if report.evaluation_seconds:
        said.append(f"evaluation {evaluation(report)}")
    return ", ".join(said)


def place(path: str, line: int) -> str:
    """path:line, or nothing where the line is not known."""
    return f"{path}:{line}" if path else ""


def waits(report: ProfileReport) -> list[Sync]:
    """The lines that make training steps wait, the most expensive first. What only evaluation does is not blamed."""
    blamed = [sync for sync in report.syncs if sync.count > 0]
    return sorted(blamed, key=lambda sync: -sync.seconds if figures.known(sync.seconds) else 0.0)


def not_blamed(report: ProfileReport) -> list[Sync]:
    """The lines that wait in evaluation only."""
    return [sync for sync in report.syncs if sync.count <= 0]


def how_often(sync: Sync, steps: int) -> str:
    """every step, 3 a step, 1 in 50 steps."""
    if sync.count <= 0:
        return "evaluation only"
    if steps <= 0:
        return f"{figures.count(sync.count)} times"
    hit = sync.steps or min(sync.count, steps)
    each = sync.count / hit
    if hit >= NEARLY_ALL * steps:
        return "every step" if each < 1.05 else f"{_short(each)} a step"
    apart = steps / hit
    said = f"1 in {apart:,.0f} steps" if apart >= 1.5 else f"in {figures.percent(hit / steps)} of steps"
    return said if each < 1.05 else f"{said}, {_short(each)} each"


def cost(sync: Sync, steps: int) -> str:
    """What a line's waiting adds to a step, on average."""
    return figures.seconds(sync.seconds / steps) if steps > 0 else figures.UNKNOWN


def makings(feeding: Feeding) -> list[tuple[Making, float | None]]:
    """What a batch is made of, the longest first, each with its share of the batch."""
    found = sorted(feeding.makings, key=lambda one: -one.seconds if figures.known(one.seconds) else 0.0)
    whole = feeding.batch_seconds
    return [(one, one.seconds / whole if figures.known(whole) and whole > 0 else None) for one in found]


def batch(feeding: Feeding) -> str:
    """One batch and what it costs to make."""
    made = f"{figures.seconds(feeding.batch_seconds)} in one process"
    size = [figures.plural(feeding.batch_samples, "sample")] if feeding.batch_samples else []
    size += [figures.bytes_(feeding.batch_bytes)] if feeding.batch_bytes else []
    return f"{made} ({', '.join(size)})" if size else made


def supply(feeding: Feeding) -> str:
    """Who makes the batches, and whether they are ready in time."""
    own = [worker for worker in feeding.workers if worker.number < 0]
    workers = [worker for worker in feeding.workers if worker.number >= 0]
    said = []
    if workers:
        mean = sum(worker.busy for worker in workers) / len(workers)
        said.append(f"{figures.plural(len(workers), 'worker')} {figures.percent(mean)} busy")
    elif own:
        said.append("made in the training process itself, without workers")
    if figures.known(feeding.queue_depth):
        said.append(f"{feeding.queue_depth:.1f} of {feeding.queue_capacity} batches ready when asked")
    if figures.known(feeding.queue_empty):
        said.append(f"none in {figures.percent(feeding.queue_empty)} of draws")
    if feeding.read_rate > 0:
        said.append(f"{figures.bytes_(feeding.read_rate)}/s from storage")
    return ", ".join(said)


def composition(memory: dict[str, float]) -> list[tuple[str, float]]:
    """What the peak is made of, the largest first; what nobody accounts for is the rest."""
    parts = [(name, size) for name, size in memory.items() if name not in AROUND and figures.known(size) and size > 0]
    left = memory.get("peak", 0.0) - sum(size for _, size in parts)
    found = sorted(parts, key=lambda part: -part[1])
    # a rest of a few bytes is rounding
    return [*found, (REST, left)] if parts and left > 0.005 * memory["peak"] else found


def said(name: str) -> str:
    """optimizer_state as a reader would say it."""
    return name.replace("_", " ")


def peak(report: ProfileReport) -> str:
    """The peak, and of how much."""
    said = f"peak {figures.bytes_(report.memory.get('peak'))}"
    total = report.memory.get("total", 0.0)
    return f"{said} of {figures.bytes_(total)}" if figures.known(total) and total > 0 else said


def room(report: ProfileReport) -> list[str]:
    """What is left, and what would go into it."""
    free = report.memory.get("free", 0.0)
    said = [f"{figures.bytes_(free)} left"] if figures.known(free) and free > 0 else []
    return said + ([f"a batch of about {figures.count(report.batch_that_fits)} fits"] if report.batch_that_fits else [])


def growth(one: Growth) -> str:
    """Memory that grows, with the line to blame where it is known."""
    where = place(one.path, one.line)
    said = f"{figures.bytes_(one.bytes_a_step)} a step"
    said += f" at {where}" if where else ""
    why = ", ".join(figures.line(text) for text in (one.holder, one.why) if text)
    return f"{said}: {why}" if why else said


def layers(report: ProfileReport) -> list[Layer]:
    """The slowest first."""
    return sorted(report.layers, key=lambda one: -layer_seconds(one) if figures.known(layer_seconds(one)) else 0.0)


def layer_seconds(layer: Layer) -> float:
    return layer.forward_seconds + layer.backward_seconds


def layer_name(layer: Layer, report: ProfileReport) -> str:
    """Its path; with the model's class where there is more than one model."""
    if not layer.name:
        return layer.root
    several = len({one.root for one in report.layers}) > 1
    return f"{layer.root}.{layer.name}" if several and layer.root else layer.name


def flop(layer: Layer) -> str:
    """Its arithmetic in a step."""
    return figures.si(layer.flops, "FLOP") if figures.known(layer.flops) and layer.flops > 0 else ""


def intensity(layer: Layer) -> str:
    """Arithmetic for a byte moved."""
    return _short(layer.intensity) if figures.known(layer.intensity) and layer.intensity > 0 else ""


def of_roof(layer: Layer) -> str:
    """Which part of the chip's best it reaches."""
    return figures.percent(layer.of_roof) if figures.known(layer.of_roof) else ""


def peaks(report: ProfileReport) -> list[tuple[str, str]]:
    """The roof as it was measured here."""
    found = [(name, figures.si(value, "FLOP/s")) for name, value in report.peak_flops.items() if value > 0]
    memory = [("memory", figures.si(report.peak_bandwidth, "B/s"))] if report.peak_bandwidth > 0 else []
    return found + memory


def unused(report: ProfileReport, most: int) -> str:
    """What is initialised and never used, the largest first."""
    found = sorted(report.unused, key=lambda one: -one.elements)
    names = [
        f"{one.name} ({'' if one.kind == 'parameter' else f'{one.kind}, '}{figures.count(one.elements)})"
        for one in found
    ]
    whole = figures.plural(sum(one.elements for one in found), "element")
    return f"{whole} in {len(found)}: {figures.some(names, most)}" if len(found) > 1 else names[0]


def odd_inputs(report: ProfileReport) -> list[tuple[Input, str]]:
    """Every remark on what the model is fed."""
    return [(one, figures.line(remark)) for one in report.inputs for remark in one.remarks]


def could_help(report: ProfileReport) -> list[Verdict]:
    """What is worth a trial, the largest hope first."""
    return sorted((one for one in report.verdicts if one.state == "could help"), key=lambda one: -one.most)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.95 or abs(value - round(value)) < 0.05 else f"{value:.1f}"
