"""A script, the same under hotlap, and an expert's loop are timed by one clock, in turns, and nothing of them stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from waiting import PATIENCE_SECONDS

from hotlap import plan

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "experts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import against_experts as bench
import captured
import cifar
import laps
import terminal
import trainers

SCRIPT = """
import os, subprocess, sys, time
import torch
assert os.get_terminal_size().columns == 150
with open("order.txt", "a") as file:
    file.write("hotlap " if "hotlap" in sys.modules else "script ")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", enabled="scaled" in sys.argv)
while True:
    optimizer.zero_grad()
    scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    time.sleep(0.004)
"""
EXPERT = SCRIPT.replace('"hotlap " if "hotlap" in sys.modules else "script "', '"expert "').replace("0.004", "0.001")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(terminal, "GRACE_SECONDS", 3.0)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "expert.py").write_text(EXPERT)
    return tmp_path


def run(project: Path, *more: str) -> int:
    own = ["tiny", "--script", str(project / "train.py"), "--expert", str(project / "expert.py")]
    short = ["--window", "0.2", "--warmup", "0", "--warmup-steps", "5", "--period", "7", "--limit", "600"]
    more = more if any(one in ("--plan", "--with") for one in more) else ("--with", "fused-optimizer", *more)
    return bench.main([*own, *short, "--results", str(project / "results"), "--rounds", "1", *more])


def records(project: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in (project / "results").glob("tiny-*.json")]


def test_figures_come_from_one_clock(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(project, "--", "scaled") == 0
    assert (project / "order.txt").read_text().split() == ["script", "hotlap", "expert"]
    (found,) = records(project)
    assert [lap["variant"] for lap in found["laps"]] == ["script", "hotlap run", "expert"]
    assert all(lap["steps"] % 7 == 0 and lap["warmup_steps"] == 5 for lap in found["laps"])
    assert all(lap["mean"] * lap["steps"] >= 0.2 and lap["level"] > 0.001 for lap in found["laps"])
    assert {(lap["optimizer"], lap["weights"]) for lap in found["laps"]} == {("SGD", 10)}
    assert "fused-optimizer" in found["laps"][1]["said"][0] and not found["laps"][0]["said"]
    assert found["rounds"] == 1 and found["why_fewer"] == "" and found["facts"]["trials"] == 3
    assert str(project) not in json.dumps(found)
    assert len(found["comparisons"]) == 6 and all(one["ratio"] > 0 for one in found["comparisons"])
    last = capsys.readouterr().out
    assert "script / hotlap run, whole window: " in last and "expert / hotlap run, training steps only: " in last


def test_one_that_dies_is_shown_with_its_last_lines(project: Path) -> None:
    (project / "expert.py").write_text("print('so far, so good')\nraise ValueError('no such lane')")
    expert = bench.Variant("expert", [sys.executable, "expert.py"], project)
    with pytest.raises(bench.Failed) as failed:
        bench.compete([expert], {}, 2, PATIENCE_SECONDS, print)
    said = str(failed.value)
    assert "expert ended with 1 after" in said and "so far, so good" in said and "ValueError: no such lane" in said


def test_variants_take_turns_and_whole_rounds_are_kept(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def made(variant: bench.Variant, number: int, order: dict, limit_seconds: float) -> bench.Lap:
        ran.append(variant.name)
        if number == 2 and variant.name == "expert":
            raise bench.Failed("expert ended with 1\n    File /home/someone/train.py")
        return lap(variant.name, 1.0)

    monkeypatch.setattr(bench, "lap", made)
    both = [bench.Variant(name, [], project) for name in ("script", "expert")]
    rounds, why_fewer = bench.compete(both, {}, 5, 60.0, lambda line: None)
    assert ran == ["script", "expert"] * 3
    assert [len(laps) for laps in rounds] == [2, 2] and why_fewer == "expert ended with 1"


def test_a_trainer_that_is_not_there_stops_nobody_else(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def made(variant: bench.Variant, number: int, order: dict, limit_seconds: float) -> bench.Lap:
        ran.append(variant.name)
        if variant.name == "accelerate":
            raise bench.Failed("accelerate ended with 1")
        seconds = {"script": 4.0, "hotlap run": 1.0, "expert": 2.0, "lightning": 3.0}[variant.name]
        return lap(variant.name, seconds)

    monkeypatch.setattr(bench, "lap", made)
    given = bench.options(
        ["cifar", "--script", str(project / "train.py"), "--with", "x", "--beside", "accelerate,lightning"]
    )
    five = bench.variants(given)
    assert [one.name for one in five][3:] == ["accelerate", "lightning"]
    assert list(five[4].command)[-2:] == ["--trainer", "lightning"] and "cifar" in five[4].command
    rounds, why_fewer = bench.compete(five, {}, 2, 60.0, lambda line: None)
    assert ran == [
        "script",
        "hotlap run",
        "expert",
        "accelerate",
        "lightning",
        "script",
        "hotlap run",
        "expert",
        "lightning",
    ]
    assert why_fewer == "no figures from accelerate"
    found = {(one["of"], one["to"]): one["ratio"] for one in bench.comparisons(rounds) if one["figure"] == "mean"}
    assert found["lightning", "hotlap run"] == pytest.approx(3) and found["script", "lightning"] == pytest.approx(4 / 3)
    assert not any("accelerate" in pair for pair in found)


@pytest.mark.parametrize(
    ("at", "kept"),
    [((0, "lightning"), 1), ((1, "hotlap run"), 1), ((0, "expert"), 0)],
    ids=["all that is needed is there", "a whole round is there", "nothing to compare"],
)
def test_an_interrupt_keeps_what_can_be_compared(
    project: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[int, str], kept: int
) -> None:
    def made(variant: bench.Variant, number: int, order: dict, limit_seconds: float) -> bench.Lap:
        if (number, variant.name) == at:
            raise KeyboardInterrupt
        return lap(variant.name, 1.0)

    monkeypatch.setattr(bench, "lap", made)
    given = ["cifar", "--script", str(project / "train.py"), "--with", "x", "--beside", "lightning", "--no-script"]
    three = bench.variants(bench.options(given))
    assert [one.name for one in three] == ["hotlap run", "expert", "lightning"]
    if not kept:
        with pytest.raises(KeyboardInterrupt):
            bench.compete(three, {}, 2, 60.0, lambda line: None)
        return
    rounds, why_fewer = bench.compete(three, {}, 2, 60.0, lambda line: None)
    assert len(rounds) == kept and why_fewer == "it was interrupted"
    found = {(one["of"], one["to"]) for one in bench.comparisons(rounds)}
    assert ("expert", "hotlap run") in found and not any("script" in pair for pair in found)


def test_trainers_are_known_by_name_and_for_two_courses(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--script", str(project / "train.py"), "--beside"]
    assert bench.options(["resnet50-course", *own, "trainers"]).beside == list(bench.TRAINERS)
    for wrong in (["resnet50", *own, "keras"], ["mnist", *own, "trainers"]):
        with pytest.raises(SystemExit):
            bench.options(wrong)
    said = capsys.readouterr().err
    assert "not keras" in said and "cifar and resnet50, not mnist" in said


def test_a_trainer_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(SystemExit, match="pip install pytorch-lightning"):
        trainers.installed("lightning")


def test_another_network_is_no_comparison(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"script": 10, "expert": 15}
    monkeypatch.setattr(bench, "lap", lambda variant, *_: replace(lap(variant.name, 1.0), weights=other[variant.name]))
    both = [bench.Variant(name, [], project) for name in other]
    with pytest.raises(bench.Failed, match="the expert trains 15 weights by SGD, the script 10 by SGD"):
        bench.compete(both, {}, 1, 60.0, lambda line: None)


def test_a_borrowed_plan_lies_beside_the_script_for_the_run_only(project: Path) -> None:
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text(SCRIPT)
    made = plan.Plan("train.py", "", "", "", "", "", "", 2.0, 1.9, 2.1, [plan.Entry("fused-optimizer", {}, 2.0)])
    written = plan.write(str(elsewhere / "train.py"), made)
    given = bench.options(["tiny", "--script", str(project / "train.py"), "--plan", written])
    with bench.planned(given) as techniques:
        assert techniques == ["fused-optimizer"] and (project / "hotlap.toml").exists()
        with pytest.raises(bench.Failed, match="is there already"), bench.planned(given):
            pass
        assert (project / "hotlap.toml").exists()
    assert not (project / "hotlap.toml").exists() and Path(written).exists()


def test_without_a_plan_nothing_is_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "empty.toml").write_text("version = 1\n")
    assert run(project, "--plan", str(project / "empty.toml")) == 1
    assert "there is no plan for" in capsys.readouterr().err
    assert not (project / "order.txt").exists() and not (project / "hotlap.toml").exists()


def test_nobody_is_left(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a child in a session of its own, nor one that will not leave when it is told to."""
    monkeypatch.setattr(terminal, "GRACE_SECONDS", 0.2)  # nothing will come of waiting
    code = """
        import os, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print(child.pid, flush=True)
        open("there", "w").close()
        while True:
            try:
                time.sleep(600)
            except BaseException:
                pass
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ending = terminal.watched(command, project, os.environ, project / "there", PATIENCE_SECONDS)
    assert ending.code is None and ending.seconds < PATIENCE_SECONDS, "once the file was there, not at the limit"
    assert not psutil.pid_exists(int(ending.lines[0])) or psutil.Process(int(ending.lines[0])).status() == "zombie"


def test_the_next_sitecustomize_still_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "other").mkdir()
    (project / "other" / "sitecustomize.py").write_text("import os; open('ran', 'w').close()")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project / "other"), os.environ.get("PYTHONPATH", "")]))
    order = {"warmup_steps": 2, "warmup_seconds": 0, "window_seconds": 0, "period": 3}
    lap = bench.lap(bench.Variant("script", [sys.executable, "train.py"], project), 0, order, PATIENCE_SECONDS)
    assert lap.steps == 3 and (project / "ran").exists()


def lap(variant: str, seconds: float) -> bench.Lap:
    return bench.Lap(variant, 0, seconds, seconds, 1, 0.0, 0.0, 0, "SGD", 1, [], [])


def test_the_round_is_the_unit() -> None:
    rounds = [[lap("script", 4 * pace), lap("hotlap run", pace)] for pace in (1.0, 3.0, 2.0)]
    made = bench.ratio(rounds, "script", "hotlap run", "mean")
    assert made.low == pytest.approx(4) and made.high == pytest.approx(4)  # the machine's drift cancels
    rounds = [[lap("script", 2.0), lap("hotlap run", 1.0)], [lap("script", 8.0), lap("hotlap run", 1.0)]]
    made = bench.ratio(rounds, "script", "hotlap run", "mean")
    assert made.ratio == pytest.approx(4) and made.low < 1 < 16 < made.high


def test_crops_and_flips_are_those_of_the_padded_image() -> None:
    images = torch.arange(2 * 32 * 32 * 3).view(2, 32, 32, 3) % 251
    padded = torch.nn.functional.pad(images, (0, 0, 4, 4, 4, 4))
    pixels = cifar.Pixels("cpu")
    plain = type("", (cifar.Pixels,), {"__call__": lambda self, images: images})("cpu")
    places = [(flip, top, left) for flip in (False, True) for top in range(9) for left in range(9)]
    seen = set()
    for image, index in zip(plain.augmented(padded, torch.tensor([0, 1] * 40)), [0, 1] * 40, strict=True):
        crops = [(place, padded[index, place[1] : place[1] + 32, place[2] : place[2] + 32]) for place in places]
        found = [place for place, crop in crops if torch.equal(image, crop.flip(1) if place[0] else crop)]
        assert len(found) == 1
        seen.update(found)
    assert {flip for flip, _, _ in seen} == {False, True} and len(seen) > 30
    white = pixels(torch.full((1, 32, 32, 3), 255))
    expected = torch.tensor([(1 - mean) / std for mean, std in zip(cifar.MEAN, cifar.STD, strict=True)])
    assert torch.allclose(white[0, :, 5, 7], expected, atol=1e-5) and white.shape == (1, 3, 32, 32)


def test_the_expert_takes_the_network_the_script_names(tmp_path: Path) -> None:
    assert cifar.named_network(tmp_path) == "ResNet18"
    (tmp_path / "main.py").write_text(
        "net = VGG('VGG19')\n# net = ResNet18()\nnet = SimpleDLA()\nnet = net.to(device)\n"
    )
    assert cifar.named_network(tmp_path) == "SimpleDLA"


@pytest.mark.parametrize(
    ("spelled", "named"), [("from resnet import *", "ResNet18"), ("from .dla import *", "SimpleDLA")]
)
def test_networks_are_found_in_older_and_newer_commits(tmp_path: Path, spelled: str, named: str) -> None:
    """In older ones the models import each other by bare names, as Python 2 let them."""
    (tmp_path / "models").mkdir()
    (tmp_path / "main.py").write_text(f"net = {named}()\nif device:\n    net = DataParallel(net)\n")
    (tmp_path / "models" / "__init__.py").write_text(spelled)
    code = "import torch\nclass {}(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(2, 3)\n"
    for name, file in (("ResNet18", "resnet"), ("SimpleDLA", "dla")):
        (tmp_path / "models" / f"{file}.py").write_text(code.format(name))
    looking = "import sys; sys.path.insert(0, sys.argv[1]); import argparse, cifar; given = argparse.Namespace("
    looking += "public=sys.argv[2], model=None); name, model = cifar.network(given); print(name, type(model).__name__)"
    experts = Path(bench.__file__).parent / "experts"
    done = subprocess.run(
        [sys.executable, "-c", looking, experts, tmp_path], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.split() == [named, named]


def test_a_late_log_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    log, loss = laps.LateLog("cpu"), torch.zeros(())
    for number in range(3):
        loss.fill_(number)  # as a captured step does
        log.write(f"step {number}", loss)
    log.flush()
    log.flush()
    assert capsys.readouterr().out.split("\n")[:-1] == [f"step {n} loss {n}.000000" for n in range(3)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_captured_steps_train_as_plain_ones_do() -> None:
    def weights(capture: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2).cuda()
        rate = torch.tensor(0.1, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, fused=True)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = captured.captured(step, "cuda", "step") if capture else step
        for number in range(12):
            rate.fill_(0.1 / (number + 1))
            run(torch.randn(8 if number % 3 else 5, 4, device="cuda"))
        return model.weight.detach().clone()

    assert torch.allclose(weights(True), weights(False), atol=1e-6)
