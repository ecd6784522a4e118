"""The checks of installation and system, shown good and bad; those of the GPU are in test_readiness_device.py."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from readiness_facts import BOX, LAPTOP, NO_CUDA, WELL, bad, good, unasked

from hotlap.observe.machine import GIB
from hotlap.observe.readiness import Probe, Readiness, installation, probe, readiness, system

# the installation


def test_torchvision_matches():
    good(installation.torchvision_matches("2.11.0+cu130", "0.26.0+cu130"))
    good(installation.torchvision_matches("2.11.0", "0.26.1"))
    wrong = installation.torchvision_matches("2.11.0", "0.25.0")
    assert bad(wrong) == "pip install 'torchvision==0.26.*'"
    bad(installation.torchvision_matches("2.11.0+cu130", "0.26.0+cpu"))
    unasked(installation.torchvision_matches("2.11.0", None))
    unasked(installation.torchvision_matches("3.0.0", "1.0.0"))


def test_one_torch(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for site in (first, second):
        (site / "torch").mkdir(parents=True)
        (site / "torch" / "version.py").write_text("")
    good(installation.one_torch([str(first), str(first)]))
    assert str(second) in bad(installation.one_torch([str(first), str(second)]))
    unasked(installation.one_torch([str(tmp_path)]))
    for version in ("2.10.0", "2.11.0"):
        (first / f"torch-{version}.dist-info").mkdir()
    assert "uninstall" in bad(installation.one_torch([str(first)]))


def conda(prefix: Path, **channels: str) -> Path:
    (prefix / "conda-meta").mkdir(parents=True)
    for name, channel in channels.items():
        record = {"name": name, "channel": channel}
        (prefix / "conda-meta" / f"{name}-1.0-0.json").write_text(json.dumps(record))
    return prefix


def test_conda_and_pip(tmp_path):
    unasked(installation.conda_and_pip(tmp_path))
    prefix = conda(tmp_path / "env", pytorch="conda-forge", numpy="conda-forge")
    record = prefix / "lib/python3.11/site-packages/torch-2.11.0.dist-info"
    record.mkdir(parents=True)
    (record / "INSTALLER").write_text("conda\n")
    good(installation.conda_and_pip(prefix))
    (record / "INSTALLER").write_text("pip\n")
    remedy = "pip uninstall -y torch && conda install --force-reinstall pytorch"
    assert bad(installation.conda_and_pip(prefix)) == remedy


def test_one_channel(tmp_path):
    unasked(installation.one_channel(tmp_path))
    good(installation.one_channel(conda(tmp_path / "one", numpy="conda-forge", scipy="conda-forge")))
    mixed = conda(tmp_path / "two", numpy="pkgs/main/linux-64", scipy="conda-forge")
    assert "strict" in bad(installation.one_channel(mixed))


# the system


def test_instruction_sets():
    good(system.instruction_sets(BOX, WELL))
    good(system.instruction_sets(replace(BOX, instructions=("avx2", "avx512")), WELL))
    unasked(system.instruction_sets(LAPTOP, WELL))
    dies = replace(WELL, half_ending="SIGILL")
    assert bad(system.instruction_sets(BOX, dies)) == "export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
    assert "bf16 off" in bad(system.instruction_sets(LAPTOP, dies))


def test_threads_fit():
    good(system.threads_fit(16, {}, 16))
    good(system.threads_fit(16, {"OMP_NUM_THREADS": "8"}, 8))
    assert bad(system.threads_fit(4, {}, 64)) == "export OMP_NUM_THREADS=4"
    assert bad(system.threads_fit(4, {"MKL_NUM_THREADS": "9"}, 9)) == "export MKL_NUM_THREADS=4"
    assert bad(system.threads_fit(16, {"OMP_NUM_THREADS": "1"}, 1)) == "unset OMP_NUM_THREADS"
    unasked(system.threads_fit(16, {}, None))


def test_shared_memory():
    good(system.shared_memory(8 * GIB, in_container=True))
    assert "--shm-size" in bad(system.shared_memory(64 * 2**20, in_container=True))
    assert "remount" in bad(system.shared_memory(64 * 2**20, in_container=False))
    unasked(system.shared_memory(None, in_container=False))


def test_open_files():
    good(system.open_files(20000, 20000))
    good(system.open_files(-1, -1))
    assert bad(system.open_files(1024, 524288)) == "ulimit -n 65536"
    assert bad(system.open_files(1024, 8192)) == "ulimit -n 8192"
    assert "prlimit" in bad(system.open_files(1024, 1024))


MOUNTS = """\
overlay / overlay rw 0 0
server:/home /home nfs4 rw 0 0
/dev/nvme0n1p2 /scratch ext4 rw 0 0
/dev/sda1 /archive ext4 rw 0 0
/dev/vda /virtual ext4 rw 0 0
/dev/dm-0 /volume xfs rw 0 0
/dev/unknown /strange ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
"""


@pytest.fixture
def blocks(tmp_path) -> Path:
    """A /sys with a solid-state disk, one that turns, a virtual one, and a volume over the one that turns."""
    (tmp_path / "class/block").mkdir(parents=True)
    for disk, part, turns in (("nvme0n1", "nvme0n1p2", 0), ("sda", "sda1", 1), ("vda", None, 1), ("dm-0", None, 0)):
        folder = tmp_path / "devices" / disk
        (folder / "queue").mkdir(parents=True)
        (folder / "queue/rotational").write_text(f"{turns}\n")
        (tmp_path / "class/block" / disk).symlink_to(folder)
        if part:
            (folder / part).mkdir()
            (tmp_path / "class/block" / part).symlink_to(folder / part)
    (tmp_path / "devices/dm-0/slaves").mkdir()
    (tmp_path / "devices/dm-0/slaves/sda1").symlink_to(tmp_path / "devices/sda/sda1")
    return tmp_path


def test_storage(blocks):
    def lies(path: str) -> Readiness:
        return system.storage(Path(path), MOUNTS, blocks)

    assert "solid state" in good(lies("/scratch/data"))
    assert "in memory" in good(lies("/dev/shm/data"))
    assert "cp -r DATA /scratch/" in bad(lies("/home/me"))
    assert "network" in lies("/home/me").finding
    assert "overlay" in lies("/root").finding and bad(lies("/root"))
    assert "turns" in lies("/archive").finding and bad(lies("/archive"))
    assert bad(lies("/volume"))
    assert "virtual" in unasked(lies("/virtual"))
    unasked(lies("/strange"))
    unasked(system.storage(Path("/"), "", blocks))
    nowhere = "server:/home /home nfs4 rw 0 0\n"
    assert "/dev/shm/" in bad(system.storage(Path("/home"), nowhere, blocks))


def test_disk_space():
    good(system.disk_space(Path("/data"), 1000 * GIB, 100 * GIB))
    assert "du -xh" in bad(system.disk_space(Path("/data"), 1000 * GIB, 20 * GIB))
    bad(system.disk_space(Path("/data"), 10 * GIB, GIB))


# all of it


def test_every_row_once_and_every_bad_one_mended(tmp_path):
    rows = readiness(LAPTOP, tmp_path, probe=replace(NO_CUDA, half_ending="SIGILL"))
    assert len({row.name for row in rows}) == len(rows) == 17
    assert all(row.remedy for row in rows if row.ok is False)
    assert any(row.ok is False for row in rows)


def test_the_probe_survives_what_it_asks(monkeypatch):
    def ends(returncode: int, stdout: str = "", stderr: str = ""):
        monkeypatch.setattr(
            subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, returncode, stdout, stderr)
        )
        return Probe.read()

    facts = json.dumps({"threads": 4, "cuda": False, "cuda_error": "none", "cudnn": None})
    assert ends(0, f"a warning\n{facts}\n") == Probe(4, False, "none", None, None)
    assert ends(1, stderr="Traceback\nImportError: libfoo").error == "ImportError: libfoo"
    assert ends(-11).error == "SIGSEGV"

    def slow(*a, **k):
        raise subprocess.TimeoutExpired("python", 60)

    monkeypatch.setattr(subprocess, "run", slow)
    assert Probe.read().error == "no answer in 60 s"


def test_the_probe_tells_how_a_bf16_product_died(monkeypatch):
    facts = json.dumps({"threads": 4, "cuda": False, "cuda_error": "none", "cudnn": None})
    answers = iter([(None, facts), ("SIGILL", "")])
    monkeypatch.setattr(probe, "_run", lambda program, seconds: next(answers))
    assert Probe.read().half_ending == "SIGILL"
