"""Shared by all tests: a fork server for running scripts cheaply, and what this machine can and cannot do."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS
from warm import Warm

from hotlap.measure.order import Order
from hotlap.measure.trial import Trial, Trials

ROOT = Path(__file__).resolve().parent.parent
_COMPILED = "HOTLAP_TEST_COMPILED"
_kept: list[object] = []  # operators last as long as their library
_BF16 = "import torch; a = torch.ones(64, 64).bfloat16(); (a @ a).sum().item()"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept", action="store_true", help="rewrite after.py and findings.txt from what is produced")


def pytest_configure(config: pytest.Config) -> None:
    """Before torch is there. Its threads wait asleep, not spinning: three workers on two cores would take them from
    each other. Some virtual machines announce matrix units that their host does not let them use: every 16-bit product
    then dies of an illegal instruction, in plain python too. There, and only there, torch is told not to try."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    multiprocessing.set_forkserver_preload(["torch"])  # else every process that comes from there loads it anew
    planted = str(ROOT / "tests" / "measure")  # tests and trial processes import planted techniques by name
    sys.path.insert(0, planted)
    os.environ["PYTHONPATH"] = os.pathsep.join([planted, *filter(None, [os.environ.get("PYTHONPATH")])])
    if _COMPILED not in os.environ:  # one place for all workers and trials: torch's headers are compiled once
        os.environ[_COMPILED] = tempfile.mkdtemp(prefix="hotlap-compiled-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(_COMPILED), ignore_errors=True))
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(os.environ[_COMPILED], "inductor"))
    if "HOTLAP_TORCHVISION" in os.environ:
        _find_torchvision(os.environ["HOTLAP_TORCHVISION"])
    if "ONEDNN_MAX_CPU_ISA" not in os.environ and subprocess.run([sys.executable, "-c", _BF16]).returncode < 0:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"


def _find_torchvision(folder: str) -> None:
    """One that lies in a folder of its own and may be built for another torch: its operators do not load then, which
    its transforms do not need. Only tests in this process see it."""
    import torch

    sys.path.append(folder)
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(operators)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    """What a forked copy is asked is answered, however busy the machine is: no test tells by how soon."""
    with pytest.MonkeyPatch.context() as patch:
        for asking in ("purity", "worker_room"):
            patch.setattr(f"hotlap.parts.{asking}._PATIENCE_SECONDS", PATIENCE_SECONDS)
        yield


@pytest.fixture(scope="session")
def trials():
    with Trials() as server:
        yield server


@pytest.fixture(scope="session")
def warm():
    """`warm.run(*arguments, cwd=folder)` types a command where torch is loaded already."""
    with Warm() as python:
        yield python


@pytest.fixture
def run_script(trials: Trials):
    """Run a script in a trial of its own: `run_script(path, [choices], steps=...) -> Trial`."""

    def run(path: Path | str, choices=(), **wishes) -> Trial:
        kept = {"kept_folder": os.environ[_COMPILED]}
        order = {"limit_seconds": PATIENCE_SECONDS, "cwd": str(Path(path).parent), **kept, **wishes}
        return trials.run(Order(name=str(path), choices=[choice.to_json() for choice in choices], **order))

    return run


class Leaving(Exception):
    """Of a script whose machine is wanted back."""


@pytest.fixture
def told_to_leave():
    """Tells it, by a signal whose handler raises `Leaving`."""

    def handler(*_) -> None:
        raise Leaving("save and leave")

    before = signal.signal(signal.SIGUSR1, handler)
    yield lambda *_, **__: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
