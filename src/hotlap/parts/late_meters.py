"""Meters that are told numbers from the device, and do their sums when somebody looks at them.

`tell_later(losses, "update", read_later(loss), n)` stands for `losses.update(loss.item(), n)`, where `update` does
arithmetic on the meter's own attributes and nothing else. It is done, with the same numbers in the same order, as soon
as anybody looks: `print(losses.avg)`.

While calls are put off the meter is of a class of ours, that of its own in all but one: whoever asks it for anything,
by whatever name, finds them done first, and its class its own again."""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import os
import sys
import threading
import weakref
from typing import Any

from hotlap.parts.late_reads import Later, read_all, read_now

_MOST = 4096  # calls put off for one meter
_PENDING = "hotlap: calls put off"  # where they are kept: nobody sees a meter's attributes before they are done
_NUMBERS = (int, float)
_OWN_WAYS = {"__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__slots__", "__del__", "__reduce_ex__"}
_OWN_WAYS |= {"__init_subclass__"}
_OPERATORS = [f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv") for side in ("", "r", "i")]
_turn = threading.RLock()  # a meter may be shown by another thread than the one that tells it
_waiting: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id: not every meter has a hash


def tell_later(meter: Any, name: str, /, *arguments: Any, **named: Any) -> None:
    """In place of `meter.name(*arguments)`, for a method that does nothing but arithmetic on the meter's attributes.
    Where no argument is a number yet to be read, or anything is unusual, it is called at once."""
    given = [*arguments, *named.values()]
    with _turn:
        if any(type(one) is Later for one in given) and all(map(_is_safe, given)) and _is_plain(meter):
            _put_off(meter, (name, arguments, named))
            return
    read_all(given)
    getattr(meter, name)(*map(read_now, arguments), **{key: read_now(value) for key, value in named.items()})


def _put_off(meter: Any, call: tuple[str, tuple[Any, ...], dict[str, Any]]) -> None:
    if type(meter) not in _own_kinds:
        object.__setattr__(meter, "__class__", _late(type(meter)))
        _waiting[id(meter)] = meter
    pending = object.__getattribute__(meter, "__dict__").setdefault(_PENDING, collections.deque())
    pending.append(call)
    if len(pending) >= _MOST:
        _settle(meter)


def _is_safe(value: Any) -> bool:
    """What it may be multiplied or divided by: with counts above nothing no sum of them is nothing."""
    return type(value) is Later or (type(value) in _NUMBERS and value > 0)


def _is_plain(meter: Any) -> bool:
    """Whether its attributes are a dict's that nobody else has, and none of them is changed in place by arithmetic."""
    kind = type(meter)
    if kind in _own_kinds:
        return True
    if type(kind) is not type or kind.__mro__[1:] != (object,) or not _OWN_WAYS.isdisjoint(vars(kind)):
        return False
    if _holders(meter) != _ITSELF_ALONE:
        return False
    return all(type(value) in (*_NUMBERS, bool, str, type(None)) for value in vars(meter).values() if _adds(value))


def _holders(meter: Any) -> int:
    """Who kept `vars(meter)`, or shares it with another meter, would not be asked for anything."""
    return sys.getrefcount(object.__getattribute__(meter, "__dict__"))


def _adds(value: Any) -> bool:
    return any(hasattr(type(value), one) for one in _OPERATORS)


class _Late:
    """For the time in which calls are put off. Each of these is the first thing that anybody reaches."""

    def __getattribute__(self, name: str) -> Any:
        _settle(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _settle(self)
        setattr(self, name, value)

    def __delattr__(self, name: str) -> None:
        _settle(self)
        delattr(self, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _settle(self)
        return self.__reduce_ex__(protocol)


_ITSELF_ALONE = _holders(_Late())
_WAYS = {name: way for name, way in vars(_Late).items() if name in _OWN_WAYS}
_own_kinds: dict[type, type] = {}  # by the late one


@functools.cache
def _late(kind: type) -> type:
    """Of one base alone: an object can only become what is laid out as it is."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__slots__": ()}
    late = type(kind.__name__, (kind,), names | _WAYS)
    _own_kinds[late] = kind
    return late


def _settle(meter: Any) -> None:
    """By way of a twin with the same attributes: until all is done, whoever looks at the meter comes here and waits.
    What is interrupted goes on at the next look."""
    with _turn:
        kind, own = _own_kinds.get(type(meter)), object.__getattribute__(meter, "__dict__")
        if kind is None:  # another thread was here first
            return
        pending = own.get(_PENDING, ())
        read_all([value for _, arguments, named in pending for value in (*arguments, *named.values())])
        twin = object.__new__(kind)
        twin.__dict__ = own
        try:
            while pending:
                name, arguments, named = pending.popleft()
                getattr(twin, name)(*map(read_now, arguments), **{key: read_now(value) for key, value in named.items()})
        finally:
            if not pending:
                own.pop(_PENDING, None)
                object.__setattr__(meter, "__class__", kind)
                _waiting.pop(id(meter), None)


@atexit.register
def _settle_all() -> None:
    """While it can be done: not by what looks at a meter when Python is half gone."""
    for meter in list(_waiting.values()):
        with contextlib.suppress(RuntimeError):  # of a device that has failed: whoever looks hears of it
            _settle(meter)


def _before_a_fork() -> None:
    """In a forked process nothing can be read from a device."""
    _turn.acquire()
    _settle_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_a_fork, after_in_parent=_turn.release, after_in_child=_turn.release)
