"""A report as one page that needs nothing but itself: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotlap.report import anatomy, charts, figures, paper, wording
from hotlap.report.findings import TuneReport
from hotlap.report.profile_findings import SHARES, ProfileReport

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

MOST_LAYERS = 60
# the share that has most to do with it lends its colour
MEMORY_COLOURS = {
    "weights": "forward",
    "gradients": "backward",
    "optimizer_state": "update",
    "activations": "wait",
    "buffers": "copy",
}
ARROW, DASH = "\N{RIGHTWARDS ARROW}", "\N{EN DASH}"


def tune(report: TuneReport) -> str:
    """What tuning found."""
    shares = wording.share_seconds(report)
    return _page(
        "tune.html.j2",
        report,
        headline=wording.headline(report, ARROW, DASH),
        step=figures.before_after(report.before_seconds, report.after_seconds, ARROW),
        why=wording.why(report),
        proven=wording.is_proven(report),
        screened=wording.screened_ratio(report),
        rates=wording.samples_a_second(report),
        memory=figures.bytes_before_after(report.peak_bytes_before, report.peak_bytes_after, ARROW),
        parity=wording.parity(report),
        a_against_a=wording.a_against_a(report, DASH),
        commands=wording.commands(report),
        shares=shares,
        has_after=bool(shares) and shares[0][2] is not None,
        saving=wording.largest_saving(report),
        disturbed=sum(trial.disturbed for trial in report.trials),
    )


def profile(report: ProfileReport) -> str:
    """Where the steps went."""
    device = report.device_shares or {}
    shares = wording.shares(report.shares, device)
    parts = anatomy.composition(report.memory)
    return _page(
        "profile.html.j2",
        report,
        anatomy=anatomy,
        headline=anatomy.headline(report),
        bound=anatomy.bound_by(report),
        commands=wording.next_commands(report),
        could=anatomy.could_help(report),
        shares=shares,
        largest=max(
            [one.get(name, 0.0) for one in (report.shares, device) for name in shares if one.get(name, 0) > 0] or [1]
        ),
        waits=[*anatomy.waits(report), *anatomy.not_blamed(report)],
        makings=anatomy.makings(report.feeding) if report.feeding else [],
        parts=parts,
        whole=max(sum(size for _, size in parts), 1.0),
        around=[(name, report.memory[name]) for name in anatomy.AROUND if name in report.memory],
        memory_colours=MEMORY_COLOURS,
        layers=anatomy.layers(report)[:MOST_LAYERS],
        has_roof=any(layer.bound or layer.of_roof is not None for layer in report.layers),
        peaks=anatomy.peaks(report),
    )


def _page(template: str, report: TuneReport | ProfileReport, **words: Any) -> str:
    from markupsafe import Markup

    return (
        _environment()
        .get_template(template)
        .render(
            report=report,
            charts={name: Markup(svg) for name, svg in charts.svgs(report).items()},
            captions=charts.captions(report),
            colours=SHARES,
            meanings=wording.SHARE_MEANINGS,
            facts=wording.facts(report),
            hosts=wording.hosts(report) if isinstance(report, TuneReport) else "",
            compiled=report.compiled if isinstance(report, TuneReport) else "",
            epoch=wording.epoch(report, ARROW) if isinstance(report, TuneReport) else "",
            **words,
        )
    )


def _said(text: str) -> Markup:
    from markupsafe import Markup

    typed = Markup("<code>{}</code>").format
    return Markup("").join(typed(one) if isinstance(one, paper.Code) else one for one in paper.spans(text))


def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hotlap.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "seconds": figures.seconds,
        "like": figures.like,
        "ratio": figures.ratio,
        "taken_in": wording.taken_in,
        "interval": figures.interval,
        "measured": lambda value: "not measured" if value is None else figures.ratio(value),
        "percent": figures.percent,
        "bytes": figures.bytes_,
        "count": figures.count,
        "plural": figures.plural,
        "plain": figures.plain,
        "setting": figures.setting,
        "gain": figures.gain,
        "sentence": figures.sentence,
        "said": _said,
        "place": lambda one: anatomy.place(one.path, one.line),
        "shape": lambda sizes: " \N{MULTIPLICATION SIGN} ".join(map(str, sizes)) or "scalar",
    }
    return environment
