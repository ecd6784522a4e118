"""Every ending of a trial is a recorded result, and none leaves a trace."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import psutil
import pytest
from waiting import PATIENCE_SECONDS

from hotlap.measure import landlock, sandbox
from hotlap.measure.trial import Trials

LOOP = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range({epochs}):
    for x, y in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        {body}
"""

protected = pytest.mark.skipif(sandbox.available() is not None, reason=f"no sandbox here: {sandbox.available()}")


def script(tmp_path: Path, text: str = "", body: str = "pass", epochs: int = 3) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(text) or LOOP.format(body=body, epochs=epochs))
    return path


def test_finished(run_script, tmp_path: Path) -> None:
    trial = run_script(script(tmp_path))
    assert (trial.ending, trial.run.steps, trial.good) == ("finished", 24, True)
    assert len(trial.run.step_seconds) == 24
    assert sum(trial.run.shares.values()) == pytest.approx(1)


def test_enough(run_script, tmp_path: Path) -> None:
    trial = run_script(script(tmp_path, epochs=10**6), steps=20)
    assert (trial.ending, trial.run.steps) == ("enough", 20)


@pytest.mark.parametrize(
    ("body", "ending"),
    [
        ("raise ValueError('no luck')", "raised: ValueError: no luck"),
        ("raise MemoryError", "out of memory"),
        ("import sys; sys.exit(4)", "exit: 4"),
        ("import os; os._exit(5)", "left with exit code 5 before it was done"),
        ("import os; os.kill(os.getpid(), 11)", "died of signal 11 (segmentation fault)"),
        ("import os; os.kill(os.getpid(), 9)", "out of memory"),
    ],
)
def test_other_endings(run_script, tmp_path: Path, body: str, ending: str) -> None:
    trial = run_script(script(tmp_path, body=body))
    assert trial.ending == ending
    assert not trial.good


def test_a_hang_is_ended(trials: Trials, run_script, tmp_path: Path) -> None:
    serving = trials._serving()
    trial = run_script(script(tmp_path, body="import time; time.sleep(600)"), limit_seconds=2.0)
    assert trial.ending.startswith("hang")
    assert trials._serving() is serving, "it was ended by the server, not together with it"


def test_a_technique_that_breaks_is_withdrawn(run_script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from planted import Breaks

    from hotlap.technique import Choice

    trial = run_script(script(tmp_path), [Choice(Breaks(), {})])
    assert trial.good
    assert "planted to fail" in trial.run.withdrawn[0]


@protected
def test_no_trace(run_script, tmp_path: Path) -> None:
    """Files written, changed, deleted and renamed; home, temp and absolute paths; shared memory; a daemon."""
    (tmp_path / "old.txt").write_text("as it was")
    (tmp_path / "gone.txt").write_text("still here")
    home = Path.home() / f".hotlap-test-{os.getpid()}"
    trial = run_script(
        script(
            tmp_path,
            f"""
            import os, subprocess, sys, tempfile, torch
            open("new.txt", "w").write("x")
            open("old.txt", "a").write("more")
            os.remove("gone.txt")
            torch.save({{"a": torch.ones(3)}}, "model.pt")
            open({str(home)!r}, "w").write("x")
            open(os.path.join(tempfile.gettempdir(), "hotlap-leak-{os.getpid()}"), "w").write("x")
            open("/dev/shm/hotlap-leak-{os.getpid()}", "w").write("x")
            subprocess.Popen(["setsid", "sleep", "1234.{os.getpid()}"])
            assert open("old.txt").read() == "as it wasmore" and os.path.exists("model.pt")
            print("seen by the trial")
            """,
        ),
        watched=False,
    )
    assert "seen by the trial" in trial.log
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gone.txt", "old.txt", "train.py"]
    assert (tmp_path / "old.txt").read_text() == "as it was"
    assert not home.exists()
    for place in ("/tmp", "/dev/shm"):
        assert not Path(place, f"hotlap-leak-{os.getpid()}").exists()
    sleepers = [p for p in psutil.process_iter(["cmdline"]) if f"1234.{os.getpid()}" in (p.info["cmdline"] or [])]
    assert sleepers == []


@protected
def test_no_network_but_loopback(run_script, tmp_path: Path) -> None:
    trial = run_script(
        script(
            tmp_path,
            """
            import socket
            server = socket.create_server(("127.0.0.1", 0))
            socket.create_connection(server.getsockname(), timeout=60)
            print("loopback works")
            try:
                socket.create_connection(("192.0.2.1", 80), timeout=60)
            except OSError as error:
                print("outside:", error.strerror or error)
            """,
        ),
        watched=False,
    )
    assert "loopback works" in trial.log
    assert "outside: Network is unreachable" in trial.log


def test_the_tuner_dies_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed outright in the middle of a trial: no process and no folder of the trial's is left running."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where no other test's server sweeps
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "train.py").write_text(LOOP.format(body="import time; time.sleep(0.1)", epochs=1000))
    code = f"""
import sys
from hotlap.measure.order import Order
from hotlap.measure.trial import Trials
trials = Trials()
trials.run(Order(name={str(tmp_path / "train.py")!r}, cwd={str(tmp_path)!r}, arguments=["mark-{os.getpid()}"]),
           on_progress=lambda steps: print("stepping", flush=True))
"""
    tuner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert tuner.stdout.readline() == "stepping\n"
    family = psutil.Process(tuner.pid).children(recursive=True)
    assert family
    tuner.kill()
    tuner.wait()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_SECONDS)
    assert alive == []
    left = Path(tempfile.gettempdir()).glob(f"hotlap-trials-{tuner.pid}-*")
    assert any(left), "killed outright, it cannot tidy up itself"
    with Trials():
        assert not list(Path(tempfile.gettempdir()).glob(f"hotlap-trials-{tuner.pid}-*")), "the next one does"


def test_the_server_never_computes() -> None:
    """A parallel product and a backward in a forked child: they hang if the server has run any tensor operation."""

    from hotlap.measure.order import Order

    with tempfile.TemporaryDirectory() as folder, Trials() as trials:
        path = Path(folder) / "canary.py"
        path.write_text(
            "import torch\na = torch.randn(700, 700, requires_grad=True)\n(a @ a).sum().backward()\nprint('sings')\n"
        )
        trial = trials.run(Order(name=str(path), cwd=folder, limit_seconds=PATIENCE_SECONDS, watched=False))
        assert "sings" in trial.log, trial.ending


@pytest.fixture(params=["namespace", "redirect", "none"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "namespace" and sandbox.available() is not None:
        pytest.skip("no namespaces here")
    if request.param == "redirect" and landlock.available() is not None:
        pytest.skip("no Landlock here")
    return request.param


def test_a_trial_finds_what_the_one_before_it_compiled(run_script, tmp_path: Path, kind: str) -> None:
    """By then the server's torch has named a folder of its own, where every trial would begin anew."""
    text = """
    import os
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    for folder in (cache_dir(), os.environ["CUDA_CACHE_PATH"]):
        os.makedirs(folder, exist_ok=True)
        print(*sorted(os.listdir(folder)))
        open(os.path.join(folder, "kernel"), "w").close()
    """
    kept = tmp_path / "kept"
    kept.mkdir()
    logs = [run_script(script(tmp_path, text), watched=False, sandbox=kind, kept_folder=str(kept)).log for _ in "ab"]
    assert [log.split() for log in logs] == [[], ["kernel", "kernel"]]


def test_a_script_that_wants_a_terminal(run_script, tmp_path: Path, kind: str) -> None:
    """It may ask how wide that is; who reads from it comes to the end at once, as from an empty input."""
    text = """
    import os, sys
    print(os.popen("stty size").read().split(), sys.stdin.isatty(), repr(sys.stdin.read()))
    try: input()
    except EOFError: print("the end")
    """
    trial = run_script(script(tmp_path, text), watched=False, terminal=[24, 100], sandbox=kind)
    assert trial.log == "['24', '100'] True ''\nthe end\n"
