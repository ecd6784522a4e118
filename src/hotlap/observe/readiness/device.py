"""Checks of the GPU: does torch reach it, does the driver fit, is it free and at full clock."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.observe.machine import GIB, Machine
from hotlap.observe.readiness.chips import chip_of
from hotlap.observe.readiness.outcome import Readiness
from hotlap.observe.readiness.probe import Probe

OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}  # by major CUDA version; minor versions are compatible
CLOCKS_SET = 0x2
SLOWED = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}
NO_GPU = "no GPU here"


@dataclass(frozen=True)
class GpuState:
    """One GPU at this moment."""

    index: int
    name: str
    slowed_by: tuple[str, ...] = ()
    clocks_set: bool = False
    power_limit_watts: float | None = None
    default_limit_watts: float | None = None
    processes: tuple[tuple[int, str, int], ...] = ()  # pid, name, bytes on the GPU


def cuda_usable(machine: Machine, probe: Probe) -> Readiness:
    name = "CUDA usable"
    if probe.error is not None:
        mend = f"pip install --force-reinstall torch=={(machine.torch or '').partition('+')[0]}".rstrip("=")
        return Readiness(name, False, f"torch could not be asked: {probe.error}", mend)
    if probe.cuda:
        return Readiness(name, True, f"torch computes on {machine.gpus[0].name if machine.gpus else 'the GPU'}")
    if not machine.gpus and "NVIDIA" in machine.cards:
        load = "sudo modprobe nvidia   # and where that fails, install the driver: sudo ubuntu-drivers install"
        return Readiness(name, False, "an NVIDIA card is on the bus, but its driver does not answer", load)
    if not machine.gpus:
        return Readiness(name, None, NO_GPU)
    if machine.torch_cuda is None and machine.torch_hip is None:
        return Readiness(name, False, f"torch {machine.torch} has no CUDA in it", _cuda_torch(machine))
    return Readiness(name, False, f"torch cannot compute there: {probe.cuda_error}", _cuda_torch(machine))


def driver_fits(machine: Machine) -> Readiness:
    name = "driver"
    if not machine.gpus or machine.gpus[0].vendor != "NVIDIA":
        return Readiness(name, None, NO_GPU if not machine.gpus else f"{machine.gpus[0].name}: not an NVIDIA driver")
    if machine.torch_cuda is None:
        return Readiness(name, None, "torch has no CUDA to compare the driver with")
    oldest = OLDEST_DRIVER.get(int(machine.torch_cuda.partition(".")[0]))
    major = machine.driver.partition(".")[0]
    if oldest is None or not major.isdigit():
        return Readiness(name, None, f"driver {machine.driver}, CUDA {machine.torch_cuda}: not in the table")
    said = f"driver {machine.driver}, torch's CUDA {machine.torch_cuda} needs {oldest} or newer"
    return Readiness(name, True, said) if int(major) >= oldest else Readiness(name, False, said, _cuda_torch(machine))


def cudnn_there(machine: Machine, probe: Probe) -> Readiness:
    if not probe.cuda or machine.torch_hip:
        return Readiness("cuDNN", None, NO_GPU if not machine.gpus else "torch does not compute on an NVIDIA GPU here")
    if probe.cudnn is None:
        mend = f"pip install --force-reinstall nvidia-cudnn-cu{(machine.torch_cuda or '12').partition('.')[0]}"
        return Readiness("cuDNN", False, "torch finds no cuDNN: convolutions take the slow path", mend)
    return Readiness("cuDNN", True, f"cuDNN {probe.cudnn}")


def gpu_build_of_torch(machine: Machine) -> Readiness:
    name = "torch build"
    if machine.torch is None:
        return Readiness(name, False, "torch is not installed", "pip install torch")
    built_for = machine.torch_cuda or machine.torch_hip
    if built_for:
        return Readiness(name, True, f"torch {machine.torch}, built for {built_for}")
    if machine.gpus or machine.cards:
        card = machine.gpus[0].name if machine.gpus else f"{machine.cards[0]} card"
        return Readiness(
            name, False, f"torch {machine.torch} is CPU-only, and a GPU is here: {card}", _cuda_torch(machine)
        )
    return Readiness(name, True, f"torch {machine.torch}, CPU-only as this machine")


def good_dtypes(machine: Machine) -> Readiness:
    name = "number formats"
    if not machine.gpus:
        return Readiness(name, None, NO_GPU)
    gpu = machine.gpus[0]
    chip = chip_of(gpu)
    if chip is None:
        return Readiness(name, None, f"{gpu.name} is not in the table")
    if not chip.dtypes:
        keep = "leave mixed precision off on this GPU: it has no matrix units, fp32 is its fastest format"
        return Readiness(name, False, f"{gpu.name} ({chip.family}) is good at fp32 only", keep)
    only = "" if "bf16" in chip.dtypes else "; bf16 is emulated, fp16 needs a GradScaler"
    return Readiness(name, True, f"{gpu.name} ({chip.family}) is good at {', '.join(chip.dtypes)}{only}")


def full_clocks(states: Sequence[GpuState]) -> Readiness:
    name = "GPU clocks"
    for state in states:
        where = f"GPU {state.index} ({state.name})"
        if state.slowed_by:
            look = f"nvidia-smi -i {state.index} -q -d PERFORMANCE,TEMPERATURE,POWER"
            return Readiness(name, False, f"{where} is slowed by {', '.join(state.slowed_by)}", look)
        if state.clocks_set:
            reset = f"sudo nvidia-smi -i {state.index} -rac"
            return Readiness(name, False, f"{where} has its clocks held by a setting", reset)
        limit, usual = state.power_limit_watts, state.default_limit_watts
        if limit and usual and limit < 0.98 * usual:
            raised = f"sudo nvidia-smi -i {state.index} -pl {usual:.0f}"
            return Readiness(name, False, f"{where} may draw {limit:.0f} W of {usual:.0f} W", raised)
    return Readiness(name, True, "nothing holds the clocks down") if states else Readiness(name, None, NO_GPU)


def gpu_to_ourselves(states: Sequence[GpuState]) -> Readiness:
    name = "other processes on the GPU"
    if not states:
        return Readiness(name, None, NO_GPU)
    busy = next((state for state in states if state.processes), None)
    if busy is None:
        return Readiness(name, True, "nobody else is there")
    listed = ", ".join(f"{what} (pid {pid}, {size / GIB:.1f} GiB)" for pid, what, size in busy.processes)
    free = next((state for state in states if not state.processes), None)
    pids = ",".join(str(pid) for pid, _, _ in busy.processes)
    remedy = f"export CUDA_VISIBLE_DEVICES={free.index}" if free else f"ps -fp {pids}   # whose they are; figures wait"
    return Readiness(name, False, f"GPU {busy.index} is shared with {listed}", remedy)


def gpu_states(nvml: Any, proc: Path = Path("/proc")) -> list[GpuState]:
    """The GPUs now, through NVML; what a card does not tell is left at its default."""
    states = []
    for index in range(nvml.nvmlDeviceGetCount() if nvml else 0):
        with contextlib.suppress(nvml.NVMLError):  # a card that fell off the bus
            states.append(_state(nvml, index, proc))
    return states


def _state(nvml: Any, index: int, proc: Path) -> GpuState:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    label = nvml.nvmlDeviceGetName(handle)
    reasons, limit, usual, others = 0, None, None, []
    with contextlib.suppress(nvml.NVMLError):
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    with contextlib.suppress(nvml.NVMLError):
        limit = nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000
        usual = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000
    with contextlib.suppress(nvml.NVMLError):
        others = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return GpuState(
        index,
        label.decode() if isinstance(label, bytes) else label,
        slowed_by=tuple(why for bit, why in SLOWED.items() if reasons & bit),
        clocks_set=bool(reasons & CLOCKS_SET),
        power_limit_watts=limit,
        default_limit_watts=usual,
        processes=tuple((one.pid, _called(proc, one.pid), int(one.usedGpuMemory or 0)) for one in others),
    )


def _called(proc: Path, pid: int) -> str:
    try:
        return (proc / str(pid) / "comm").read_text().strip()
    except OSError:  # in another container
        return "a process"


def _cuda_torch(machine: Machine) -> str:
    # uv picks the build that fits the driver, so that no CUDA version has to be guessed here
    version = f"=={machine.torch.partition('+')[0]}" if machine.torch else ""
    return f"uv pip install --reinstall torch{version} --torch-backend=auto"
