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
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.collate import collate_tensor_fn

INLINE = 16 << 10  # bytes: what is smaller travels in the message itself
MOST_ALIKE = 8  # blocks of one size in a worker: batches on their way, being used, and a few that the script keeps
_MOST = 24  # blocks in a worker
_PAGE = 4096
_FREE, _AWAY, _LEFT = 0, 1, 2  # left: to those who may still look at it, another one takes its place
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
    """Where torch puts a worker's batches together: memory of its own, since they are copied into a block when they
    leave, and the same every time, as long as nobody holds the last one. Others who ask get what they ask for."""

    def __init__(self) -> None:
        self._plain: Callable[..., Any] = torch.UntypedStorage._new_shared
        self._memory: Any = None
        self._in_use: weakref.ref[Any] | None = None
        self._asking = threading.Lock()

    def __call__(self, size: int, *, device: Any = "cpu") -> Any:
        is_for_torch = sys._getframe(2).f_code is collate_tensor_fn.__code__  # by way of a storage with a dtype
        if not is_for_torch or torch.device(device).type != "cpu":
            return self._plain(size, device=device)
        if size <= INLINE or not self._asking.acquire(blocking=False):
            return torch.UntypedStorage(size)
        try:
            return self._used_again(size)
        finally:
            self._asking.release()

    def _used_again(self, size: int) -> Any:
        if self._in_use is not None and self._in_use() is not None:
            return torch.UntypedStorage(size)
        if self._memory is None or self._memory.nbytes() < size:
            self._memory = torch.UntypedStorage(size)
        storage, buffer = _part(self._memory, size)
        self._in_use = weakref.ref(buffer)
        return storage


class Handover:
    """A worker's queue to its loader, in which tensors travel in blocks of memory that come back."""

    def __init__(self, queue: Any) -> None:
        self._queue, self._blocks = queue, Blocks()

    def put(self, message: Any) -> None:
        written = io.BytesIO()
        self._blocks.begin()
        try:
            pickler = ForkingPickler(written)
            pickler.dispatch_table = {**pickler.dispatch_table, torch.Tensor: self._blocks.reduced}
            pickler.dump(message)
        except Exception:  # what cannot be sent fails in torch's own way
            self._blocks.leave()
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
        self._in_message: list[int] = []

    def begin(self) -> None:
        """A message."""
        self._in_message = []

    def leave(self) -> None:
        """The blocks of a message that was not sent: nobody will say that they are free, or has heard of them."""
        for number in self._in_message:
            self._states[number] = _LEFT  # type: ignore[index]

    def reduced(self, tensor: torch.Tensor) -> Any:
        """For pickle: how the receiver makes the tensor again."""
        if not _is_plain(tensor):
            return reductions.reduce_tensor(tensor)
        storage = tensor.untyped_storage()
        count = storage.nbytes()
        form = tensor.dtype, tuple(tensor.shape), tensor.stride()
        if count <= INLINE:
            return _unpacked, (ctypes.string_at(storage.data_ptr(), count), form)
        number, birth = self._taken(_rounded(count))
        if number is None:
            return reductions.reduce_tensor(tensor)
        self._blocks[number][:count].copy_(_of(storage, torch.uint8, (count,)))
        return _received, (self._token, number, birth, count, form)

    def _taken(self, size: int) -> tuple[int | None, Any]:
        """A block that is free, with what makes it known to the receiver where it is new; None where there is none."""
        if self._states is None:
            self._states = self._bytes(_PAGE).zero_()
        alike = self._by_size.setdefault(size, [])
        states = [int(self._states[number]) for number in alike]
        if _FREE in states:  # it has been there and back
            number = alike[states.index(_FREE)]
            self._in_message.append(number)
            self._states[number] = _AWAY
            return number, None
        may_have_more = len(alike) < MOST_ALIKE and len(self._blocks) < _MOST
        if not (_LEFT in states or may_have_more) or not _has_room_for(size):
            return None, None
        block = self._bytes(size)
        if _LEFT in states:
            number = alike[states.index(_LEFT)]
            self._blocks[number] = block
        else:
            number = len(self._blocks)
            self._blocks.append(block)
            alike.append(number)
        self._in_message.append(number)
        self._states[number] = _AWAY
        places = (block, self._states)[: 1 + (len(self._in_message) == 1)]
        return number, [reductions.reduce_storage(place.untyped_storage()) for place in places]

    def _bytes(self, size: int) -> torch.Tensor:
        return _of(self._shared(size), torch.uint8, (size,))


class _Known:
    """What the receiver knows of a worker's blocks."""

    def __init__(self, token: str) -> None:
        self.process = int(token.partition("-")[0])
        self.blocks: dict[int, Any] = {}
        self.states: Any = None


_known: dict[str, _Known] = {}
_lent: dict[tuple[str, int], tuple[weakref.ref[Any], ...]] = {}
_forks = [0]  # of this process, until now


def _note_a_fork() -> None:
    _forks[0] += 1


os.register_at_fork(before=_note_a_fork, after_in_child=_known.clear)


def _received(token: str, number: int, birth: Any, count: int, form: Any) -> torch.Tensor:
    """A tensor in a worker's block. Whoever keeps its storage keeps the block."""
    known = _known.get(token)
    if known is None:
        _forget_the_dead()
        known = _known[token] = _Known(token)
    if birth is not None:
        known.blocks[number], *of_all = (_mapped(*place) for place in birth)
        known.states = of_all[0] if of_all else known.states
    block, states = known.blocks[number], known.states
    storage, buffer = _part(block, count)
    state = ctypes.c_ubyte.from_address(states.data_ptr() + number)
    lent, process, forks, now, pid, gone = _lent, os.getpid(), _forks[0], _forks, os.getpid, list[Any]()

    def let_go(one: Any, mapped: Any = (block, states), free: int = _FREE, left: int = _LEFT) -> None:
        gone.append(one)
        if len(gone) == 2 and pid() == process:  # a fork has the tensor too, for as long as it likes, but no say
            del lent[token, number]
            state.value = free if now[0] == forks else left

    # The storage may be given other memory, by `share_memory_`, while an array still looks at this one.
    lent[token, number] = weakref.ref(storage, let_go), weakref.ref(buffer, let_go)
    return _of(storage, *form)


def _mapped(make: Callable[..., Any], given: Any) -> Any:
    """A worker's memory. Torch would keep a file open for it, of which a process may have but so many."""
    if make is not reductions.rebuild_storage_fd or not os.path.isdir("/proc/self/fd"):
        return make(*given)
    _, announced, size = given
    descriptor = announced.detach()
    try:
        return torch.UntypedStorage.from_file(f"/proc/self/fd/{descriptor}", True, size)
    except RuntimeError:  # some kernels open no file again that has no name any more
        return torch.UntypedStorage._new_shared_fd_cpu(descriptor, size)
    finally:
        os.close(descriptor)


def _part(memory: Any, count: int) -> tuple[Any, Any]:
    """A storage in memory that others look after, and the buffer it keeps for as long as anybody holds a tensor of it,
    as torch keeps the storage's own Python object."""
    buffer = (ctypes.c_char * count).from_address(memory.data_ptr())
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage(), buffer


def _of(storage: Any, dtype: torch.dtype, shape: Any, strides: Any = (1,)) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides)


def _unpacked(content: bytes, form: Any) -> torch.Tensor:
    storage = torch.UntypedStorage(len(content), device="cpu")  # as well aligned as any
    ctypes.memmove(storage.data_ptr(), content, len(content))
    return _of(storage, *form)


def _forget_the_dead() -> None:
    """The memory of workers that have ended; what is in use of it stays until it is not."""
    for token, known in list(_known.items()):
        try:
            os.kill(known.process, 0)
        except OSError:
            _known.pop(token, None)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Nothing but its values, in memory that is its alone: what shares some goes on doing so, in torch's way."""
    if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.layout != torch.strided:
        return False
    if tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg() or tensor.is_nested or tensor.is_quantized:
        return False
    storage = tensor.untyped_storage()
    is_all = storage.nbytes() == tensor.numel() * tensor.element_size() and tensor.storage_offset() == 0
    return is_all and torch._C._storage_Use_Count(storage._cdata) <= _ALONE and not storage.is_shared()


def _rounded(count: int) -> int:
    """To one of a few sizes, at most a quarter larger, so that batches of changing length share blocks."""
    step = max(_PAGE, 1 << max(0, count.bit_length() - 3))
    return -(-count // step) * step


def _has_room_for(size: int) -> bool:
    """Blocks stay, and a full /dev/shm ends whoever needs more of it: half of it is for what goes in torch's way."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return True
    return room.f_bavail * room.f_frsize > max(4 * size, room.f_blocks * room.f_frsize // 2)
