"""The facts of a machine, read from made-up file systems and a made-up NVML."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotlap.observe.machine import GIB, Gpu, Machine, torch_version, usable_cores, usable_memory

XEON = "model name\t: Intel(R) Xeon(R)  Platinum\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_tile amx_bf16\n"
GRAVITON = "Features\t: fp asimd sve bf16\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


class FakeNvml:
    class NVMLError(Exception):
        pass

    def __init__(self, *names):
        self.names = names

    def nvmlSystemGetDriverVersion(self):
        return b"580.65.06"  # older bindings answer in bytes

    def nvmlDeviceGetCount(self):
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.names[index] == "lost":
            raise self.NVMLError
        return self.names[index]

    def nvmlDeviceGetName(self, handle):
        return handle

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return 9, 0

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=139 * GIB)


def test_reads_the_processor(tmp_path):
    machine = Machine.read(write(tmp_path, {"proc/cpuinfo": XEON, "proc/meminfo": "MemTotal: 33554432 kB\n"}))
    assert machine.cpu == "Intel Xeon Platinum"
    assert machine.instructions == ("avx2", "avx512", "amx", "bf16")
    assert machine.memory_bytes == 32 * GIB
    assert machine.gpus == () and machine.driver == "none"
    assert machine.hardware.startswith("Intel Xeon Platinum, ") and machine.hardware.endswith(" 32 GiB")
    arm = Machine.read(write(tmp_path / "arm", {"proc/cpuinfo": GRAVITON}))
    assert arm.instructions == ("bf16", "sve")


def test_reads_gpus_and_survives_a_lost_one(tmp_path):
    machine = Machine.read(tmp_path, nvml=FakeNvml("NVIDIA H200", "lost", "NVIDIA H200"))
    assert machine.gpus == (Gpu("NVIDIA H200", 139 * GIB, "580.65.06", (9, 0)),) * 2
    assert machine.hardware.startswith("2 x NVIDIA H200 (139 GiB), ")
    assert machine.fingerprint()["gpu"] == "2 x NVIDIA H200"
    assert machine.fingerprint()["driver"] == "580.65.06"


def test_names_amd_gpus_and_cards_on_the_bus(tmp_path):
    nodes = "sys/class/kfd/kfd/topology/nodes"
    root = write(
        tmp_path,
        {
            f"{nodes}/0/properties": "cpu_cores_count 8\ngfx_target_version 0\n",
            f"{nodes}/1/properties": "simd_count 304\ngfx_target_version 90010\n",
            f"{nodes}/1/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {64 * GIB}\n",
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x1002\n",
            "sys/bus/pci/devices/0000:01:00.0/class": "0x120000\n",
            "sys/bus/pci/devices/0000:02:00.0/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:02:00.0/class": "0x040300\n",  # the sound of a card is not a card
        },
    )
    machine = Machine.read(root)
    assert machine.gpus == (Gpu("AMD gfx90a", 64 * GIB, "amdgpu", None, "AMD"),)
    assert machine.cards == ("AMD",)


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "100000 100000\n"},
        {"proc/self/cgroup": "0::/../host/path\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"},
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/job/step\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        },
    ],
    ids=["version 2", "inside a container", "version 1, group above"],
)
def test_a_quota_cuts_the_cores(tmp_path, monkeypatch, files):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert usable_cores(write(tmp_path, files)) == 1


def test_without_a_quota_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"})
    assert usable_cores(root) == 8


def test_a_limit_cuts_the_memory(tmp_path):
    meminfo = {"proc/meminfo": "MemTotal: 33554432 kB\n", "proc/self/cgroup": "0::/job\n"}
    assert usable_memory(write(tmp_path, {**meminfo, "sys/fs/cgroup/job/memory.max": "max\n"})) == 32 * GIB
    assert usable_memory(write(tmp_path, {**meminfo, "sys/fs/cgroup/job/memory.max": f"{4 * GIB}\n"})) == 4 * GIB


def test_reads_the_version_of_torch_as_text(tmp_path):
    text = "__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    write(tmp_path, {"torch/version.py": text})
    assert torch_version([str(tmp_path)]) == ("2.11.0+cu130", "13.0", None)
    assert torch_version([str(tmp_path / "nothing")]) == (None, None, None)


def test_fingerprint_is_stable_and_fit_for_a_plan(tmp_path):
    fingerprint = Machine.read().fingerprint()
    assert fingerprint == Machine.read().fingerprint()
    assert all(isinstance(value, str | int) for value in fingerprint.values())
    assert {"cpu", "cores", "gpu", "torch"} <= set(fingerprint)


def test_reading_imports_no_torch():
    program = (
        "import sys; from hotlap.observe.machine import Machine; Machine.read();"
        "assert 'torch' not in sys.modules; print(Machine.read().torch)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() != "None"


def test_reading_is_quick_since_nobody_else_is_asked(monkeypatch):
    """Every command reads it: neither a program is run for it nor anything waited for."""

    def refused(*_, **__):
        raise AssertionError("it is not read from files alone")

    for module, name in ((os, "fork"), (os, "posix_spawn"), (os, "popen"), (subprocess, "Popen"), (time, "sleep")):
        monkeypatch.setattr(module, name, refused)
    assert Machine.read().cores > 0
