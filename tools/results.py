"""Write the README's table of results from the raw records in bench/results. `--check` only says whether it is out of
date. Needs neither a GPU nor torch: a record holds all it takes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hotlap.errors import HotlapError
from hotlap.report import figures, folder, wording
from hotlap.report.findings import TuneReport

ROOT = Path(__file__).resolve().parent.parent
MARKS = re.compile(r"(<!-- results -->\n).*?(<!-- /results -->)", re.DOTALL)
HEAD = ("script", "machine", "a step", "faster by", "kept", "trials", "date", "torch", "record")
OTHERS = ("overhead-", "exhaustive-")  # records of other benches, which are no tunings


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


def row(path: Path, report: TuneReport, root: Path) -> tuple[str, ...]:
    """Public scripts go by the name of their record, since half of them are called main.py."""
    script = f"`{wording.with_arguments(report)}`"
    if path.parent.name == "tune":
        script = f"{path.stem.rpartition('-')[0] or path.stem}: {script}"
    step = figures.seconds(report.before_seconds)
    if report.kept:
        step = figures.before_after(report.before_seconds, report.after_seconds)
    return (
        script,
        machine(report.facts.hardware),
        step,
        gain(report),
        kept(report),
        str(report.facts.trials),
        report.facts.date.split()[0],
        report.facts.torch.split("+")[0],
        f"[raw]({path.relative_to(root).as_posix()})",
    )


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
    tried = [f"{one.technique} {_figure(one.reason)}" for one in alone]
    return f"nothing; tried {', '.join(tried)}" if tried else "nothing; nothing was worth a trial"


def machine(hardware: str) -> str:
    parts = [re.sub(r" \(.*?\)", "", part) for part in hardware.split(", ")]
    return ", ".join([parts[0], *(part for part in parts[1:] if part.endswith("cores"))])


def table(root: Path) -> str:
    found = [(path, read(path)) for path in records(root / "bench" / "results")]
    found.sort(key=lambda entry: (-(entry[1].speedup.ratio if entry[1].speedup else 0.0), entry[0].name))
    rows = [HEAD, ("---",) * len(HEAD), *(row(path, report, root) for path, report in found)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n" for cells in rows)


def _named(technique: str, setting: dict[str, object]) -> str:
    numbers = {key: value for key, value in setting.items() if not isinstance(value, bool)}
    return f"{technique} ({figures.setting(numbers)})" if numbers else technique


def _figure(reason: str) -> str:
    """The ratio in a reason, or the reason itself."""
    found = re.search(r"\d+\.\d+x(?: \([\d.]+ to [\d.]+\))?", reason)
    return f"{found[0]}{', not shown' if 'not shown' in reason else ''}" if found else f"({figures.line(reason)})"


def main(root: Path = ROOT) -> int:
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    try:
        if not MARKS.search(text):
            raise HotlapError(f"{readme} has no place for the results: put the two marks back")
        listed = table(root)
    except HotlapError as error:
        print(error, file=sys.stderr)
        return 2
    wanted = MARKS.sub(lambda match: f"{match[1]}{listed}{match[2]}", text)
    if wanted == text:
        return 0
    if "--check" in sys.argv:
        print("README.md is out of date: run `make results`")
        return 1
    readme.write_text(wanted, encoding="utf-8")
    print("wrote README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
