"""The sentences that every format shares: the headline, the reasons behind it, and the commands to go on with."""

from __future__ import annotations

import shlex
from pathlib import PurePath

from hotlap.report import figures
from hotlap.report.findings import Kept, TuneReport
from hotlap.report.profile_findings import SHARES, ProfileReport

_WORTH_TELLING_SECONDS = 1.0
_WIDEST, _LARGEST_UNSEEN = 4.0, 2.0  # ratios of a script to itself, and gains not shown: beyond, figures say nothing

SHARE_MEANINGS = {
    "wait": "waiting for the next batch",
    "copy": "moving the batch to the device",
    "forward": "the model and the loss",
    "backward": "gradients",
    "update": "the optimizer",
    "sync": "the host waiting for the device",
    "other": "Python and the rest",
}


def headline(report: TuneReport, arrow: str = "->", dash: str = "-") -> str:
    """The one line that must be true when it is read alone."""
    if not report.kept and report.cut_short:
        return f"not decided: {figures.seconds(report.before_seconds)} a step, and nothing proven to be faster yet"
    if not report.kept:
        return f"nothing helps here: {figures.seconds(report.before_seconds)} a step stays"
    step = f"{figures.before_after(report.before_seconds, report.after_seconds, arrow)} a step"
    if is_proven(report):
        return f"{step} ({figures.interval(report.speedup, dash)})"
    if report.speedup is not None:
        return f"{step}, not confirmed ({figures.interval(report.speedup, dash)})"
    return f"{step}, not confirmed (about {figures.ratio(screened_ratio(report))})"


def is_proven(report: TuneReport) -> bool:
    """Whether the speed-up may be claimed."""
    return bool(report.kept) and report.confirmed and report.speedup is not None


def screened_ratio(report: TuneReport) -> float | None:
    """Before over after, for a plan that nobody proved."""
    return report.before_seconds / report.after_seconds if report.after_seconds else None


def why(report: TuneReport) -> str:
    """What stands behind the headline."""
    if not report.kept and report.cut_short:
        return report.caveats[0][:1].upper() + report.caveats[0][1:] + "." if report.caveats else "It was stopped."
    if not report.kept:
        left = figures.plural(len(report.not_tried), "technique")
        if report.rejected:
            tried = figures.plural(len(report.rejected), "setting")
            return f"{tried} tried, none of them both faster and the same training; {left} not worth a trial."
        return f"{left} looked at, none worth a trial." if report.not_tried else "Nothing was tried."
    if is_proven(report):
        return "Confirmed by alternating processes of the script as it is and the script with its plan."
    return "The budget did not allow proof: these figures are screened. A larger --budget can confirm them."


def samples_a_second(report: TuneReport) -> tuple[float, float] | None:
    """Before and after; None where the size of a batch is not known."""
    if not report.batch_samples or not report.before_seconds or not report.after_seconds:
        return None
    return report.batch_samples / report.before_seconds, report.batch_samples / report.after_seconds


def cost(report: TuneReport) -> str:
    """What tuning cost, and when that is earned back."""
    spent = figures.seconds(report.cost_seconds)
    if report.earlier_seconds:
        spent += f", and {figures.seconds(report.earlier_seconds)} earlier"
    if report.reused_trials:
        spent += f" ({figures.plural(report.reused_trials, 'trial')} known from then)"
    if not report.kept:
        return spent
    if report.one_off_seconds >= _WORTH_TELLING_SECONDS:
        spent += f", and up to {figures.seconds(report.one_off_seconds)} at the start of each run"
    if report.payback_steps is None:
        return f"{spent}; not paid back, as far as is known"
    trained = figures.seconds(report.payback_steps * report.after_seconds)
    return f"{spent}; paid back after {figures.plural(report.payback_steps, 'step')} ({trained} of training)"


def taken_in(kept: Kept) -> str:
    """What it added; one that came in with others was not measured by itself."""
    return "with others" if kept.ratio is None else figures.ratio(kept.ratio)


def epoch(report: TuneReport, arrow: str = "->") -> str:
    """A whole one, where that was looked at; empty otherwise."""
    if report.epoch is None:
        return ""
    times = figures.before_after(report.epoch.before_seconds, report.epoch.after_seconds, arrow)
    steps, saving = figures.plural(report.epoch.steps, "step"), " and ".join(report.epoch.techniques)
    return f"{times} an epoch ({steps}, tests and all) by {saving}; single trials"


def a_against_a(report: TuneReport, dash: str = "-") -> str:
    """The script against itself: what this way of measuring shows where there is nothing to show."""
    if report.a_against_a is None:
        return "not measured"
    if report.a_against_a.high > _WIDEST or report.smallest_gain > _LARGEST_UNSEEN:
        return "too unsteady to measure: close other work"
    return figures.interval(report.a_against_a, dash)


def parity(report: TuneReport) -> str:
    """Whether it is still the same training, in half a line."""
    if not report.parity:
        return "nothing to check" if not report.kept else "not checked"
    passed = sum(check.passed for check in report.parity)
    return f"{passed} of {len(report.parity)} figures within limits"


def commands(report: TuneReport) -> list[str]:
    """What to type next."""
    if not report.kept:
        return [f"hotlap profile {with_arguments(report)}"]
    plan = shlex.quote(
        str(PurePath(report.script).with_name("hotlap.toml")) if is_path(report.script) else "hotlap.toml"
    )
    return [f"hotlap run {with_arguments(report)}", f"hotlap fix --plan {plan} {quoted(report.script)} --diff"]


def next_commands(report: ProfileReport) -> list[str]:
    """After a profile: tune where something could help."""
    if not any(verdict.state == "could help" for verdict in report.verdicts):
        return []
    return [f"hotlap tune {with_arguments(report)}"]


def with_arguments(report: TuneReport | ProfileReport) -> str:
    """The script and what it was given, as a shell wants them."""
    return " ".join([quoted(report.script), *map(shlex.quote, report.arguments)])


def is_path(script: str) -> bool:
    """A script is a path, or `-m package.module` as for python."""
    return bool(script) and not script.startswith("-m ")


def quoted(script: str) -> str:
    """The script as a shell wants it."""
    return shlex.quote(script) if is_path(script) else script


def shares(*found: dict[str, float]) -> list[str]:
    """The shares that took any time at all, in the order of a step; unknown names last."""
    names = [*SHARES, *sorted({name for one in found for name in one} - set(SHARES))]
    return [name for name in names if any(one.get(name, 0.0) > 0 for one in found)]


def share_seconds(report: TuneReport) -> list[tuple[str, float, float | None]]:
    """Each share of the step before and after, in seconds; after is None where there is no plan to look at."""
    has_after = bool(report.kept and report.shares_after)
    found: list[tuple[str, float, float | None]] = []
    for name in shares(report.shares_before, report.shares_after if has_after else {}):
        after = report.after_seconds * report.shares_after.get(name, 0.0) if has_after else None
        found.append((name, report.before_seconds * report.shares_before.get(name, 0.0), after))
    return found if report.shares_before else []


def largest_saving(report: TuneReport) -> str | None:
    """The share of the step that shrank most, as a sentence."""
    saved = {name: before - after for name, before, after in share_seconds(report) if after is not None}
    name = max(saved, key=lambda one: saved[one], default=None)
    if name is None or saved[name] <= 0:
        return None
    meaning = SHARE_MEANINGS.get(name, name)
    return f"Most was saved in {name} ({meaning}): {figures.seconds(saved[name])} of every step."


def hosts(report: TuneReport, most: int = 50) -> str:
    """Who the script tried to reach during trials; empty for nobody."""
    return f"the script tried to reach {figures.some(report.hosts, most)} during trials" if report.hosts else ""


def facts(report: TuneReport | ProfileReport) -> list[tuple[str, str]]:
    """What makes the figures checkable."""
    found = report.facts
    return [
        ("hardware", found.hardware),
        ("driver", found.driver),
        ("torch", found.torch),
        ("command", found.command),
        ("trials", figures.count(found.trials)),
        ("date", found.date),
        ("hotlap", found.hotlap),
    ]
