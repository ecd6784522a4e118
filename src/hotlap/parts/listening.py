"""What work says while it is done: prints, logs, warnings. A graph that repeats it would say nothing."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

_WAITING = "synchronizing CUDA operation"  # what torch says of them in its debug mode

_warned: set[Any] = set()  # what need not be said again


@contextlib.contextmanager
def listening(device: torch.device | None = None) -> Iterator[list[str]]:
    """Fills with what was heard of this thread; with a device also of waits for it, which no recording allows."""
    heard, spoken, mine = list[str](), list[str](), threading.get_ident()

    def noted() -> None:
        if threading.get_ident() == mine and not spoken:
            spoken.append("it prints")

    with contextlib.ExitStack() as around:
        if sys.stdout is not None:
            around.enter_context(contextlib.redirect_stdout(_Tee(sys.stdout, noted)))
        if sys.stderr is not None:
            around.enter_context(contextlib.redirect_stderr(_Tee(sys.stderr, noted)))
        around.enter_context(_noting_logs(noted))
        around.enter_context(_noting_warnings(heard, noted, device))
        yield heard
    heard += spoken


@contextlib.contextmanager
def _noting_logs(noted: Callable[[], None]) -> Iterator[None]:
    """Wherever they go: a record is made of whatever is not too low to be told."""
    make = logging.getLogRecordFactory()

    def made(*args: Any, **kwargs: Any) -> Any:
        noted()
        return make(*args, **kwargs)

    logging.setLogRecordFactory(made)
    try:
        yield
    finally:
        logging.setLogRecordFactory(make)


@contextlib.contextmanager
def _noting_warnings(heard: list[str], noted: Callable[[], None], device: Any) -> Iterator[None]:
    """Torch warns of waits where it is told to. That mode holds for all threads; one that copies batches may wait as it
    likes. The script's own warnings are shown afterwards, as it has chosen: most are for once."""
    mine, others = threading.get_ident(), list[Any]()
    mode = torch.cuda.get_sync_debug_mode() if getattr(device, "type", "") == "cuda" else None

    def show(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
        if _WAITING not in str(message):
            others.append((message, category, filename, lineno))
        elif threading.get_ident() == mine:
            heard.append("it makes the host wait for the device")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show  # type: ignore[assignment]
        if mode is not None:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            if mode is not None:
                torch.cuda.set_sync_debug_mode(mode)
    for one in others:
        if "prototype feature" not in str(one[0]):
            _warn_again(one, noted)


def _warn_again(warned: tuple[Any, Any, str, int], noted: Callable[[], None]) -> None:
    message, category, *where = warned
    text = str(message)
    place = text, category, *where
    actions = (how for how, words, kind, *_ in warnings.filters if issubclass(category, kind) and _fits(words, text))
    if next(actions, "default") == "always":
        noted()
    elif place in _warned:
        return
    _warned.add(place)
    warnings.warn_explicit(*warned)


def _fits(words: Any, text: str) -> bool:
    return words is None or words.match(text) is not None


class _Tee:
    def __init__(self, stream: Any, noted: Callable[[], None]) -> None:
        self._stream, self._noted = stream, noted

    def write(self, text: str) -> Any:
        self._noted()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
