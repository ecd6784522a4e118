"""What a folder lies on, from planted texts; its rate; and copies that are right, bounded and gone in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

from hotlap.parts import storage
from hotlap.parts.storage import Storage, TooLarge, read_rate, staged, storage_of

MOUNTS = """overlay / overlay rw 0 0
/dev/sda1 /data ext4 rw 0 0
/dev/nvme0n1p2 /data/fast xfs rw 0 0
server:/export /mnt/my\\040share nfs4 rw 0 0
/dev/mapper/pool /pool btrfs rw 0 0
/dev/vda1 /virtual ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
"""


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A disk that turns with a partition, one that does not, and a mapped device over both."""
    blocks = tmp_path / "sys/class/block"
    blocks.mkdir(parents=True)
    for disk, part, turns in (("sda", "sda1", 1), ("nvme0n1", "nvme0n1p2", 0), ("vda", "vda1", 1)):
        device = tmp_path / "sys/devices" / disk
        (device / "queue").mkdir(parents=True)
        (device / "queue/rotational").write_text(f"{turns}\n")
        (device / part).mkdir()
        (blocks / disk).symlink_to(device)
        (blocks / part).symlink_to(device / part)
    (blocks / "pool/slaves/sda1").mkdir(parents=True)
    (blocks / "pool/slaves/nvme0n1p2").mkdir()
    return tmp_path / "sys"


@pytest.mark.parametrize(
    ("path", "kind", "turns", "words"),
    [
        ("/home/me", "overlay", None, "a container's overlay"),
        ("/data/photos", "ext4", True, "a disk that turns (ext4)"),
        ("/data/fast/photos", "xfs", False, "solid state (xfs)"),
        ("/data/faster", "ext4", True, "a disk that turns (ext4)"),
        ("/mnt/my share/photos", "nfs4", None, "the network (nfs4)"),
        ("/pool", "btrfs", True, "a disk that turns (btrfs)"),
        ("/virtual", "ext4", None, "a disk of unknown kind (ext4)"),
        ("/dev/shm/photos", "tmpfs", None, "memory (tmpfs)"),
    ],
)
def test_what_a_folder_lies_on(sysfs, path, kind, turns, words) -> None:
    found = storage_of(Path(path), MOUNTS, sysfs)
    assert (found.kind, found.rotational, found.words) == (kind, turns, words)


def test_a_system_that_says_nothing() -> None:
    assert storage_of(Path("/data"), "") == Storage("", "", None)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for number in range(6):
        path = folder / f"class {number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 1000)
    return folder


@pytest.mark.parametrize("readers", [1, 3])
def test_the_rate_is_of_the_files_themselves(photos: Path, tmp_path: Path, monkeypatch, readers: int) -> None:
    monkeypatch.setattr(storage, "_SECONDS_AT_MOST", PATIENCE_SECONDS)
    found = read_rate(photos, readers)
    assert found is not None and found.bytes_a_second > 0
    assert found.file_bytes == 1000
    assert found.cached is None or 0 <= found.cached <= 1
    (tmp_path / "empty").mkdir()
    assert read_rate(tmp_path / "empty") is None


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_has_the_same_files_and_goes_with_the_block(photos: Path, tmp_path: Path) -> None:
    where = tmp_path / "fast"
    where.mkdir()
    before = contents(photos)
    with staged(photos, 10_000, where) as copy:
        assert copy.is_relative_to(where) and contents(copy) == before
        assert (copy / "class 1/3.jpg").stat().st_mtime_ns == (photos / "class 1/3.jpg").stat().st_mtime_ns
    with pytest.raises(KeyError), staged(photos, 10_000, where):
        raise KeyError
    assert list(where.iterdir()) == [] and contents(photos) == before


def test_nothing_is_copied_beyond_the_limit(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match="allowed"), staged(photos, 5_999, tmp_path):
        pass
    assert not list(tmp_path.glob("hotlap-staged-*"))


def test_a_kept_copy_is_used_again_only_while_nothing_changed(photos: Path, tmp_path: Path) -> None:
    where = tmp_path / "fast"
    where.mkdir()
    with staged(photos, 10_000, where, keep=True) as first:
        pass
    (first / "mark").touch()
    with staged(photos, 10_000, where, keep=True) as again:
        assert (again / "mark").exists()
        (photos / "class 0/0.jpg").write_bytes(b"changed")
        with staged(photos, 10_000, where, keep=True) as third:
            assert (third / "class 0/0.jpg").read_bytes() == b"changed" and not (third / "mark").exists()
            assert (again / "mark").exists(), "it is still in use"
    with staged(photos, 10_000, where, keep=True):
        assert not again.exists(), "nobody uses the older state"
    assert len(list(where.iterdir())) == 1


KILLED = """
import sys, time
from hotlap.parts.storage import staged
with staged(sys.argv[1], 10_000, sys.argv[2]) as copy:
    print(copy, flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_left_behind_is_cleared_by_the_next(photos: Path, tmp_path: Path) -> None:
    where = tmp_path / "fast"
    where.mkdir()
    command = [sys.executable, "-c", KILLED, str(photos), str(where)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        left = Path(process.stdout.readline().strip())
        with staged(photos, 10_000, where):
            assert contents(left) == contents(photos), "a copy in use stays"
        os.kill(process.pid, signal.SIGKILL)
    assert left.exists()
    with staged(photos, 10_000, where):
        assert not left.exists()
    assert list(where.iterdir()) == []
