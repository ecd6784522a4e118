"""What hotlap knows: one file a technique, listed here in the order in which they are shown and tried."""

from __future__ import annotations

import difflib

from hotlap.catalogue.aligned_shapes import AlignedShapes
from hotlap.catalogue.async_copies import AsyncCopies
from hotlap.catalogue.captured_evaluation import CapturedEvaluation
from hotlap.catalogue.captured_model import CapturedModel
from hotlap.catalogue.captured_pass import CapturedPass
from hotlap.catalogue.channels_last import ChannelsLast
from hotlap.catalogue.compiled_model import CompiledModel
from hotlap.catalogue.cpu_threads import CpuThreads
from hotlap.catalogue.cudnn_benchmark import CudnnBenchmark
from hotlap.catalogue.current_apis import CurrentApis
from hotlap.catalogue.debug_off import DebugOff
from hotlap.catalogue.device_born_tensors import DeviceBornTensors
from hotlap.catalogue.device_prefetch import DevicePrefetch
from hotlap.catalogue.device_transforms import DeviceTransforms
from hotlap.catalogue.einops_rearrange import EinopsRearrange
from hotlap.catalogue.fast_jpeg import FastJpeg
from hotlap.catalogue.fast_storage import FastStorage
from hotlap.catalogue.folded_norm import FoldedNorm
from hotlap.catalogue.fp8_linear import Fp8Linear
from hotlap.catalogue.freed_memory import FreedMemory
from hotlap.catalogue.fused_attention import FusedAttention
from hotlap.catalogue.fused_optimizer import FusedOptimizer
from hotlap.catalogue.grad_accumulation import GradAccumulation
from hotlap.catalogue.grad_free_evaluation import GradFreeEvaluation
from hotlap.catalogue.grads_to_none import GradsToNone
from hotlap.catalogue.lean_layers import LeanLayers
from hotlap.catalogue.loader_workers import LoaderWorkers
from hotlap.catalogue.mixed_precision import MixedPrecision
from hotlap.catalogue.no_bias_before_norm import NoBiasBeforeNorm
from hotlap.catalogue.no_data_parallel import NoDataParallel
from hotlap.catalogue.persistent_workers import PersistentWorkers
from hotlap.catalogue.pinned_batches import PinnedBatches
from hotlap.catalogue.recycled_batches import RecycledBatches
from hotlap.catalogue.resident_dataset import ResidentDataset
from hotlap.catalogue.sample_cache import SampleCache
from hotlap.catalogue.single_precision import SinglePrecision
from hotlap.catalogue.sync_free_loop import SyncFreeLoop
from hotlap.catalogue.tf32_matmul import Tf32Matmul
from hotlap.catalogue.used_parameters import UsedParameters
from hotlap.catalogue.zero_copy_tensors import ZeroCopyTensors
from hotlap.errors import HotlapError
from hotlap.technique import Technique

TECHNIQUES: tuple[Technique, ...] = (
    FastStorage(),
    LoaderWorkers(),
    PersistentWorkers(),
    PinnedBatches(),
    RecycledBatches(),
    SampleCache(),
    FastJpeg(),
    ResidentDataset(),
    DeviceTransforms(),
    DeviceBornTensors(),
    ZeroCopyTensors(),
    AsyncCopies(),
    DevicePrefetch(),
    SyncFreeLoop(),
    SinglePrecision(),
    MixedPrecision(),
    Fp8Linear(),
    Tf32Matmul(),
    AlignedShapes(),
    FusedAttention(),
    ChannelsLast(),
    NoBiasBeforeNorm(),
    CudnnBenchmark(),
    CpuThreads(),
    CompiledModel(),
    CapturedModel(),
    CapturedPass(),
    CapturedEvaluation(),
    FusedOptimizer(),
    GradsToNone(),
    NoDataParallel(),
    CurrentApis(),
    GradAccumulation(),
    FreedMemory(),
    GradFreeEvaluation(),
    FoldedNorm(),
    DebugOff(),
    LeanLayers(),
    UsedParameters(),
    EinopsRearrange(),
)


def find(name: str) -> Technique:
    """A technique by its id or by one of the names people search for; the first in order where two share one."""
    wanted = _plain(name)
    for technique in TECHNIQUES:
        if technique.id == wanted:
            return technique
    for technique in TECHNIQUES:
        if wanted in map(_plain, technique.aliases):
            return technique
    known = {_plain(one): technique.id for technique in TECHNIQUES for one in (technique.id, *technique.aliases)}
    near = dict.fromkeys(known[match] for match in difflib.get_close_matches(wanted, known, n=3, cutoff=0.7))
    hint = f"did you mean {' or '.join(near)}?" if near else "`hotlap explain` lists them all."
    raise HotlapError(f"There is no technique called {name!r}; {hint}")


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")
