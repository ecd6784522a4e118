"""Loader workers hand over their batches in shared memory that is used again and again.

    from hotlap.parts.recycled_batches import recycled_batches

    with recycled_batches():
        for images, labels in DataLoader(dataset, batch_size=128, num_workers=8):
            ...

Torch gives every tensor of every batch shared memory of its own: made, filled page by page, announced by a file
descriptor that the receiver has to ask a thread of the worker for, mapped, and thrown away."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import io
import os
import pickle
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions
from torch.utils.data._utils import worker as torch_worker

INLINE = 16 << 10  # bytes: what is smaller travels in the message itself
MOST_ALIKE = 8  # blocks of one size in a worker: batches on their way, being used, and a few that the script keeps
_MOST = 24  # blocks in a worker
_PAGE = 4096
_FREE, _AWAY = 0, 1
_ALONE = 2  # uses of a storage that belongs to one tensor, the question counted in

_plain_loop = torch_worker._worker_loop


@contextlib.contextmanager
def recycled_batches() -> Iterator[None]:
    """For workers that are started meanwhile."""
    before, torch_worker._worker_loop = torch_worker._worker_loop, worker_loop
    try:
        yield
    finally:
        torch_worker._worker_loop = before


def worker_loop(*args: Any, **kwargs: Any) -> None:
    """Takes the place of torch's own in a worker."""
    given = inspect.signature(_plain_loop).bind(*args, **kwargs)
    given.arguments["data_queue"] = Handover(given.arguments["data_queue"])
    torch.UntypedStorage._new_shared = Workplace()  # type: ignore[method-assign, assignment]
    _plain_loop(*given.args, **given.kwargs)


class Workplace:
    """Where a worker puts its batches together: memory of its own, since they are copied into a block when they leave,
    and the same every time, as long as nobody holds the last one."""

    def __init__(self) -> None:
        self._memory: Any = None
        self._in_use: weakref.ref[Any] | None = None

    def __call__(self, size: int, *, device: Any = "cpu") -> Any:
        is_taken = self._in_use is not None and self._in_use() is not None
        if torch.device(device).type != "cpu" or size <= INLINE or is_taken:
            return torch.UntypedStorage(size, device=device)
        if self._memory is None or self._memory.nbytes() < size:
            self._memory = torch.UntypedStorage(size)
        buffer = _buffer(self._memory, size)
        self._in_use = weakref.ref(buffer)
        return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


class Handover:
    """A worker's queue to its loader, in which tensors travel in blocks of memory that come back."""

    def __init__(self, queue: Any) -> None:
        self._queue, self._blocks = queue, Blocks()

    def put(self, message: Any) -> None:
        written = io.BytesIO()
        try:
            pickler = ForkingPickler(written)
            pickler.dispatch_table = {**pickler.dispatch_table, torch.Tensor: self._blocks.reduced}
            pickler.dump(message)
        except Exception:  # what cannot be sent fails in torch's own way
            self._queue.put(message)
        else:
            self._queue.put(_Written(written.getvalue()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Written:
    """A message that is pickled already."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes]]:
        return pickle.loads, (self._content,)


class Blocks:
    """Of a worker. A block is away from when a tensor is put into it until the receiver has let go of that tensor and
    of everything that shares its memory, which it says by a byte in memory that both see."""

    def __init__(self) -> None:
        self._shared: Callable[[int], Any] = torch.UntypedStorage._new_shared
        self._token = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._states: torch.Tensor | None = None
        self._by_size: dict[int, list[int]] = {}
        self._blocks: list[torch.Tensor] = []

    def reduced(self, tensor: torch.Tensor) -> Any:
        """For pickle: how the receiver makes the tensor again."""
        count = tensor.numel() * tensor.element_size()
        if not _is_plain(tensor, count):
            return reductions.reduce_tensor(tensor)
        content = tensor.detach().reshape(-1).view(torch.uint8)
        if count <= INLINE:
            return _unpacked, (content.numpy().tobytes(), tensor.dtype, tuple(tensor.shape))
        number, birth = self._taken(_rounded(count))
        if number is None:
            return reductions.reduce_tensor(tensor)
        self._blocks[number][:count].copy_(content)
        return _received, (self._token, number, birth, count, tensor.dtype, tuple(tensor.shape))

    def _taken(self, size: int) -> tuple[int | None, Any]:
        """A block that is free, with what makes it known to the receiver where it is new; None where there is none."""
        if self._states is None:
            self._states = self._bytes(_PAGE).zero_()
        alike = self._by_size.setdefault(size, [])
        for number in alike:
            if self._states[number] == _FREE:  # it has been there and back
                self._states[number] = _AWAY
                return number, None
        number = len(self._blocks)
        if len(alike) >= MOST_ALIKE or number >= _MOST or not _has_room_for(size):
            return None, None
        self._blocks.append(self._bytes(size))
        alike.append(number)
        self._states[number] = _AWAY
        places = self._blocks[number], self._states
        return number, [reductions.reduce_storage(place.untyped_storage()) for place in places[: 1 + (number == 0)]]

    def _bytes(self, size: int) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8).set_(self._shared(size))


class _Known:
    """What the receiver knows of a worker's blocks."""

    def __init__(self, token: str) -> None:
        self.process = int(token.partition("-")[0])
        self.blocks: dict[int, Any] = {}
        self.states: Any = None


_known: dict[str, _Known] = {}
_lent: dict[tuple[str, int], weakref.ref[Any]] = {}


def _received(token: str, number: int, birth: Any, count: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    """A tensor in a worker's block. Its storage keeps a buffer alive: whoever keeps the storage keeps the block."""
    known = _known.get(token)
    if known is None:
        _forget_the_dead()
        known = _known[token] = _Known(token)
    if birth is not None:
        storages = [make(*given) for make, given in birth]
        known.blocks[number], known.states = storages[0], storages[-1] if len(storages) > 1 else known.states
    block, states = known.blocks[number], known.states
    buffer = _buffer(block, count)
    state = ctypes.c_ubyte.from_address(states.data_ptr() + number)
    lent, process = _lent, os.getpid()

    def let_go(_: Any, mapped: Any = (block, states)) -> None:  # until now, whether the worker lives or not
        if os.getpid() == process:  # a fork has a copy of the tensor, but no say
            del lent[token, number]
            state.value = _FREE

    lent[token, number] = weakref.ref(buffer, let_go)
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def _buffer(memory: Any, count: int) -> Any:
    """What a tensor made of it keeps alive, and everything that shares its memory: when it is gone, so are they."""
    return (ctypes.c_char * count).from_address(memory.data_ptr())


def _unpacked(content: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=dtype).view(shape) if content else torch.empty(shape, dtype=dtype)


def _forget_the_dead() -> None:
    """The memory of workers that have ended; what is in use of it stays until it is not."""
    for token, known in list(_known.items()):
        try:
            os.kill(known.process, 0)
        except OSError:
            _known.pop(token, None)


def _is_plain(tensor: torch.Tensor, count: int) -> bool:
    """Nothing but its values, in memory that is its alone: what shares some goes on doing so, in torch's way."""
    if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.layout != torch.strided:
        return False
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return False
    storage = tensor.untyped_storage()
    is_alone = storage.nbytes() == count and torch._C._storage_Use_Count(storage._cdata) <= _ALONE
    return is_alone and not storage.is_shared()


def _rounded(count: int) -> int:
    """To one of a few sizes, at most a quarter larger, so that batches of changing length share blocks."""
    step = max(_PAGE, 1 << max(0, count.bit_length() - 3))
    return -(-count // step) * step


def _has_room_for(size: int) -> bool:
    """A full /dev/shm kills whoever writes to it."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return True
    return room.f_bavail * room.f_frsize > 4 * size
