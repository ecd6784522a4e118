"""A report as one page that needs nothing but itself: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotlap.report import charts, figures, wording
from hotlap.report.findings import SHARES, ProfileReport, TuneReport

if TYPE_CHECKING:
    import jinja2

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
    shares = wording.shares(report.shares)
    return _page(
        "profile.html.j2",
        report,
        commands=wording.next_commands(report),
        could=sorted((v for v in report.verdicts if v.state == "could help"), key=lambda one: -one.most),
        shares=shares,
        largest=max((report.shares[name] for name in shares), default=1.0),
        layer_keys=list(dict.fromkeys(key for layer in report.layers for key in layer)),
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
            **words,
        )
    )


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
        "interval": figures.interval,
        "measured": lambda value: "not measured" if value is None else figures.ratio(value),
        "percent": figures.percent,
        "bytes": figures.bytes_,
        "count": figures.count,
        "plural": figures.plural,
        "plain": figures.plain,
        "setting": figures.setting,
        "gain": figures.gain,
        "by_key": lambda value, key: figures.by_key(key, value),
    }
    return environment
