"""Errors that reach us amid work of ours, such as compiling, and are the script's: raised by a handler of its own for a
signal, as where a scheduler wants its machine back."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import CodeType, TracebackType
from typing import Any


def pass_on(error: BaseException) -> None:
    """Raises what such a handler has raised, under whatever it was wrapped into on its way; else nothing happens."""
    handlers = set(filter(None, (_code_of(signal.getsignal(number)) for number in signal.valid_signals())))
    for one in _wrapped(error):
        if handlers and any(code in handlers for code in _codes(one.__traceback__)):
            raise one from None


def _code_of(handler: Any) -> CodeType | None:
    """Of a function, a method, or what `functools.partial` made of one."""
    code = getattr(getattr(handler, "func", handler), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _wrapped(error: BaseException) -> list[BaseException]:
    """The error and all that led to it, the first of them first."""
    found: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseException) and one not in found:
            found.append(one)
            waiting += [one.__cause__, one.__context__, getattr(one, "inner_exception", None)]
    return found[::-1]


def _codes(trace: TracebackType | None) -> Iterator[CodeType]:
    while trace is not None:
        yield trace.tb_frame.f_code
        trace = trace.tb_next
