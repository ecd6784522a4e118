"""Meters that are told numbers from the device, and do their sums when somebody looks at them.

`tell_later(losses, "update", read_later(loss), n)` stands for `losses.update(loss.item(), n)`, where `update` does
arithmetic on the meter's own attributes and nothing else. It is done, with the same numbers in the same order, as soon
as anybody looks: `print(losses.avg)`.

While calls are put off the meter is of a class of ours, that of its own in all but one: whoever asks it for anything,
by whatever name, finds them done first, and its class its own again."""

from __future__ import annotations

import functools
from typing import Any

from hotlap.parts.late_reads import Later, read_all

_MOST = 4096  # calls put off for one meter
_PENDING = "hotlap: calls put off"  # where they are kept: nobody sees a meter's attributes before they are done
_NUMBERS = (int, float)
_OWN_WAYS = ("__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__slots__", "__del__", "__reduce_ex__")


def tell_later(meter: Any, name: str, *arguments: Any, **named: Any) -> None:
    """In place of `meter.name(*arguments)`, for a method that does nothing but arithmetic on the meter's attributes.
    Where no argument is a number yet to be read, or anything is unusual, it is called at once."""
    given = [*arguments, *named.values()]
    if any(type(one) is Later for one in given) and all(map(_is_safe, given)) and _is_plain(meter):
        pending = object.__getattribute__(meter, "__dict__").setdefault(_PENDING, [])
        if not pending:
            object.__setattr__(meter, "__class__", _late(type(meter)))
        pending.append((name, arguments, named))
        if len(pending) >= _MOST:
            _settle(meter)
        return
    read_all(given)
    getattr(meter, name)(*map(_read, arguments), **{key: _read(value) for key, value in named.items()})


def _is_safe(value: Any) -> bool:
    """What it may be multiplied or divided by: with counts above nothing no sum of them is nothing."""
    return type(value) is Later or (type(value) in _NUMBERS and value > 0)


def _is_plain(meter: Any) -> bool:
    """Whether its attributes are a dict's, and none of them is something that arithmetic changes in place."""
    if type(meter) in _own_kinds:
        return True
    if type(meter).__mro__[1:] != (object,) or any(name in vars(type(meter)) for name in _OWN_WAYS):
        return False
    return all(type(value) in (*_NUMBERS, bool, str, type(None)) for value in vars(meter).values() if _adds(value))


def _adds(value: Any) -> bool:
    return hasattr(value, "__add__")


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
    pending = object.__getattribute__(meter, "__dict__").pop(_PENDING, ())
    if type(meter) in _own_kinds:
        object.__setattr__(meter, "__class__", _own_kinds[type(meter)])
    read_all([value for _, arguments, named in pending for value in (*arguments, *named.values())])
    for name, arguments, named in pending:
        getattr(meter, name)(*map(_read, arguments), **{key: _read(value) for key, value in named.items()})


def _read(value: Any) -> Any:
    return value._read() if type(value) is Later else value
