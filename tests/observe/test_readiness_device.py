"""The checks of the GPU, shown good and bad without one."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from readiness_facts import BOX, H200, LAPTOP, NO_CUDA, WELL, bad, good, unasked, with_gpu

from hotlap.observe.machine import GIB
from hotlap.observe.readiness import Probe, chip_of, device


def test_cuda_usable():
    assert "H200" in good(device.cuda_usable(BOX, WELL))
    assert "--torch-backend" in bad(device.cuda_usable(BOX, NO_CUDA))
    assert "no kernel image" in device.cuda_usable(BOX, NO_CUDA).finding
    assert "modprobe" in bad(device.cuda_usable(replace(LAPTOP, cards=("NVIDIA",)), NO_CUDA))
    assert unasked(device.cuda_usable(LAPTOP, NO_CUDA)) == "no GPU here"
    broken = Probe(None, None, None, None, None, "ImportError: libcudart.so.13")
    assert bad(device.cuda_usable(BOX, broken)) == "pip install --force-reinstall torch==2.11.0"


def test_driver_fits():
    good(device.driver_fits(BOX))
    assert "torch==2.11.0" in bad(device.driver_fits(with_gpu(driver="570.86.15")))
    good(device.driver_fits(replace(with_gpu(driver="570.86.15"), torch_cuda="12.8")))
    unasked(device.driver_fits(LAPTOP))
    unasked(device.driver_fits(replace(BOX, torch_cuda=None)))
    unasked(device.driver_fits(replace(BOX, torch_cuda="99.0")))


def test_cudnn_there():
    assert "91900" in good(device.cudnn_there(BOX, WELL))
    assert bad(device.cudnn_there(BOX, replace(WELL, cudnn=None))).endswith("nvidia-cudnn-cu13")
    unasked(device.cudnn_there(LAPTOP, NO_CUDA))


def test_gpu_build_of_torch():
    good(device.gpu_build_of_torch(BOX))
    good(device.gpu_build_of_torch(LAPTOP))
    cpu_only = {"torch": "2.11.0+cpu", "torch_cuda": None}
    assert "torch==2.11.0 " in bad(device.gpu_build_of_torch(replace(BOX, **cpu_only)))
    bad(device.gpu_build_of_torch(replace(LAPTOP, cards=("AMD",))))
    assert bad(device.gpu_build_of_torch(replace(LAPTOP, torch=None))) == "pip install torch"


@pytest.mark.parametrize(
    ("capability", "family", "has", "lacks"),
    [
        ((7, 0), "Volta", "fp16", "bf16"),
        ((7, 5), "Turing", "fp16", "tf32"),
        ((8, 6), "Ampere", "tf32", "fp8"),
        ((8, 9), "Ada", "fp8", "fp4"),
        ((9, 0), "Hopper", "fp8", "fp4"),
        ((10, 3), "Blackwell", "fp4", "int1"),
        ((12, 0), "Blackwell", "fp4", "int1"),
    ],
)
def test_the_table_of_chips(capability, family, has, lacks):
    chip = chip_of(replace(H200, capability=capability))
    assert chip.family == family and has in chip.dtypes and lacks not in chip.dtypes


def test_good_dtypes():
    assert "bf16, fp16, tf32, fp8" in good(device.good_dtypes(BOX))
    assert "GradScaler" in good(device.good_dtypes(with_gpu(name="Tesla V100", capability=(7, 0))))
    assert "CDNA 3" in good(device.good_dtypes(with_gpu(name="AMD gfx942", capability=None, vendor="AMD")))
    bad(device.good_dtypes(with_gpu(name="GTX 1080", capability=(6, 1))))
    unasked(device.good_dtypes(with_gpu(name="AMD gfx803", capability=None, vendor="AMD")))
    unasked(device.good_dtypes(LAPTOP))


def test_full_clocks():
    state = device.GpuState(0, "H200", power_limit_watts=700.0, default_limit_watts=700.0)
    good(device.full_clocks([state]))
    assert "TEMPERATURE" in bad(device.full_clocks([state, replace(state, index=1, slowed_by=("heat",))]))
    assert bad(device.full_clocks([replace(state, clocks_set=True)])) == "sudo nvidia-smi -i 0 -rac"
    assert bad(device.full_clocks([replace(state, power_limit_watts=500.0)])) == "sudo nvidia-smi -i 0 -pl 700"
    unasked(device.full_clocks([]))


def test_gpu_to_ourselves():
    alone = device.GpuState(0, "H200")
    shared = replace(alone, processes=((4711, "python", 2 * GIB),))
    good(device.gpu_to_ourselves([alone]))
    assert "ps -fp 4711" in bad(device.gpu_to_ourselves([shared]))
    assert bad(device.gpu_to_ourselves([shared, replace(alone, index=1)])) == "export CUDA_VISIBLE_DEVICES=1"
    assert "python (pid 4711, 2.0 GiB)" in device.gpu_to_ourselves([shared]).finding
    unasked(device.gpu_to_ourselves([]))


def test_gpu_states_come_from_nvml(tmp_path):
    class Nvml:
        NVMLError = type("NVMLError", (Exception,), {})
        nvmlDeviceGetCount = staticmethod(lambda: 2)
        nvmlDeviceGetName = staticmethod(lambda handle: "H200")
        nvmlDeviceGetCurrentClocksThrottleReasons = staticmethod(lambda handle: 0x20 | 0x2)
        nvmlDeviceGetPowerManagementLimit = staticmethod(lambda handle: 700_000)

        def nvmlDeviceGetHandleByIndex(self, index):
            if index == 1:
                raise self.NVMLError
            return index

        def nvmlDeviceGetPowerManagementDefaultLimit(self, handle):
            raise self.NVMLError  # not every card tells

        def nvmlDeviceGetComputeRunningProcesses(self, handle):
            return [SimpleNamespace(pid=7, usedGpuMemory=None), SimpleNamespace(pid=8, usedGpuMemory=GIB)]

    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "comm").write_text("python\n")
    (state,) = device.gpu_states(Nvml(), proc=tmp_path)
    assert state.slowed_by == ("heat",) and state.clocks_set
    assert (state.power_limit_watts, state.default_limit_watts) == (700.0, None)
    assert state.processes == ((7, "a process", 0), (8, "python", GIB))
    assert device.gpu_states(None) == []
