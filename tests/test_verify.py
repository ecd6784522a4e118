"""hotlap.proof.json and `hotlap verify`: what was proven can be read, and checked again; what no longer holds fails by
name. That a tuning writes it, and that it then verifies, is in test_tune.py, which has a tuning."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import planted
import pytest
from report import samples
from tuning import MadeUpTimes
from waiting import PATIENCE_SECONDS

from hotlap import catalogue, cli
from hotlap import evidence as proofs
from hotlap import plan as plans
from hotlap.errors import HotlapError
from hotlap.evidence import Evidence
from hotlap.measure import sandbox
from hotlap.measure.trial import Trials
from hotlap.plan import Entry, Plan
from hotlap.report.findings import Facts, Interval, Kept, ParityCheck

protected = pytest.mark.skipif(sandbox.available() is not None, reason="trials cannot be protected here")

SCRIPT = """
import os, sys, torch
from torch.utils.data import DataLoader, Dataset

class Points(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.randn(16, generator=torch.Generator().manual_seed(i)), i % 4

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
open("log.txt", "a").write("started")
for epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
    for x, y in DataLoader(Points(), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


def hotlap(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hotlap", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_SECONDS,
    )


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def evidence_for(script: Path, *techniques: str) -> Evidence:
    figures = [ParityCheck("batches that differ, of 24", 0.0, "= 0", True)]
    figures.append(ParityCheck("loss difference, median", 4.56e-7, "<= 1e-03", True))
    return Evidence(
        script=script.name,
        fingerprint=plans.fingerprint(str(script)),
        arguments="",
        device="cpu",
        facts=Facts("a machine", "", "2.0.1", "hotlap tune train.py", 9, "2026-01-01 10:00 UTC", "0.0.9"),
        plan=[Kept(name, {}, 1.2, "equivalent") for name in techniques],
        speedup=Interval(2.0, 1.9, 2.1),
        script_seconds=[0.2, 0.2, 0.2],
        plan_seconds=[0.1, 0.1, 0.1],
        a_against_a=Interval(1.0, 0.99, 1.01),
        parity=figures,
        forced_steps=5,
        seeds=[1],
    )


def planned(folder: Path, *techniques: str, text: str = SCRIPT, name: str = "train.py") -> Path:
    """A script with a plan and a proof of it, as a tuning on another machine would have left them."""
    script = folder / name
    script.write_text(text)
    entries = [Entry(technique, {}, 1.2) for technique in techniques]
    known = plans.fingerprint(str(script)), "", "2026-01-01 10:00 UTC", "a machine", "2.0.1", "cpu"
    plans.write(str(script), Plan(name, *known, 2.0, 1.9, 2.1, entries))
    proofs.write(str(script), evidence_for(script, *techniques))
    return script


# the file ------------------------------------------------------------------------------------------------------


def test_there_and_back_for_two_scripts(tmp_path: Path) -> None:
    one, two = planned(tmp_path, "fused-optimizer", name="one.py"), planned(tmp_path, "sample-cache", name="two.py")
    assert proofs.read(str(one)) == evidence_for(one, "fused-optimizer")
    proofs.write(str(one), replace(evidence_for(one, "fused-optimizer"), seeds=[7]))
    assert proofs.read(str(one)).seeds == [7] and proofs.read(str(two)).seeds == [1]
    text = (tmp_path / proofs.FILE).read_text()
    assert text.startswith('{\n "version": 1,\n "proof": [\n') and text.index("one.py") < text.index("two.py")
    proofs.remove(str(one))
    assert proofs.read(str(one)) is None and proofs.read(str(two)) is not None
    proofs.remove(str(two))
    assert not (tmp_path / proofs.FILE).exists()
    assert sorted(os.listdir(tmp_path)) == ["hotlap.toml", "one.py", "two.py"], "and nothing half written"


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"version": 2}', '{"version": 1}', '{"version": 1, "proof": ["x"]}', '{"version": 1, "proof": 3}'],
)
def test_a_file_that_is_no_proof_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / proofs.FILE).write_text(text)
    with pytest.raises(HotlapError, match="tune again"):
        proofs.read(str(tmp_path / "train.py"))


def test_a_figure_that_is_no_number_is_one_sentence(tmp_path: Path) -> None:
    script = planned(tmp_path, "fused-optimizer")
    path = tmp_path / proofs.FILE
    path.write_text(path.read_text().replace("4.56e-07", '"small"'))
    with pytest.raises(HotlapError, match="no number"):
        proofs.read(str(script))


def test_what_changed_is_named_with_both_values(tmp_path: Path) -> None:
    script = planned(tmp_path, "fused-optimizer")
    plan, known = plans.read(str(script)), proofs.read(str(script))
    assert known.changes(plan, str(script), "", known.facts) == []
    script.write_text(SCRIPT + "# more\n")
    now = replace(known.facts, hardware="another", torch="2.13.0", hotlap="0.1.0")
    changed = known.changes(replace(plan, entries=[]), str(script), "3", now)
    words = ("the plan", "the script", "the arguments", "the machine", "torch (2.0.1 -> 2.13.0)", "hotlap (0.0.9")
    assert len(changed) == len(words) and all(c.startswith(w) for c, w in zip(changed, words, strict=True)), changed


@pytest.mark.parametrize("cut_short", [False, True])
def test_plan_and_proof_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_short: bool) -> None:
    """A tuning that finds nothing takes both away; one that was cut short says nothing and leaves both."""
    planned(tmp_path, "fused-optimizer")
    nothing = replace(samples.nothing_kept(), cut_short=cut_short)
    monkeypatch.setattr("hotlap.measure.tune.tune", lambda *rest: (nothing, None, None))
    monkeypatch.setattr("hotlap.report.folder.write", lambda report, folder: folder)
    monkeypatch.setattr(sys, "argv", ["hotlap", "tune", "train.py"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        cli.main()
    left = {"hotlap.toml", "hotlap.proof.json"} & set(os.listdir(tmp_path))
    assert len(left) == (2 if cut_short else 0), left


def test_a_proof_that_cannot_be_kept_stops_a_tuning_at_once(tmp_path: Path) -> None:
    planned(tmp_path, "fused-optimizer")
    (tmp_path / proofs.FILE).write_text("{")
    done = hotlap("tune", "train.py", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and "hotlap.proof.json cannot be read" in done.stderr


# the command ---------------------------------------------------------------------------------------------------


@protected
def test_what_changed_is_said_and_the_record_stands_beside(tmp_path: Path) -> None:
    script = planned(tmp_path, "fused-optimizer")
    script.write_text(SCRIPT + "# edited\n")
    before = contents(tmp_path)
    done = hotlap("verify", "train.py", "21", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("loss difference, median"))
    assert "4.6e-07" in row and "<= 1e-03" in row and row.rstrip().endswith("ok")
    for words in ("the script", "the arguments (- -> 21)", "the machine (a machine ->", "torch (2.0.1 ->"):
        assert words in " ".join(done.stdout.split()), done.stdout
    assert contents(tmp_path) == before, "log.txt was written in a trial's own view only"


@pytest.fixture
def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: Trials) -> Callable[..., int]:
    """`hotlap verify` in this process, with a catalogue that also holds what is planted."""
    known = {kind().id: kind() for kind in (*planted.WRONG, planted.Breaks, planted.DoesNothing)}
    find = catalogue.find
    monkeypatch.setattr(catalogue, "find", lambda name: known.get(name) or find(name))
    monkeypatch.setattr("hotlap.measure.verify.Trials", lambda: MadeUpTimes(trials, {}))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["hotlap", "verify", *arguments, "train.py"])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code

    return run


@protected
@pytest.mark.parametrize(
    ("technique", "words", "code"),
    [
        ("slightly-larger-learning-rate", "settings that differ", 1),
        ("shuffled-labels", "batches that differ", 1),
        ("breaks", "could not be applied", 1),
        ("does-nothing", "still the same training", 0),
    ],
)
def test_a_planted_fault_fails_by_name(tmp_path, verified, capsys, technique: str, words: str, code: int) -> None:
    """The proof on record says that all is well: only running it again can tell."""
    planned(tmp_path, technique)
    assert verified() == code
    out = capsys.readouterr().out
    assert words in out.split("\n\n")[1], out
    failed = [line for line in out.splitlines() if "FAILED" in line]
    assert bool(failed) == bool(code)
    assert not code or any(words in line for line in failed), out


@protected
def test_a_script_that_no_longer_repeats_itself_fails(tmp_path: Path, verified, capsys) -> None:
    planned(tmp_path, "fused-optimizer", text=SCRIPT.replace("manual_seed(i)", "manual_seed(os.urandom(1)[0])"))
    assert verified() == 1
    assert "no longer the same training: batches that differ" in capsys.readouterr().out


@protected
def test_the_speed_is_measured_again_when_asked(tmp_path, verified, capsys) -> None:
    planned(tmp_path, "does-nothing")
    assert verified("--speed") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"2\.0x, 1\.90-2\.10 on 2026-01-01 10:00 UTC; now \d\.\d+x, .* by a few pairs", said), said


@pytest.mark.parametrize(
    ("text", "missing", "words"),
    [
        (SCRIPT, "hotlap.toml", "no plan for train.py to verify: `hotlap tune` writes one if it finds"),
        (SCRIPT, "hotlap.proof.json", "`hotlap tune` writes one"),
        pytest.param("import torch\nraise ValueError('bad luck')\n", "", "mend that first", marks=protected),
        pytest.param(SCRIPT.replace("else 20", "else 0"), "", "train for longer", marks=protected),
    ],
)
def test_what_cannot_be_verified_is_one_sentence(
    tmp_path, verified, capsys, text: str, missing: str, words: str
) -> None:
    planned(tmp_path, "fused-optimizer", text=text)
    if missing:
        os.unlink(tmp_path / missing)
    before = contents(tmp_path)
    assert verified() == 2
    said = capsys.readouterr().err
    assert words in said and len(said.strip().splitlines()) == 1, said
    assert contents(tmp_path) == before
