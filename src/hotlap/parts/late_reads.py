"""Numbers that are on the device and are read when they are shown, not when they are added up.

    from hotlap.parts.late_reads import read_later, read_now

    total = 0.0
    for step, (inputs, labels) in enumerate(loader):
        loss = train(inputs, labels)
        total += read_later(loss) * len(labels)     # instead of loss.item() * len(labels): nobody waits
        if step % 100 == 0:
            total = read_now(total)                 # a plain number again; here the host waits, once
            print(f"{total:.3f}")

Only the tensor's value is put aside on the device. The arithmetic is Python's own, done on the host when the number is
read, in the order it was written: the result has the bits and the type that `.item()` in every step would have given.
Adding up on the device would not: there an int64 tensor times a float is a float32, and integers wrap round."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

DEVICES = {"cuda"}  # where a read waits for a queue; everywhere else the value is read at once
_LARGEST = 4096  # then a number is read in between, so that neither host nor device fills up
_PLAIN = (int, float, bool)


def read_later(tensor: Any, kind: type[int] | type[float] | None = None) -> Any:
    """In place of `tensor.item()`, or of `kind(tensor)`: its value as it is now, to be read later. Whatever would not
    wait for a device, or would raise, is read at once."""
    if _can_wait(tensor, kind):
        return Later(tensor.detach().reshape(()).clone(), kind)
    return tensor.item() if kind is None else kind(tensor)


def read_now(value: Any) -> Any:
    """The plain number that a value stands for; anything else as it is."""
    return value._read() if type(value) is Later else value


def read_all(values: Iterable[Any]) -> None:
    """So that each of them is known, with one wait for all."""
    unread = {id(leaf): leaf for one in values if type(one) is Later for leaf in _unread(one) if leaf._work is None}
    if unread:
        _fetch(list(unread.values()))


def _after(work: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: _worked(work, self, other)


def _before(work: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: _worked(work, other, self)


def _at_once(work: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *others: work(self._read(), *map(read_now, others))


class Later:
    """A number not yet read: a tensor on the device, or arithmetic on such numbers. It never changes, so `a += b` makes
    a new one. Asked for its value in any other way than by `read_now`, it is read then."""

    __slots__ = ("_kind", "_operands", "_size", "_tensor", "_value", "_work")
    __array_ufunc__ = None  # NumPy leaves the arithmetic to this class, which then reads

    def __init__(self, tensor: Any, kind: type | None = None) -> None:
        self._tensor, self._kind = tensor, kind
        self._work: Callable[..., Any] | None = None
        self._operands: tuple[Any, ...] = ()
        self._value: Any = None
        self._size = 1  # of how many numbers not yet read it is made, itself included

    def _read(self) -> Any:
        order = list(_unread(self))
        if tensors := [one for one in order if one._work is None]:
            _fetch(tensors)
        for one in order:
            if one._work is not None:
                one._value = one._work(*map(_known, one._operands))
                one._work, one._operands, one._size = None, (), 0
        return self._value

    def __neg__(self) -> Any:
        return _worked(operator.neg, self)

    __add__, __radd__ = _after(operator.add), _before(operator.add)
    __sub__, __rsub__ = _after(operator.sub), _before(operator.sub)
    __mul__, __rmul__ = _after(operator.mul), _before(operator.mul)
    __truediv__, __rtruediv__ = _after(operator.truediv), _before(operator.truediv)
    __eq__, __ne__ = _at_once(operator.eq), _at_once(operator.ne)  # type: ignore[assignment]
    __lt__, __le__, __gt__, __ge__ = map(_at_once, (operator.lt, operator.le, operator.gt, operator.ge))
    __bool__, __int__, __float__, __index__ = map(_at_once, (bool, int, float, operator.index))
    __repr__, __format__ = map(_at_once, (repr, format))
    __hash__ = None  # type: ignore[assignment]


def _worked(work: Callable[..., Any], *operands: Any) -> Any:
    """Arithmetic that is put off, unless something in it is no plain number or it might raise: that is done now."""
    is_plain = all(type(one) is Later or type(one) in _PLAIN for one in operands)
    if not is_plain or (work is operator.truediv and (type(operands[1]) is Later or not operands[1])):
        return work(*map(read_now, operands))
    result = Later(None)
    result._work, result._operands = work, operands
    result._size += sum(one._size for one in operands if type(one) is Later)
    return result if result._size <= _LARGEST else result._read()


def _unread(last: Later) -> Iterator[Later]:
    """What has to be known for a number, each after its operands. Not by recursion: a sum is as deep as it is long."""
    seen: set[int] = set()
    stack = [(last, False)]
    while stack:
        one, has_operands = stack.pop()
        if has_operands:
            yield one
        elif id(one) not in seen and (one._work is not None or one._tensor is not None):
            seen.add(id(one))
            stack.append((one, True))
            stack.extend((operand, False) for operand in one._operands if type(operand) is Later)


def _known(operand: Any) -> Any:
    return operand._value if type(operand) is Later else operand


def _fetch(values: list[Later]) -> None:
    """One copy to the host for each device and dtype, from the queue the values were put aside in."""
    import torch

    groups: dict[Any, list[Later]] = {}
    for one in values:
        groups.setdefault((one._tensor.device, one._tensor.dtype), []).append(one)
    for (device, _), members in groups.items():
        stream = torch.cuda.default_stream(device) if device.type == "cuda" else None
        with torch.cuda.stream(stream):
            together = torch.stack([one._tensor for one in members])
            if stream is not None:
                _arrived(stream)
            numbers = together.tolist()
        for one, number in zip(members, numbers, strict=True):
            one._value = number if one._kind is None else one._kind(number)
            one._tensor, one._size = None, 0


def _arrived(stream: Any) -> None:
    """A copy into memory that is not pinned waits as well, but lets no other thread call the device meanwhile: whoever
    makes the next batches would stand still until then."""
    import torch

    over = torch.cuda.Event()
    over.record(stream)
    over.synchronize()


def _can_wait(tensor: Any, kind: type | None) -> bool:
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type not in DEVICES:
        return False
    if tensor.numel() != 1 or tensor.layout is not torch.strided or tensor.dtype not in _dtypes(kind):
        return False
    # Work on another stream is only in order with the reading if somebody waits for it.
    device = tensor.device
    return device.type != "cuda" or torch.cuda.current_stream(device) == torch.cuda.default_stream(device)


def _dtypes(kind: type | None) -> tuple[Any, ...]:
    import torch

    whole = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
    # int(nan) raises, and must do so where it is written.
    return whole if kind is int else (*whole, torch.float64, torch.float32, torch.float16, torch.bfloat16)
