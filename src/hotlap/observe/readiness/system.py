"""Checks of the machine round the GPU: processor, shared memory, open files, storage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hotlap.observe.machine import GIB, Machine
from hotlap.observe.readiness.outcome import Readiness
from hotlap.observe.readiness.probe import Probe
from hotlap.parts.storage import NETWORK, is_rotational, mount_entries, mount_of

SHARED_MEMORY_BYTES = GIB  # a few workers with a few image batches each
OPEN_FILES = 4096  # every tensor a worker hands over holds a file descriptor


def instruction_sets(machine: Machine, probe: Probe) -> Readiness:
    name = "instruction sets"
    here = ", ".join(machine.instructions) or "none of note"
    if probe.half_ending is not None:
        calm = "export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" if "amx" in machine.instructions else ""
        remedy = calm or "leave bf16 off on this processor"
        return Readiness(name, False, f"{here} announced, but a bf16 product ends with {probe.half_ending}", remedy)
    if "amx" in machine.instructions:
        return Readiness(name, True, f"{here}: bf16 is fast on this processor")
    if "avx512" in machine.instructions or "sve" in machine.instructions:
        return Readiness(name, True, f"{here}: wide vectors" + ("" if "bf16" in machine.instructions else ", no bf16"))
    return Readiness(name, None, f"{here}: fp32 is the fastest format of this processor")


def threads_fit(cores: int, environ: Mapping[str, str], torch_threads: int | None) -> Readiness:
    name = "threads"
    variable = next((key for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if environ.get(key, "").isdigit()), None)
    threads = int(environ[variable]) if variable else torch_threads
    if threads is None:
        return Readiness(name, None, f"{cores} usable cores; torch did not say how many threads it takes")
    whence = f"{variable}={threads}" if variable else f"torch takes {threads} threads"
    if threads > cores:
        remedy = f"export {variable or 'OMP_NUM_THREADS'}={cores}"
        return Readiness(name, False, f"{whence}, but only {cores} cores are usable", remedy)
    if threads == 1 and cores > 1:
        remedy = f"unset {variable}" if variable else f"export OMP_NUM_THREADS={cores}"
        return Readiness(name, False, f"{whence}, though {cores} cores are usable", remedy)
    return Readiness(name, True, f"{whence}, {cores} usable cores")


def shared_memory(total_bytes: int | None, in_container: bool) -> Readiness:
    name = "/dev/shm"
    if total_bytes is None:
        return Readiness(name, None, "this system has none")
    said = f"{total_bytes / GIB:.4g} GiB for the batches of loader workers"
    if total_bytes >= SHARED_MEMORY_BYTES:
        return Readiness(name, True, said)
    mount = "sudo mount -o remount,size=50% /dev/shm"
    return Readiness(name, False, said, "docker run --shm-size=8g ..." if in_container else mount)


def open_files(soft: int, hard: int) -> Readiness:
    """-1 is how the system writes unlimited."""
    name = "open files"
    if soft == -1 or soft >= OPEN_FILES:
        return Readiness(name, True, f"{'unlimited' if soft == -1 else soft} allowed")
    if hard == -1 or hard >= OPEN_FILES:
        reach = 65536 if hard == -1 else min(hard, 65536)
        return Readiness(name, False, f"{soft} allowed: many workers run out of them", f"ulimit -n {reach}")
    raised = "sudo prlimit --pid $$ --nofile=65536"
    return Readiness(name, False, f"{soft} allowed, at most {hard}: many workers run out of them", raised)


def storage(path: Path, mounts: str, sys: Path = Path("/sys")) -> Readiness:
    """Where the folder lies: `mounts` is the text of /proc/mounts."""
    name = "storage"
    source, kind = mount_of(path, mounts)
    if not kind:
        return Readiness(name, None, "this system does not say what the folder lies on")
    remedy = f"cp -r DATA {_faster_folder(mounts, sys)}   # and give the script that folder"
    if kind.startswith(NETWORK):
        return Readiness(name, False, f"{path} is on the network ({kind} from {source})", remedy)
    if kind == "overlay":
        return Readiness(name, False, f"{path} is in a container's overlay: slow with many small files", remedy)
    if kind in ("tmpfs", "ramfs"):
        return Readiness(name, True, f"{path} is in memory ({kind})")
    device = Path(source).name
    rotational = is_rotational(source, sys)
    if rotational and device.startswith(("vd", "xvd")):  # a virtual disk says so whatever lies under it
        return Readiness(name, None, f"{path} is on {source} ({kind}), a virtual disk: its speed cannot be told")
    if rotational:
        return Readiness(name, False, f"{path} is on {source} ({kind}), a disk that turns", remedy)
    said = "solid state" if rotational is False else "kind of disk unknown"
    return Readiness(name, True if rotational is False else None, f"{path} is on {source} ({kind}), {said}")


def disk_space(path: Path, total_bytes: int, free_bytes: int) -> Readiness:
    """Nearly full is slow as well as short: file systems look long for free blocks."""
    said = f"{free_bytes / GIB:.0f} of {total_bytes / GIB:.0f} GiB free"
    if free_bytes < 0.05 * total_bytes or free_bytes < 2 * GIB:
        return Readiness("disk space", False, said, f"du -xh --max-depth=2 {path} | sort -h | tail")
    return Readiness("disk space", True, said)


def _faster_folder(mounts: str, sys: Path) -> str:
    for source, point, kind in mount_entries(mounts):
        files = not point.startswith(("/boot", "/etc", "/usr", "/snap")) and point != "/"
        if kind in ("ext4", "xfs", "btrfs", "zfs") and files and is_rotational(source, sys) is False:
            return f"{point}/"
    return "/dev/shm/"
