"""A machine with a GPU, one without, what torch says on them, and the three kinds of answer."""

from dataclasses import replace

from hotlap.observe.machine import GIB, Gpu, Machine
from hotlap.observe.readiness import Probe, Readiness

H200 = Gpu("NVIDIA H200", 139 * GIB, "580.65.06", (9, 0))
BOX = Machine(
    cpu="Xeon",
    cores=16,
    memory_bytes=128 * GIB,
    instructions=("avx2", "avx512", "amx", "bf16"),
    gpus=(H200,),
    cards=("NVIDIA",),
    os="Linux",
    python="3.11",
    torch="2.11.0+cu130",
    torch_cuda="13.0",
)
LAPTOP = replace(BOX, gpus=(), cards=(), torch="2.11.0+cpu", torch_cuda=None, instructions=("avx2",))
WELL = Probe(threads=16, cuda=True, cuda_error=None, cudnn=91900, half_ending=None)
NO_CUDA = replace(WELL, cuda=False, cuda_error="no kernel image is available", cudnn=None)


def good(row: Readiness) -> str:
    assert row.ok is True and row.remedy is None, row
    return row.finding


def bad(row: Readiness) -> str:
    assert row.ok is False and row.remedy, row
    return row.remedy


def unasked(row: Readiness) -> str:
    assert row.ok is None and row.remedy is None, row
    return row.finding


def with_gpu(**changes) -> Machine:
    return replace(BOX, gpus=(replace(H200, **changes),))
