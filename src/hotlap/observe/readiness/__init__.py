"""Is this machine ready to train fast? One small check a row; each bad one has the command that mends it here."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from hotlap.observe.machine import Machine, load_nvml
from hotlap.observe.readiness import device, installation, system
from hotlap.observe.readiness.chips import Chip, chip_of
from hotlap.observe.readiness.outcome import Readiness
from hotlap.observe.readiness.probe import Probe

__all__ = ["Chip", "Probe", "Readiness", "chip_of", "readiness"]


def readiness(machine: Machine, folder: Path | None = None, probe: Probe | None = None) -> list[Readiness]:
    """All rows, in the order they matter. Importing torch happens only inside the probe's own process."""
    where = (folder or Path.cwd()).resolve()
    torch_said = probe or Probe.read()
    states = device.gpu_states(load_nvml() if machine.gpus else None)
    prefix = Path(sys.prefix)
    rows: tuple[tuple[str, Callable[[], Readiness]], ...] = (
        ("torch build", lambda: device.gpu_build_of_torch(machine)),
        ("CUDA usable", lambda: device.cuda_usable(machine, torch_said)),
        ("driver", lambda: device.driver_fits(machine)),
        ("cuDNN", lambda: device.cudnn_there(machine, torch_said)),
        ("number formats", lambda: device.good_dtypes(machine)),
        ("GPU clocks", lambda: device.full_clocks(states)),
        ("other processes on the GPU", lambda: device.gpu_to_ourselves(states)),
        ("instruction sets", lambda: system.instruction_sets(machine, torch_said)),
        ("threads", lambda: system.threads_fit(machine.cores, os.environ, torch_said.threads)),
        ("/dev/shm", lambda: system.shared_memory(_total_bytes("/dev/shm"), _in_container())),
        ("open files", lambda: system.open_files(*_open_files())),
        ("storage", lambda: system.storage(where, Path("/proc/mounts").read_text())),
        ("disk space", lambda: system.disk_space(where, *_space(where))),
        ("torchvision", lambda: installation.torchvision_matches(machine.torch, _installed("torchvision"))),
        ("one torch", lambda: installation.one_torch(sys.path)),
        ("conda and pip", lambda: installation.conda_and_pip(prefix)),
        ("conda channels", lambda: installation.one_channel(prefix)),
    )
    return [_asked(name, check) for name, check in rows]


def _asked(name: str, check: Callable[[], Readiness]) -> Readiness:
    try:
        return check()
    except (OSError, ImportError) as error:  # a fact this system does not have
        return Readiness(name, None, f"cannot be told here: {error}")


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _total_bytes(path: str) -> int | None:
    return shutil.disk_usage(path).total if os.path.isdir(path) else None


def _space(path: Path) -> tuple[int, int]:
    usage = shutil.disk_usage(path)
    return usage.total, usage.free


def _open_files() -> tuple[int, int]:
    import resource  # not on Windows

    return resource.getrlimit(resource.RLIMIT_NOFILE)


def _in_container() -> bool:
    return any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))
