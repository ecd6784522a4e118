"""How well `hotlap check` reads: recall and precision against labels made by hand, and how long it takes.

    python bench/reading.py --public FOLDER            the four public repositories
    python bench/reading.py --public FOLDER --blind    twenty files that no rule was written against

FOLDER holds the files that labels/files.csv names, at the commits named there. labels/README.md says how the labels
were made. A finding within two lines of a label of its technique is right. A label that engineers would argue about
(certain=no) counts neither as a miss nor as a false alarm; techniques nobody labelled are left out of the score.
Times are taken on pytorch/examples in turns, cold (no answers kept, files out of the page cache) and warm, beside
TorchFix where that is installed."""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

LABELS = Path(__file__).resolve().parent / "labels"
SLACK_LINES = 2
HOTLAP = [sys.executable, "-m", "hotlap", "check", "--format", "json"]
TIMED = "examples"
JUDGED = (
    "loader-workers",
    "persistent-workers",
    "pinned-batches",
    "device-born-tensors",
    "zero-copy-tensors",
    "async-copies",
    "sync-free-loop",
    "single-precision",
    "fused-attention",
    "no-bias-before-norm",
    "fused-optimizer",
    "grads-to-none",
    "no-data-parallel",
    "current-apis",
    "grad-accumulation",
    "freed-memory",
    "grad-free-evaluation",
    "debug-off",
    "einops-rearrange",
)


@dataclass(frozen=True)
class Label:
    file: str
    first: int
    last: int
    technique: str
    is_certain: bool
    why: str

    def covers(self, finding: Finding) -> bool:
        return (self.file, self.technique) == (
            finding.file,
            finding.technique,
        ) and self.first - SLACK_LINES <= finding.line <= self.last + SLACK_LINES

    def __str__(self) -> str:
        return f"{self.file}:{self.first} {self.technique} ({self.why})"


@dataclass(frozen=True)
class Finding:
    file: str
    line: int
    technique: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.technique} ({self.message})"


@dataclass(frozen=True)
class Score:
    found: list[Label]
    missed: list[Label]
    right: list[Finding]
    false: list[Finding]
    neutral: list[Finding]

    @classmethod
    def of(cls, labels: Iterable[Label], findings: Iterable[Finding]) -> Score:
        labels, findings = list(labels), list(findings)
        score = cls([], [], [], [], [])
        for label in (one for one in labels if one.is_certain):
            (score.found if any(map(label.covers, findings)) else score.missed).append(label)
        for finding in findings:
            covering = [label for label in labels if label.covers(finding)]
            if any(label.is_certain for label in covering):
                score.right.append(finding)
            else:
                (score.neutral if covering else score.false).append(finding)
        return score

    def row(self) -> str:
        labels, judged = len(self.found) + len(self.missed), len(self.right) + len(self.false)
        return (
            f"{labels:7d} {len(self.found):6d} {share(len(self.found), labels):>7} "
            f"{judged:9d} {len(self.false):6d} {share(len(self.right), judged):>10} {len(self.neutral):8d}"
        )


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def places(kind: str) -> dict[tuple[str, str], str]:
    """(repository, path in it) -> the file's place below FOLDER, for one set of labels."""
    with (LABELS / "files.csv").open(newline="") as table:
        rows = [row for row in csv.DictReader(table) if row["set"] == kind]
    return {(row["repository"], row["path"]): row["file"] for row in rows}


def read_labels(kind: str) -> list[Label]:
    files = places(kind)
    with (LABELS / f"{kind}.csv").open(newline="") as table:
        return [
            Label(
                files[row["repository"], row["path"]],
                *_span(row["line"]),
                row["technique"],
                row["certain"] == "yes",
                row["why"],
            )
            for row in csv.DictReader(table)
        ]


def _span(line: str) -> tuple[int, int]:
    first, _, last = line.partition("-")
    return int(first), int(last or first)


def checked(folder: Path, targets: list[str]) -> list[Finding]:
    """What `hotlap check` says of the files and folders below FOLDER; each folder is read by itself."""
    findings = []
    for target in targets:
        done = subprocess.run([*HOTLAP, target], cwd=folder, capture_output=True, text=True)
        print(done.stderr, end="", file=sys.stderr)
        if done.returncode not in (0, 1) and not done.stdout.strip():
            sys.exit(f"hotlap check {target} ended with {done.returncode}")
        for one in json.loads(done.stdout):
            file = Path(os.path.relpath(folder / one["path"], folder)).as_posix()
            findings.append(Finding(file, one["line"], one["technique"], one["message"]))
    return findings


def report(labels: list[Label], findings: list[Finding]) -> Iterator[str]:
    judged = [finding for finding in findings if finding.technique in JUDGED]
    heads = ("labels", "found", "recall", "findings", "false", "precision", "neutral")
    yield "{:22} {:>7} {:>6} {:>7} {:>9} {:>6} {:>10} {:>8}".format("", *heads)
    for technique in JUDGED:
        alone = Score.of(_about(technique, labels), _about(technique, judged))
        yield f"{technique:22} {alone.row()}"
    total = Score.of(labels, judged)
    yield f"{'total':22} {total.row()}"
    if len(judged) < len(findings):
        others = sorted({finding.technique for finding in findings} - set(JUDGED))
        yield f"not judged: {len(findings) - len(judged)} findings of {', '.join(others)}"
    for title, items in (("missed", total.missed), ("false alarms", total.false)):
        yield f"\n{title}: {len(items)}"
        yield from (f"  {item}" for item in items)


def _about(technique: str, items: Iterable[Label] | Iterable[Finding]) -> list:
    return [item for item in items if item.technique == technique]


def timings(folder: Path, rounds: int) -> Iterator[str]:
    """Seconds for each way of reading pytorch/examples, in the order A B C C B A."""
    runs: dict[str, Callable[[], float]] = {
        "hotlap cold": lambda: cold_seconds(folder),
        "hotlap warm": lambda: seconds([*HOTLAP, TIMED], folder),
    }
    torchfix = shutil.which("torchfix") or shutil.which("torchfix", path=str(Path(sys.executable).parent))
    if torchfix:
        runs["torchfix"] = lambda: seconds([torchfix, "--select", "ALL", TIMED], folder)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    seconds([*HOTLAP, TIMED], folder)  # writes the bytecode that warm runs find
    for turn in range(rounds):
        for name in list(runs)[:: -1 if turn % 2 else 1]:
            taken[name].append(runs[name]())
    files = sum(1 for _ in (folder / TIMED).rglob("*.py"))
    yield f"\n{TIMED} ({files} files), {rounds} runs each in turns"
    for name, each in taken.items():
        yield f"  {name:12} {statistics.median(each):6.2f} s  ({min(each):.2f} to {max(each):.2f})"
    if torchfix:
        ratios = [other / ours for other, ours in zip(taken["torchfix"], taken["hotlap warm"], strict=True)]
        yield f"  torchfix takes {statistics.median(ratios):.1f} times as long as hotlap warm"
    else:
        yield "  torchfix is not installed: nothing to compare with"


def seconds(command: list[str], folder: Path, **extra: str) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env={**os.environ, **extra}, capture_output=True)
    taken = time.perf_counter() - start
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return taken


def cold_seconds(folder: Path) -> float:
    """As after installing, which compiles bytecode: no answer is kept yet, and the files are no longer in memory."""
    for path in (folder / TIMED).rglob("*.py"):
        with path.open("rb") as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with tempfile.TemporaryDirectory() as empty:
        return seconds([*HOTLAP, TIMED], folder, XDG_CACHE_HOME=empty)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--public", type=Path, required=True, metavar="FOLDER", help="where the labelled files lie")
    parser.add_argument("--blind", action="store_true", help="the twenty blind files instead of the repositories")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each tool; 0 for none (default 5)")
    wishes = parser.parse_args()
    folder, kind = wishes.public.resolve(), "blind" if wishes.blind else "public"
    files = list(places(kind).values())
    absent = [file for file in files if not (folder / file).is_file()]
    if absent:
        sys.exit(f"{len(absent)} of {len(files)} labelled files are not in {folder}, {absent[0]} for one")
    targets = files if wishes.blind else sorted({file.split("/")[0] for file in files})
    for line in report(read_labels(kind), checked(folder, targets)):
        print(line)
    if wishes.rounds and not wishes.blind:
        for line in timings(folder, wishes.rounds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
