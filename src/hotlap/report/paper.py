"""A report as the experiment section of a paper, before anyone decides on a markup.

The eight parts: data, implementation details, metrics, comparison, analysis, alternative designs, ablation, figures.
`markdown` and `latex` write what stands here, so neither can say something the other does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hotlap.report import anatomy, charts, figures, wording
from hotlap.report.findings import TuneReport
from hotlap.report.profile_findings import ProfileReport

MOST_LAYERS = 15


class Code(str):
    """A piece of text that is typed, not said: a name, a command, a path."""

    __slots__ = ()


Words = tuple[str, ...]
"""A sentence in pieces, each a `str` or a `Code`."""


def spans(text: str) -> Words:
    """What stands between backticks is typed."""
    if isinstance(text, Code):
        return (text,)
    pieces = re.split(r"`([^`]+)`", text)
    return tuple(Code(piece) if number % 2 else piece for number, piece in enumerate(pieces) if piece)


@dataclass(frozen=True)
class Table:
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    caption: str
    right: frozenset[int] = frozenset()  # columns of figures


@dataclass(frozen=True)
class Picture:
    name: str
    caption: str


Piece = Words | Table | Picture


@dataclass(frozen=True)
class Part:
    title: str
    pieces: Sequence[Piece]


@dataclass(frozen=True)
class Paper:
    title: Words
    abstract: Sequence[Words]
    parts: Sequence[Part]


def tune(report: TuneReport) -> Paper:
    """The experiment section of a tuning."""
    return Paper(
        title=("Accelerating ", Code(report.script)),
        abstract=[(figures.sentence(wording.headline(report)), " ", wording.why(report))],
        parts=[
            _data(report),
            _implementation(report),
            _metrics(report),
            _comparison(report),
            _analysis(report),
            _alternatives(report),
            _ablation(report),
            _pictures(report),
        ],
    )


def profile(report: ProfileReport) -> Paper:
    """Where the steps of a script go, in the same form."""
    step = figures.sentence(f"{anatomy.headline(report)}; {anatomy.timed(report)}")
    verdicts = [
        (Code(one.technique), one.state, figures.gain(one.most) if one.state == "could help" else "", one.why)
        for one in report.verdicts
    ]
    could = _table(("technique", "verdict", "at most", "why"), verdicts, "Verdict on every technique.", {2})
    caveats = [(figures.sentence(text),) for text in (anatomy.failure(report), *report.caveats) if text]
    parts = [
        Part("Where the step goes", _step(report)),
        Part("How a batch is made", _feeding(report)),
        Part("Memory", _memory(report)),
        Part("Layers", _layers(report)),
        Part("What could help", could or [("No technique was judged.",)]),
        Part("Implementation details", [_facts(report), *caveats]),
        _pictures(report),
    ]
    return Paper(("Profile of ", Code(report.script)), [(step,)], [part for part in parts if part.pieces])


def _step(report: ProfileReport) -> list[Piece]:
    whole, device = report.step_seconds, report.device_shares
    rows = []
    for name in wording.shares(report.shares, device or {}):
        found = [one.get(name, 0.0) for one in (report.shares, device) if one is not None]
        rows.append(
            (name, *(text for one in found for text in (figures.like(whole * one, whole), figures.percent(one))))
        )
    head = ("share", "host", "of a step", *(("device", "of a step") if device is not None else ()))
    waits = [
        (
            Code(anatomy.place(one.path, one.line)),
            one.kind,
            anatomy.how_often(one, report.steps),
            anatomy.cost(one, report.steps),
        )
        for one in anatomy.waits(report)
    ]
    return [
        ("Shares are of the wall clock, from one batch to the next. ", figures.sentence(anatomy.busy(report))),
        *((figures.sentence(text),) for text in report.bound.evidence),
        *_table(head, rows, "Shares of a step.", set(range(1, len(head)))),
        *_table(("place", "for", "how often", "a step"), waits, "Where the host waits for the device.", {3}),
    ]


def _feeding(report: ProfileReport) -> list[Piece]:
    if report.feeding is None:
        return []
    rows = [
        (
            one.what,
            figures.seconds(one.seconds),
            figures.percent(share),
            Code(anatomy.place(one.path, one.line)) if one.path else "",
        )
        for one, share in anatomy.makings(report.feeding)
    ]
    said = [f"One batch takes {anatomy.batch(report.feeding)}", anatomy.supply(report.feeding), *report.feeding.advice]
    table = _table(("part", "a batch", "share", "place"), rows, "What a batch is made of.", {1, 2})
    return [*((figures.sentence(text),) for text in said if text), *table]


def _memory(report: ProfileReport) -> list[Piece]:
    said = [", ".join([anatomy.peak(report), *anatomy.room(report)])] if report.memory else []
    said += [f"Growing: {anatomy.growth(one)}" for one in report.growth]
    rows = [(anatomy.said(name), figures.bytes_(size)) for name, size in anatomy.composition(report.memory)]
    return [
        *((figures.sentence(text),) for text in said),
        *_table(("memory", "size"), rows, "Memory at the peak.", {1}),
    ]


def _layers(report: ProfileReport) -> list[Piece]:
    found = anatomy.layers(report)[:MOST_LAYERS]
    rows = [
        (
            Code(anatomy.layer_name(one, report)),
            one.kind,
            figures.seconds(anatomy.layer_seconds(one)),
            figures.percent(one.share),
            anatomy.flop(one),
            anatomy.of_roof(one),
        )
        for one in found
    ]
    caption = f"The slowest {len(found)} of {figures.plural(len(report.layers), 'layer')}, forward and backward."
    said = [*report.remarks, *(f"input {one.name}: {remark}" for one, remark in anatomy.odd_inputs(report))]
    said += [f"Never used: {anatomy.unused(report, 6)}"] if report.unused else []
    table = _table(("layer", "kind", "time", "share", "work", "of roof"), rows, caption, {2, 3, 4, 5})
    return [*table, *((figures.sentence(text),) for text in said)]


def _data(report: TuneReport) -> Part:
    size = (
        f"{figures.plural(report.batch_samples, 'sample')} a step"
        if report.batch_samples
        else "samples a step: not known"
    )
    return Part("Data", [(f"As the script loads it; {size}.",)])


def _implementation(report: TuneReport) -> Part:
    kept = [
        (Code(one.technique), figures.setting(one.setting) or "-", wording.taken_in(one), one.parity)
        for one in report.kept
    ]
    caption = "The plan, in the order in which it was taken in. Gains of single techniques are screened, not proven."
    plan = _table(("technique", "set to", "gain when taken in", "parity"), kept, caption, {2})
    return Part(
        "Implementation details",
        [*(plan or [("The script runs as it is: no technique was kept.",)]), _facts(report)],
    )


HOW_MEASURED = (
    "A step is one trip round the training loop, waiting for data included. A trial is one process; its figure is the "
    "median of its steps after warm-up. Speed-up is time before over time after, from processes of the script as it is "
    "and of the script with its plan that alternate; the interval is over pairs of processes, not over steps."
)
HOW_COMPARED = (
    "Parity is measured in steps forced into the state and batch of the script as it is; loss curves are shown as a "
    "picture and serve as a coarse guard only."
)


def _metrics(report: TuneReport) -> Part:
    smallest = f"the smallest gain this machine can show is {figures.ratio(report.smallest_gain)}."
    against = f"The script against itself: {wording.a_against_a(report)}; {smallest}"
    return Part("Metrics", [(HOW_MEASURED,), (against,), (HOW_COMPARED,)])


def _comparison(report: TuneReport) -> Part:
    rates = wording.samples_a_second(report)
    rows = [("step", figures.seconds(report.before_seconds), figures.like(report.after_seconds, report.before_seconds))]
    if rates:
        rows.append(("samples a second", figures.count(rates[0]), figures.count(rates[1])))
    if report.peak_bytes_before:
        peaks = figures.bytes_(report.peak_bytes_before), figures.bytes_(report.peak_bytes_after)
        rows.append(("memory at the peak", *peaks))
    if not report.kept:
        rows = [(name, before, "-") for name, before, _ in rows]
    table = _table(("", "script as it is", "with the plan"), rows, "Before and after.", {1, 2})
    return Part("Comparison", [*table, (f"Speed-up: {_claim(report)}.",)])


def _claim(report: TuneReport) -> str:
    if not report.kept:
        return "none is claimed"
    if wording.is_proven(report):
        return f"{figures.interval(report.speedup)}, confirmed"
    screened = f"about {figures.ratio(wording.screened_ratio(report))}"
    return f"{figures.interval(report.speedup) if report.speedup else screened}; not confirmed, and so not a claim"


def _analysis(report: TuneReport) -> Part:
    saving = wording.largest_saving(report)
    whole = report.before_seconds
    rows = [
        (name, figures.like(before, whole), "-" if after is None else figures.like(after, whole))
        for name, before, after in wording.share_seconds(report)
    ]
    shares = _table(("share", "before", "after"), rows, "What a step is spent on.", {1, 2})
    checks = [(c.what, figures.plain(c.figure), c.limit, "passed" if c.passed else "failed") for c in report.parity]
    said = [
        f"Parity: {wording.parity(report)}.",
        f"Tuning: {wording.cost(report)}.",
        *([figures.sentence(wording.epoch(report))] if report.epoch is not None else []),
        *([figures.sentence(report.compiled)] if report.compiled else []),
        *map(figures.sentence, report.caveats),
        *([figures.sentence(wording.hosts(report))] if report.hosts else []),
    ]
    return Part(
        "Analysis",
        [
            *([(saving,)] if saving else []),
            *(shares or [("Where the step went is not known.",)]),
            *_table(("figure", "found", "limit", ""), checks, "Parity: is it the same training?", {1, 2}),
            *((text,) for text in said),
        ],
    )


def _alternatives(report: TuneReport) -> Part:
    rejected = [(Code(one.technique), figures.setting(one.setting) or "-", one.reason) for one in report.rejected]
    untried = [(Code(one.technique), one.reason) for one in report.not_tried]
    tables = [
        *_table(("technique", "set to", "reason"), rejected, "Tried and rejected."),
        *_table(("technique", "reason"), untried, "Not tried."),
    ]
    return Part("Alternative designs", tables or [("None were tried.",)])


def _ablation(report: TuneReport) -> Part:
    rows = [(Code(one.technique), _measured(one.alone), _measured(one.left_out)) for one in report.ablation]
    caption = f"Speed-up over the script as it is: each technique alone, the plan without it ({report.ablation_label})."
    return Part("Ablation", _table(("technique", "alone", "left out"), rows, caption, {1, 2}) or [("Not measured.",)])


def _pictures(report: TuneReport | ProfileReport) -> Part:
    found = [Picture(name, caption) for name, caption in charts.present(report).items()]
    return Part("Figures", found or [("There was nothing to draw.",)])


def _facts(report: TuneReport | ProfileReport) -> Table:
    rows = [
        (name, Code(value) if name == "command" and value else value or figures.UNKNOWN)
        for name, value in wording.facts(report)
    ]
    return Table(("fact", ""), rows, "What makes the figures checkable.")


def _table(
    head: tuple[str, ...], rows: Sequence[tuple[str, ...]], caption: str, right: set[int] | None = None
) -> list[Piece]:
    """A table, or nothing where it would be empty."""
    return [Table(head, rows, caption, frozenset(right or ()))] if rows else []


def _measured(value: float | None) -> str:
    return "not measured" if value is None else figures.ratio(value)
