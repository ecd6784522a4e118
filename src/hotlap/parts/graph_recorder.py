"""Work on the device, recorded as a CUDA graph, behind an interface small enough to be played without a device."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain
from typing import Any, ClassVar, Protocol

import torch
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from hotlap.parts.current_queue import current_queue

_HOOKS = [
    getattr(torch_module, f"_global_{kind}_hooks") for kind in ("forward_pre", "forward", "backward_pre", "backward")
]
_precision = torch._C._get_fp32_precision_getter  # the old way to ask fails where the script has said it in the new
_CHOICES = [  # asked in every step, and by their public names each would take a microsecond
    torch.get_default_dtype,
    torch._C._get_deterministic_algorithms,
    torch._C._get_cudnn_enabled,
    torch._C._get_cudnn_benchmark,
    torch._C._get_cudnn_deterministic,
    torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
    torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
    torch._C._get_flash_sdp_enabled,
    torch._C._get_mem_efficient_sdp_enabled,
    torch._C._get_math_sdp_enabled,
    torch._C._get_cudnn_sdp_enabled,
]


def settings() -> tuple[Any, ...]:
    """Of the process, as far as they choose what is recorded."""
    precisions = (_precision("cuda", "matmul"), _precision("cuda", "conv"), _precision("cuda", "rnn"))
    return (*precisions, *[choice() for choice in _CHOICES])


def watched_by() -> str:
    """Who wants to see each operation or the call of each module, of which a replay shows nothing; "" where nobody
    does. Hooks of this package are told of replays in another way."""
    if torch.is_anomaly_enabled():
        return "anomalies are looked for"
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.maybe_current_level() is not None:
        return "each operation is looked at"
    if torch._C._get_tracing_state() is not None:
        return "it is traced"
    if forward_ad._current_level >= 0:
        return "derivatives are carried forward"
    if torch._C._len_torch_function_stack() and not all(map(_is_device, _get_current_function_mode_stack())):
        return "each function is looked at"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "what backward needs is kept in a way of the script's"
    is_scripts = any(_HOOKS) and not all(map(_is_own, chain.from_iterable(hooks.values() for hooks in _HOOKS)))
    return "all modules have hooks of the script's" if is_scripts else ""


def _is_device(mode: Any) -> bool:
    """What `torch.set_default_device` is made of."""
    return isinstance(mode, DeviceContext)


def _is_own(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("hotlap.")


class Moment(Protocol):
    """A point in a recording that others can wait for in each replay, without waiting for what comes after it."""

    @property
    def queue(self) -> Any:
        """Where work of the script goes now."""

    def aside(self) -> AbstractContextManager[Any]:
        """For work that needs no more than what the last replay had done by then. What follows outside waits for it."""

    def spare(self, tensors: Iterable[torch.Tensor]) -> None:
        """Those on the device are used on both sides: neither may give their memory away before the other is done."""

    def read(self, result: torch.Tensor) -> Any:
        """The number in a place of the recording that the last replay had filled by then."""


class Recorder(Protocol):
    """What records work and replays it."""

    device: str  # the kind of device that parameters must be on
    flags: dict[str, Any]  # options under which an update can be recorded

    @property
    def is_busy(self) -> bool:
        """Whether somebody else is recording."""

    @property
    def number(self) -> int | None:
        """Which of the devices of its kind is in use; None where none is."""

    def scalar(self, value: float | torch.Tensor, device: torch.device) -> torch.Tensor:
        """A number of ours that a recording reads anew in each replay."""

    def aside(self, device: torch.device) -> AbstractContextManager[Any]:
        """Work on the stream that is recorded from: what autograd remembers of a stream then fits a recording."""

    def record(self, update: Callable[[], object], device: torch.device) -> Callable[[], object]:
        """What repeats the update from then on; the update is not carried out by recording it."""

    def moment(self) -> Moment | None:
        """Where a recording has come to, asked in the midst of it; None where nobody could wait for that."""


class GraphRecorder:
    device = "cuda"

    def __init__(self) -> None:
        self.flags: dict[str, Any] = {"capturable": True}
        self._pool: Any = None
        self._streams: dict[torch.device, Any] = {}  # one each: memory of the pool is kept by stream
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def is_busy(self) -> bool:
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

    @property
    def number(self) -> int | None:
        return torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def scalar(self, value: float | torch.Tensor, device: torch.device) -> torch.Tensor:
        given = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float32)
        return given.to(device, copy=True)

    def record(self, update: Callable[[], object], device: torch.device) -> Callable[[], object]:
        """Not by `torch.cuda.graph`, which empties the allocator's cache: gradients would move, and with them the
        reason to record. Other threads, such as one that pins batches, may go on meanwhile."""
        if not self._graphs:  # a pool whose last graph is gone cannot be used again
            self._pool = torch.cuda.graph_pool_handle()
        with self.aside(device), _uncollected(), _with_workspaces_of_its_own():
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                update()
            except BaseException:
                with suppress(RuntimeError):  # the capture is broken; the first error tells why
                    graph.capture_end()
                self._mend(device)
                raise
            try:
                graph.capture_end()
            except RuntimeError:
                self._mend(device)
                raise
        self._graphs.add(graph)
        return graph.replay

    def moment(self) -> Moment | None:
        try:
            return _GraphMoment()
        except (TypeError, RuntimeError):  # of a torch whose events do not go out of a graph
            return None

    @contextmanager
    def aside(self, device: torch.device) -> Iterator[None]:
        with torch.cuda.device(device):
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream()
            stream, current = self._streams[device], torch.cuda.current_stream()
            stream.wait_stream(current)
            try:
                with torch.cuda.stream(stream):
                    yield
            finally:
                current.wait_stream(stream)

    def _mend(self, device: torch.device) -> None:
        """A recording that broke may leave allocator and generator as if it went on: an empty one that ends well frees
        the generator. On a stream of its own, since the broken one may still be in its state."""
        self._streams.pop(device, None)
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(device.index or 0, self._pool)
        with suppress(RuntimeError), warnings.catch_warnings(), torch.cuda.stream(torch.cuda.Stream()):
            warnings.simplefilter("ignore")  # an empty graph is just what is wanted
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            graph.capture_end()


class _GraphMoment:
    """An event that the graph itself records, each time it is launched. Whoever waits for it stands on a stream of his
    own, and goes before: a few small kernels among those of a whole pass."""

    _streams: ClassVar[dict[torch.device, Any]] = {}

    def __init__(self) -> None:
        self._event = torch.cuda.Event(external=True)
        self._event.record()
        self._device = torch.device("cuda", torch.cuda.current_device())

    @property
    def _stream(self) -> Any:
        if self._device not in self._streams:
            self._streams[self._device] = torch.cuda.Stream(self._device, priority=-1)
        return self._streams[self._device]

    @property
    def queue(self) -> Any:
        return current_queue(self._device)

    def read(self, result: torch.Tensor) -> Any:
        self._stream.wait_event(self._event)
        with torch.cuda.stream(self._stream):
            return result.item()  # the next replay is not launched before that is done

    @contextmanager
    def aside(self) -> Iterator[None]:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_event(self._event)
        try:
            with torch.cuda.stream(self._stream):
                yield
        except BaseException:
            with suppress(RuntimeError):  # of a device that is lost, as the script's own error tells
                current.wait_stream(self._stream)
            raise
        current.wait_stream(self._stream)

    def spare(self, tensors: Iterable[torch.Tensor]) -> None:
        current = torch.cuda.current_stream(self._device)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(self._stream)
                tensor.record_stream(current)


@contextmanager
def _with_workspaces_of_its_own() -> Iterator[None]:
    """What cuBLAS works in is kept for each stream. A graph that has it from before would write there after others were
    given that memory, and what is allocated for a graph would outlive it."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextmanager
def _uncollected() -> Iterator[None]:
    """What garbage collection frees on the device would break a recording."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
