"""The facts of this machine, read without importing torch and without touching CUDA."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 2**30
PCI_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
# what the kernel calls it -> what it means for training
FLAGS = {
    "avx2": "avx2",
    "avx512f": "avx512",
    "amx_tile": "amx",
    "avx512_bf16": "bf16",
    "amx_bf16": "bf16",
    "bf16": "bf16",  # Arm
    "sve": "sve",
}


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_bytes: int
    driver: str
    capability: tuple[int, int] | None  # None for AMD
    vendor: str = "NVIDIA"


@dataclass(frozen=True)
class Machine:
    """What the six facts, the plan and `hotlap env` know of the hardware and the installation."""

    cpu: str
    cores: int  # those this process may use: affinity and container quota
    memory_bytes: int
    instructions: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    cards: tuple[str, ...]  # vendors on the PCI bus: a card may be there without its driver
    os: str
    python: str
    torch: str | None
    torch_cuda: str | None
    torch_hip: str | None = None

    @classmethod
    def read(cls, root: Path = Path("/"), nvml: Any = None, search: list[str] | None = None) -> Machine:
        """Read the facts; tests give another root, another NVML and another module path."""
        cpuinfo = _text(root / "proc/cpuinfo")
        torch, cuda, hip = torch_version(search)
        return cls(
            cpu=_cpu_name(cpuinfo),
            cores=usable_cores(root),
            memory_bytes=usable_memory(root),
            instructions=instructions_of(cpuinfo),
            gpus=_nvidia_gpus(nvml or _nvml(root)) or _amd_gpus(root),
            cards=_cards(root),
            os=f"{platform.system()} {platform.release()}",
            python=platform.python_version(),
            torch=torch,
            torch_cuda=cuda,
            torch_hip=hip,
        )

    @property
    def driver(self) -> str:
        return self.gpus[0].driver if self.gpus else "none"

    @property
    def hardware(self) -> str:
        """One line: the devices first, since they matter most."""
        names = [f"{gpu.name} ({gpu.memory_bytes / GIB:.0f} GiB)" for gpu in self.gpus]
        counted = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
        cores = f"{self.cores} core" + ("s" if self.cores != 1 else "")
        return ", ".join([*counted, self.cpu, cores, f"{self.memory_bytes / GIB:.0f} GiB"])

    def fingerprint(self) -> dict[str, str | int]:
        """What a plan was measured on. Memory is left out: a kernel update changes it by a few pages."""
        names = [gpu.name for gpu in self.gpus]
        known: dict[str, str | int] = {
            "cpu": self.cpu,
            "cores": self.cores,
            "gpu": ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none",
            "driver": self.driver,
            "torch": self.torch or "none",
            "cuda": self.torch_cuda or self.torch_hip or "none",
        }
        return {key: value for key, value in known.items() if value != "none" or key in ("gpu", "torch")}


def usable_cores(root: Path = Path("/")) -> int:
    """Cores of this process: what affinity leaves, cut by the quota of its control group."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        cores = os.cpu_count() or 1
    quotas = []
    for group in _groups(root, "cpu"):
        quota, _, period = _text(group / "cpu.max").strip().partition(" ")  # version 2: "max 100000"
        quota = quota or _text(group / "cpu.cfs_quota_us").strip()
        period = period or _text(group / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    # a quota of 1.5 cores keeps two threads busy most of the time
    return max(1, min([cores, *(int(quota + 0.5) for quota in quotas)]))


def usable_memory(root: Path = Path("/")) -> int:
    """Bytes of memory, cut by the limit of the control group."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    total = int(found[1]) * 1024 if found else _sysconf_memory()
    limits = [total]
    for group in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _text(group / name).strip()
            if limit.isdigit() and int(limit) > 0:
                limits.append(int(limit))
    return min(limits)


def torch_version(search: list[str] | None = None) -> tuple[str | None, str | None, str | None]:
    """Version, CUDA and HIP of the installed torch, from the text of torch/version.py."""
    text = ""
    for folder in [Path(path) for path in search] if search is not None else _torch_folder():
        if text := _text(folder / "torch/version.py"):
            break

    def value(name: str) -> str | None:
        found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        return found[1] if found else None

    return value("__version__"), value("cuda"), value("hip")


def load_nvml() -> Any:
    """The initialised NVML module, or None. NVML looks at the driver only: CUDA stays untouched."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver, a driver that does not answer: each time no GPU to speak of
        return None
    return pynvml


def _nvml(root: Path) -> Any:
    # asking the file system first saves the import on machines without a card; dxg is WSL
    devices = ("dev/nvidiactl", "dev/dxg", "proc/driver/nvidia/version")
    return load_nvml() if any((root / name).exists() for name in devices) else None


def _nvidia_gpus(nvml: Any) -> tuple[Gpu, ...]:
    if nvml is None:
        return ()
    driver = _decoded(nvml.nvmlSystemGetDriverVersion())
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):  # a card that fell off the bus
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle).total
            gpus.append(Gpu(_decoded(nvml.nvmlDeviceGetName(handle)), int(memory), driver, (major, minor)))
    return tuple(gpus)


def _amd_gpus(root: Path) -> tuple[Gpu, ...]:
    gpus = []
    for node in sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*")):
        found = re.search(r"^gfx_target_version (\d+)", _text(node / "properties"), re.MULTILINE)
        version = int(found[1]) if found else 0
        if version:  # nodes that are processors say 0
            # 90402 is gfx942: the last two places are hexadecimal digits
            name = f"AMD gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
            banks = [_text(bank / "properties") for bank in node.glob("mem_banks/*")]
            sizes = [int(size) for bank in banks for size in re.findall(r"^size_in_bytes (\d+)", bank, re.MULTILINE)]
            driver = _text(root / "sys/module/amdgpu/version").strip() or "amdgpu"
            gpus.append(Gpu(name, sum(sizes), driver, None, "AMD"))
    return tuple(gpus)


def _cards(root: Path) -> tuple[str, ...]:
    cards = []
    for device in sorted(root.glob("sys/bus/pci/devices/*")):
        vendor = PCI_VENDORS.get(_text(device / "vendor").strip())
        if vendor and _text(device / "class").strip().startswith(("0x03", "0x12")):  # display, accelerator
            cards.append(vendor)
    return tuple(cards)


def _cpu_name(cpuinfo: str) -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    name = found[1] if found else platform.processor() or platform.machine() or "unknown processor"
    return re.sub(r"\s+", " ", re.sub(r"\((R|TM)\)", "", name)).strip()


@functools.lru_cache(maxsize=1)
def own_instructions() -> tuple[str, ...]:
    """Of this machine's processor, which stays the same."""
    return instructions_of(_text(Path("/proc/cpuinfo")))


def instructions_of(cpuinfo: str) -> tuple[str, ...]:
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    here = set(found[1].split()) if found else set()
    return tuple(dict.fromkeys(name for flag, name in FLAGS.items() if flag in here))


def _groups(root: Path, controller: str) -> list[Path]:
    """Control groups of this process that have a say, its own and all above, versions 1 and 2."""
    base = root / "sys/fs/cgroup"
    groups = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        top = base / names if names else base
        if names and not top.is_dir():
            top = base / controller
        own = Path(path.lstrip("/"))
        groups += [top / part for part in (own, *own.parents)]
    return groups


def _torch_folder() -> list[Path]:
    spec = importlib.util.find_spec("torch")  # finds a top-level package without importing it
    return [Path(spec.origin).parent.parent] if spec and spec.origin else []


def _sysconf_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _decoded(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
