"""What the closer look of a profile found, put into the words and figures of a report."""

from __future__ import annotations

from hotlap.measure.bound import layer_bound, least_seconds
from hotlap.observe.scrutiny_facts import InputFacts, LayerFacts, LookFacts, MemoryFacts
from hotlap.report import figures
from hotlap.report.profile_findings import Growth, Input, Layer

_LAYERS = 200
_CENTRED, _SPREAD = 1.0, (0.1, 5.0)  # what is grossly off mean 0 and spread 1


def layers(look: LookFacts) -> list[Layer]:
    total = sum(one.forward_seconds + one.backward_seconds for one in look.layers) or 1.0
    rows = sorted(look.layers, key=lambda one: -(one.forward_seconds + one.backward_seconds))
    return [_layer(one, look, total) for one in rows[:_LAYERS]]


def _layer(one: LayerFacts, look: LookFacts, total: float) -> Layer:
    seconds = one.forward_seconds + one.backward_seconds
    return Layer(
        root=one.root,
        name=one.name,
        kind=one.kind,
        calls=one.calls,
        forward_seconds=one.forward_seconds,
        backward_seconds=one.backward_seconds,
        share=seconds / total,
        flops=one.flops,
        moved_bytes=one.moved_bytes,
        intensity=one.flops / one.moved_bytes if one.moved_bytes else 0.0,
        bound=layer_bound(one, look),
        of_roof=_of_roof(one, look, seconds),
        saved_bytes=one.saved_bytes,
        parameters=one.parameters,
        dtype=one.dtype,
        notes=one.notes,
    )


def _of_roof(one: LayerFacts, look: LookFacts, seconds: float) -> float | None:
    """Which part of what the chip could do at this layer's intensity it does; one without arithmetic by its bytes."""
    least = least_seconds(one, look)
    return min(1.0, least / seconds) if seconds and least else None


def memory(facts: MemoryFacts, device: str) -> dict[str, float]:
    """Bytes by name. On a device what is left of the peak is workspace; in a process it is everything else. Nothing
    where no step was looked at."""
    if not facts.peak:
        return {}
    found = {
        "peak": facts.peak,
        "weights": facts.weights,
        "buffers": facts.buffers,
        "gradients": facts.gradients,
        "optimizer_state": facts.optimizer_state,
        "activations": facts.activations,
    }
    known = sum(found.values()) - facts.peak
    found["workspace" if device != "cpu" else "everything_else"] = max(0, facts.peak - known)
    if facts.reserved:
        found["fragmentation"] = max(0, facts.reserved - facts.peak)
    found |= {"total": facts.total, "free": facts.free}
    return {name: float(size) for name, size in found.items() if size}


def growth(facts: MemoryFacts, trend: float) -> list[Growth]:
    found = [Growth(one.bytes_a_step, one.path, one.line, one.holder, one.why) for one in facts.growth]
    if found or trend <= 0:
        return found
    why = "memory grows from step to step; no tensor held by the script's own variables explains it"
    return [Growth(trend, "", 0, "", why)]


def inputs(look: LookFacts) -> list[Input]:
    return [
        Input(one.root, one.name, one.shapes, one.shapes_seen, one.dtype, one.mean, one.spread, _remarks(one))
        for one in look.inputs
    ]


def _remarks(one: InputFacts) -> list[str]:
    found = []
    if one.dtype == "float64":
        found.append("float64, NumPy's default: twice the bytes, and slow on most chips")
    inner = {tuple(shape[1:]) for shape in one.shapes}
    if len(inner) > 1 or one.shapes_seen > 4:
        found.append(f"{one.shapes_seen} different shapes: searching and compiling for one shape does not pay")
    if not one.finite:
        found.append("holds values that are not finite")
    elif "." not in one.name and any(abs(m) > _CENTRED or not _SPREAD[0] <= s <= _SPREAD[1] for m, s in _channels(one)):
        m, s = max(_channels(one), key=lambda pair: abs(pair[0]) + abs(pair[1] - 1))
        found.append(f"not normalised: mean {figures.plain(m)}, spread {figures.plain(s)} in the worst channel")
    return found


def _channels(one: InputFacts) -> list[tuple[float, float]]:
    return [pair for pair in zip(one.mean, one.spread, strict=False) if pair[1] > 0]
