"""Write the tables of results from the raw records in bench/results: the newest tuning of every script into the README;
all tunings, what was run against experts' loops, what each technique is worth by itself, how fast loaders feed, and
what data still costs a step, into the page beside the records. `--check` only says whether one is out of date. Needs
neither a GPU nor torch: a record holds all it takes."""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from hotlap.errors import HotlapError
from hotlap.report import figures, folder, wording
from hotlap.report.findings import Interval, TuneReport

ROOT = Path(__file__).resolve().parent.parent
MARKS = re.compile(r"(<!-- results -->\n).*?(<!-- /results -->)", re.DOTALL)
NEWEST_HEAD = ("script", "machine", "a step", "faster by", "kept")
TUNINGS_MARKS = re.compile(r"(<!-- tunings -->\n).*?(<!-- /tunings -->)", re.DOTALL)
TUNINGS_HEAD = ("record", "a step", "faster by", "kept, or what was tried", "trials", "date", "torch")
EXPERTS_MARKS = re.compile(r"(<!-- experts -->\n).*?(<!-- /experts -->)", re.DOTALL)
EXPERTS_HEAD = (
    "script",
    "machine",
    "as it is",
    "`hotlap run`",
    "expert",
    "script / run",
    "expert / run",
    "trainers / run",
    "rounds",
    "date",
)
TRAINERS = ("accelerate", "accelerate-compile", "lightning", "lightning-compile")
COMPUTING_TOTALS = ("**together**", "trials, date")
COMPUTING_MARKS = re.compile(r"(<!-- computing -->\n).*?(<!-- /computing -->)", re.DOTALL)
FEED_MARKS = re.compile(r"(<!-- feed -->\n).*?(<!-- /feed -->)", re.DOTALL)
FEED_HEAD = ("loader", "images a second", "beside the best DataLoader", "turns", "record")
DATA_MARKS = re.compile(r"(<!-- data -->\n).*?(<!-- /data -->)", re.DOTALL)
DATA_HEAD = ("script", "machine", "a step with its data", "without", "times as long", "date", "by")
OTHERS = (
    "overhead-",
    "exhaustive-",
    "decoding-",
    "fixed-",
    "feed-",
    "faults-",
    "handing-over-",
)  # records of other benches, which are no tunings


def records(results: Path) -> list[Path]:
    """Every file is a tuning's report, or its name says whose it is."""
    beside = [path for path in results.glob("*.json") if not path.name.startswith(OTHERS)]
    return sorted([*beside, *(results / "tune").glob("*.json")])


def read(path: Path) -> TuneReport:
    report = folder.read(path)
    if not isinstance(report, TuneReport):
        raise HotlapError(f"{path} is no report of a tuning: move it to a folder of its own")
    facts = report.facts
    missing = [name for name in ("hardware", "torch", "command", "date", "trials") if not getattr(facts, name)]
    if not all(map(figures.known, (report.before_seconds, report.after_seconds))):
        missing.append("time of a step")
    if report.kept and report.speedup is None:
        missing.append("interval")
    if missing:
        raise HotlapError(f"{path} cannot be shown in the table: it has no {', no '.join(missing)}")
    return report


def name(path: Path) -> str:
    """Whose tuning it is: `mnist-280s-h200.json` and `mnist-h200.json` are of one script."""
    return path.stem.partition("-")[0]


def newest_row(path: Path, report: TuneReport, root: Path) -> tuple[str, ...]:
    """Public scripts go by the name of their record, since half of them are called main.py."""
    script = f"`{wording.with_arguments(report)}`"
    if path.parent.name == "tune":
        script = f"{name(path)}: {script}"
    place = path.relative_to(root).as_posix()
    return script, machine(report.facts.hardware), step(report), f"[{gain(report)}]({place})", kept(report)


def row(path: Path, report: TuneReport) -> tuple[str, ...]:
    beside = path.parent.parent if path.parent.name == "tune" else path.parent
    return (
        f"[{path.stem}]({path.relative_to(beside).as_posix()})",
        step(report),
        gain(report),
        kept(report),
        str(report.facts.trials),
        report.facts.date.split()[0],
        report.facts.torch.split("+")[0],
    )


def step(report: TuneReport) -> str:
    if report.kept:
        return figures.before_after(report.before_seconds, report.after_seconds)
    return figures.seconds(report.before_seconds)


def gain(report: TuneReport) -> str:
    if not report.kept:
        return "not decided" if report.cut_short else "nothing"
    assert report.speedup is not None
    words = f"{figures.ratio(report.speedup.ratio)} ({figures.bounds(report.speedup, ' to ')})"
    return words if wording.is_proven(report) else f"{words}, not confirmed"


def kept(report: TuneReport) -> str:
    """What is in the plan; where there is none, what was tried alone, with its figure."""
    if report.kept:
        return ", ".join(_named(one.technique, one.setting) for one in report.kept)
    alone = [one for one in report.rejected if ", together with " not in one.reason]
    named: dict[str, list[str]] = {}  # by figure or reason: what they have in common is said once
    for one in alone:
        named.setdefault(_figure(one.reason), []).append(one.technique)
    if named:
        return "nothing; tried " + "; ".join(f"{', '.join(names)} {words}" for words, names in named.items())
    return "nothing; no trial fitted into the budget" if report.cut_short else "nothing; nothing was worth a trial"


def machine(hardware: str) -> str:
    parts = [re.sub(r" \(.*?\)", "", part) for part in hardware.split(", ")]
    return ", ".join([parts[0], *(part for part in parts[1:] if part.endswith("cores"))])


def newest_table(root: Path) -> str:
    """One row a script: what its last tuning came to, were it nothing."""
    newest: dict[str, tuple[Path, TuneReport]] = {}
    for path, report in sorted(tunings(root), key=lambda entry: entry[1].facts.date):
        newest[name(path)] = path, report
    found = sorted(newest.values(), key=_largest_gain_first)
    return _table(NEWEST_HEAD, [newest_row(path, report, root) for path, report in found])


def tunings_table(root: Path) -> str:
    return _table(TUNINGS_HEAD, [row(path, report) for path, report in sorted(tunings(root), key=_largest_gain_first)])


def tunings(root: Path) -> list[tuple[Path, TuneReport]]:
    return [(path, read(path)) for path in records(root / "bench" / "results")]


def _largest_gain_first(entry: tuple[Path, TuneReport]) -> tuple[float, str]:
    path, report = entry
    return -(report.speedup.ratio if report.speedup else 0.0), path.name


def experts_table(root: Path) -> str:
    """What bench/against_experts.py recorded; nothing, where it was not run."""
    rows = [experts_row(path) for path in sorted((root / "bench" / "results" / "experts").glob("*.json"))]
    return _table(EXPERTS_HEAD, rows) if rows else ""


def experts_row(path: Path) -> tuple[str, ...]:
    """Over whole windows, epochs' ends included; the record has the other figure as well."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        facts = record["facts"]
        ratios = {(one["of"], one["to"]): one for one in record["comparisons"] if one["figure"] == "mean"}
        return (
            f"[{record['name']}](experts/{path.name})",
            machine(facts["hardware"]),
            *(_mean(record, variant) for variant in ("script", "hotlap run", "expert")),
            _ratio(ratios["script", "hotlap run"]) if ("script", "hotlap run") in ratios else "-",  # it may be left out
            _ratio(ratios["expert", "hotlap run"]),
            ", ".join(f"{of} {_ratio(one)}" for (of, _), one in ratios.items() if of in TRAINERS) or "-",
            str(record["rounds"]),
            facts["date"].split()[0],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HotlapError(f"{path} is no record of bench/against_experts.py ({error!r}): move it away") from None


def computing_table(root: Path) -> str:
    """What bench/computing.py recorded: techniques by courses; nothing, where it was not run."""
    courses = [computed(path) for path in sorted((root / "bench" / "results" / "computing").glob("*.json"))]
    if not courses:
        return ""
    names = dict.fromkeys(name for _, cells in courses for name in cells if name not in COMPUTING_TOTALS)
    rows = [
        (name, *(cells.get(name, "-") for _, cells in courses))
        for name in (*names, *(total for total in COMPUTING_TOTALS if any(total in cells for _, cells in courses)))
    ]
    return _table(("alone / left out", *(head for head, _ in courses)), rows)


def computed(path: Path) -> tuple[str, dict[str, str]]:
    """A course: the head of its column, and its cells by technique."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        facts, arms = record["facts"], {arm["name"]: arm for arm in record["arms"]}
        alone = {name.removeprefix("alone "): arm for name, arm in arms.items() if name.startswith("alone ")}
        cells = {
            name: f"{_worth(arm, 'factor')} / {_worth(arms.get(f'without {name}'), 'worth')}"
            for name, arm in alone.items()
        }
        if "together" in arms:
            cells["**together**"] = _worth(arms["together"], "factor")
        cells["trials, date"] = f"{facts['trials']}, {facts['date'].split()[0]}"
        return f"[{record['course']}](computing/{path.name}), {machine(facts['hardware'])}", cells
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HotlapError(f"{path} is no record of bench/computing.py ({error!r}): move it away") from None


def feed_table(root: Path) -> str:
    """What bench/imagenet_feed.py recorded, and what was left out of it with the reason."""
    rows = [row for path in sorted((root / "bench" / "results").glob("feed-*.json")) for row in feed_rows(path)]
    return _table(FEED_HEAD, rows) if rows else ""


def feed_rows(path: Path) -> list[tuple[str, ...]]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        link = f"[{machine(record['facts']['hardware'])}, {record['facts']['date'].split()[0]}]({path.name})"
        timed = [
            (
                one["feeder"],
                f"{one['images_a_second']:,.0f}",
                figures.ratio(one["beside_plain"]) if one["beside_plain"] else "-",
                str(len(one["turns"])),
                link,
            )
            for one in record["results"]
        ]
        return [*timed, *((one, f"left out: {why}", "-", "0", link) for one, why in record["missing"].items())]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HotlapError(f"{path} is no record of bench/imagenet_feed.py ({error!r}): move it away") from None


def data_table(root: Path) -> str:
    """What bench/without_data.py recorded; nothing, where it was not run."""
    rows = [data_row(path) for path in sorted((root / "bench" / "results" / "data").glob("*.json"))]
    return _table(DATA_HEAD, rows) if rows else ""


def data_row(path: Path) -> tuple[str, ...]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        low, high = record["low"], record["high"]
        bounds = f" ({low:.3f} to {high:.3f})" if low is not None else " (one turn)"
        return (
            f"[{record['name']}](data/{path.name})",
            machine(record["facts"]["hardware"]),
            figures.seconds(record["drawn_seconds"]),
            figures.seconds(record["frozen_seconds"]),
            f"{record['ratio']:.3f}{bounds}",
            record["facts"]["date"].split()[0],
            ", ".join(record["techniques"]) or "the script as it is",
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HotlapError(f"{path} is no record of bench/without_data.py ({error!r}): move it away") from None


def _worth(arm: dict[str, Any] | None, what: str) -> str:
    if arm is None:
        return "-"
    if what in arm:
        return _ratio(arm[what], "one trial")
    return "failed" if arm["trouble"] else "not timed"


def _mean(record: dict[str, Any], variant: str) -> str:
    found = [lap["mean"] for lap in record["laps"] if lap["variant"] == variant]
    return figures.seconds(statistics.fmean(found)) if found else "-"


def _ratio(one: dict[str, Any], unbounded: str = "one round") -> str:
    if one["low"] is None:
        return f"{figures.ratio(one['ratio'])} ({unbounded})"
    return f"{figures.ratio(one['ratio'])} ({figures.bounds(Interval(one['ratio'], one['low'], one['high']), ' to ')})"


def _table(head: tuple[str, ...], found: list[tuple[str, ...]]) -> str:
    rows = [head, ("---",) * len(head), *found]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n" for cells in rows)


def _named(technique: str, setting: dict[str, object]) -> str:
    numbers = {key: value for key, value in setting.items() if not isinstance(value, bool)}
    return f"{technique} ({figures.setting(numbers)})" if numbers else technique


def _figure(reason: str) -> str:
    """The ratio in a reason, or the reason itself."""
    found = re.search(r"\d+\.\d+x(?: \([\d.]+ to [\d.]+\))?", reason)
    return f"{found[0]}{', not shown' if 'not shown' in reason else ''}" if found else f"({figures.line(reason)})"


def page(path: Path, *tables: tuple[re.Pattern[str], str]) -> tuple[Path, str, str]:
    """A page as it is and as it should be."""
    text = wanted = path.read_text(encoding="utf-8")
    for marks, listed in tables:
        if not marks.search(wanted):
            raise HotlapError(f"{path} has no place for the results: put the two marks back")
        wanted = marks.sub(lambda match, listed=listed: f"{match[1]}{listed}{match[2]}", wanted)  # type: ignore[misc]
    return path, text, wanted


def main(root: Path = ROOT) -> int:
    beside = root / "bench" / "results" / "README.md"
    try:
        pages = [
            page(root / "README.md", (MARKS, newest_table(root))),
            page(
                beside,
                (TUNINGS_MARKS, tunings_table(root)),
                (EXPERTS_MARKS, experts_table(root)),
                (COMPUTING_MARKS, computing_table(root)),
                (FEED_MARKS, feed_table(root)),
                (DATA_MARKS, data_table(root)),
            ),
        ]
    except HotlapError as error:
        print(error, file=sys.stderr)
        return 2
    stale = [(path, wanted) for path, text, wanted in pages if text != wanted]
    for path, wanted in stale:
        name = path.relative_to(root).as_posix()
        if "--check" in sys.argv:
            print(f"{name} is out of date: run `make results`")
        else:
            path.write_text(wanted, encoding="utf-8")
            print(f"wrote {name}")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
