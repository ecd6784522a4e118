"""What a folder lies on, how fast it reads, and `staged`: a copy of it on faster storage, for as long as it is needed.

    from hotlap.parts.storage import staged, storage_of

    print(storage_of(Path("/mnt/photos")).words)
    with staged("/mnt/photos", limit_bytes=20 << 30) as folder:
        train(ImageFolder(folder))

The copy lies in memory (/dev/shm) unless `where` names another place. It goes when the block ends; one left behind by
a process that was killed goes with the next use. With `keep=True` it stays, and is used again while the files are as
they were."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

NETWORK = (
    *("nfs", "cifs", "smb", "9p", "ceph", "lustre", "glusterfs", "afs"),
    *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "davfs"),
)
MEMORY = ("tmpfs", "ramfs")
_NAME = "hotlap-staged-"
_LOOKED_AT, _SAMPLED = 4096, 64  # files of a folder that are listed, and of those read
_SECONDS_AT_MOST, _BYTES_AT_MOST = 1.0, 16 << 20  # for all, and of one file


@dataclass(frozen=True)
class Storage:
    """The file system under a folder."""

    source: str  # a device, or a server's path
    kind: str  # "ext4", "nfs4", "overlay", ... or ""
    rotational: bool | None  # whether any disk below turns; None where the kernel does not say

    @property
    def words(self) -> str:
        if self.kind.startswith(NETWORK):
            return f"the network ({self.kind})"
        if self.kind in MEMORY:
            return f"memory ({self.kind})"
        if self.kind == "overlay":
            return "a container's overlay"
        disk = {True: "a disk that turns", False: "solid state", None: "a disk of unknown kind"}[self.rotational]
        return f"{disk} ({self.kind or 'unknown file system'})"


def storage_of(path: Path, mounts: str | None = None, sys: Path = Path("/sys")) -> Storage:
    """`mounts` is the text of /proc/mounts, and `sys` the folder of the kernel's own files; tests give others."""
    text = _read("/proc/mounts") if mounts is None else mounts
    source, kind = mount_of(path, text)
    is_virtual = Path(source).name.startswith(("vd", "xvd"))  # such a disk says that it turns, whatever lies under it
    return Storage(source, kind, None if is_virtual else is_rotational(source, sys))


def mount_entries(mounts: str) -> Iterator[tuple[str, str, str]]:
    for line in mounts.splitlines():
        if len(words := line.split(" ")) >= 3:
            yield words[0], words[1].replace("\\040", " "), words[2]


def mount_of(path: Path, mounts: str) -> tuple[str, str]:
    """Source and kind of the file system a folder lies on; later lines lie over earlier ones."""
    best, found = -1, ("", "")
    for source, point, kind in mount_entries(mounts):
        if path.is_relative_to(point) and len(point) >= best:
            best, found = len(point), (source, kind)
    return found


def is_rotational(source: str, sys: Path) -> bool | None:
    """Whether any disk under the device turns; None where the kernel does not say."""
    if not source.startswith("/dev/"):
        return None
    # /dev/mapper names and /dev/root are links; a partition's folder lies inside its disk's
    folder = (sys / "class/block" / Path(os.path.realpath(source)).name).resolve()
    for disk in (folder, folder.parent):
        slaves = sorted((disk / "slaves").glob("*")) if (disk / "slaves").is_dir() else []
        if slaves:
            below = [is_rotational(f"/dev/{slave.name}", sys) for slave in slaves]
            return True if True in below else False if False in below else None
        try:
            return (disk / "queue/rotational").read_text().strip() == "1"
        except OSError:
            continue
    return None


# how fast it reads ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadRate:
    """Of some files of a folder, past the system's cache."""

    bytes_a_second: float
    file_bytes: float  # of one, on average
    cached: float | None  # the part of them that lay in the system's cache; None where that cannot be told


def read_rate(folder: Path, readers: int = 1) -> ReadRate | None:
    """As fast as so many readers get it, each file by file; None where there is nothing to read. Takes about a second
    at most, and drops the files it reads from the cache."""
    files = _some_files(folder)
    start = time.perf_counter()
    with ThreadPoolExecutor(max(1, readers)) as pool:
        looked = list(pool.map(lambda path: _read_past_cache(path, start + _SECONDS_AT_MOST), files))
    seconds = time.perf_counter() - start
    found = [one for one in looked if one is not None]
    read = sum(part for part, _, _ in found)
    if not read:
        return None
    known = [cached for _, _, cached in found if cached is not None]
    sizes = [size for _, size, _ in found]
    return ReadRate(read / seconds, sum(sizes) / len(sizes), sum(known) / len(known) if known else None)


def _read_past_cache(path: Path, until: float) -> tuple[int, int, bool | None] | None:
    """Bytes read, the file's size, and whether it was cached; None once time is up."""
    if time.perf_counter() > until:
        return None
    try:
        with path.open("rb", buffering=0) as file:
            cached, read = _is_cached(file.fileno()), 0
            with contextlib.suppress(AttributeError, OSError):  # Linux only, and not for every file system
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while read < _BYTES_AT_MOST and (part := file.read(1 << 20)):
                read += len(part)
            return read, os.fstat(file.fileno()).st_size, cached
    except OSError:
        return None


def _some_files(folder: Path) -> list[Path]:
    """Spread over those that are listed first: a large folder is not walked through."""
    found: list[Path] = []
    for where, _, names in os.walk(folder):
        found += [Path(where, name) for name in names[: _LOOKED_AT - len(found)]]
        if len(found) >= _LOOKED_AT:
            break
    return found[:: max(1, len(found) // _SAMPLED)][:_SAMPLED]


def _is_cached(descriptor: int) -> bool | None:
    """Whether its beginning can be had without going to the disk."""
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) >= 0
    except BlockingIOError:
        return False
    except (AttributeError, OSError):
        return None


# a copy where it is faster -------------------------------------------------------------------------------------------


class TooLarge(Exception):
    """A folder larger than it may be, or than what is free where it should go."""


@contextlib.contextmanager
def staged(folder: str | Path, limit_bytes: int, where: str | Path = "/dev/shm", keep: bool = False) -> Iterator[Path]:
    """A copy of a folder below `where`. Raises `TooLarge` before anything is copied."""
    source, place = Path(folder).resolve(), Path(where)
    files = _listed(source)
    size = sum(stat.st_size for _, stat in files)
    name = f"{_NAME}{_digest([str(source)])}-"
    kept = place / f"{name}{_digest(_lines(files))}"
    _clear(place, name, kept)
    lock = _lock(kept) if keep and (kept / "whole").exists() else None
    copy = kept if lock is not None else place / f"{name}{os.getpid()}-{time.monotonic_ns()}"
    try:
        if lock is None:
            if size > limit_bytes:
                raise TooLarge(f"{source} has {size >> 20} MiB, and {limit_bytes >> 20} MiB are allowed")
            if size > shutil.disk_usage(place).free:
                raise TooLarge(f"{source} has {size >> 20} MiB, which is more than {place} has free")
            lock = _copy(source, files, copy)
            if keep:
                copy = _as_kept(copy, kept)
        yield copy / "files"
    finally:
        if lock is not None:
            os.close(lock)
        if copy != kept:
            shutil.rmtree(copy, ignore_errors=True)


def _copy(source: Path, files: Sequence[tuple[str, os.stat_result]], copy: Path) -> int:
    """The copy is locked while it is used. The system lets go of the lock when the process ends, however it ends."""
    (copy / "files").mkdir(parents=True, mode=0o700)
    (copy / "lock").touch()
    lock = _lock(copy)
    assert lock is not None
    for name, _ in files:
        target = copy / "files" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target)
    return lock


def _as_kept(copy: Path, kept: Path) -> Path:
    (copy / "whole").touch()
    try:
        copy.rename(kept)
    except OSError:  # another process was faster; this one goes on with its own
        return copy
    return kept


def _lock(copy: Path, alone: bool = False) -> int | None:
    """Held until it is closed; None where another process is in the way, or nothing is there."""
    import fcntl  # not on Windows

    try:
        lock = os.open(copy / "lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _clear(place: Path, name: str, kept: Path) -> None:
    """Copies nobody uses any more: unfinished ones, those not to be kept, and older states of this folder."""
    for copy in place.glob(f"{_NAME}*"):
        is_kept = (copy / "whole").exists()
        if copy == kept or (is_kept and not copy.name.startswith(name)):
            continue
        lock = _lock(copy, alone=True)
        if lock is not None:
            shutil.rmtree(copy, ignore_errors=True)
            os.close(lock)


def _listed(folder: Path) -> list[tuple[str, os.stat_result]]:
    found = []
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where, name)
            if path.is_file():
                found.append((str(path.relative_to(folder)), path.stat()))
    return sorted(found)


def _lines(files: Sequence[tuple[str, os.stat_result]]) -> list[str]:
    """Others as soon as a file came, went or changed."""
    return [f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}" for name, stat in files]


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
