"""Processes that load samples into shared rows while training goes on. Threads would not do: they would compete for the
interpreter's lock, and move files and handles of the data set that the training reads from."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import default_collate

from hotlap.parts.forked import end, fork, stand_aside

_PROVEN = 4  # samples that are kept already: a process must make the same of them before its others are believed
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

Reader = Callable[[list[int]], list[Any]]


class Form(NamedTuple):
    """What all batches have in common: their structure, and shape and dtype of a sample in each row."""

    structure: Any
    kinds: list[tuple[Any, Any]]

    @classmethod
    def of(cls, leaves: Sequence[Any], structure: Any) -> Form:
        return cls(structure, [(leaf.shape[1:], leaf.dtype) for leaf in leaves])


def why_no_rows(leaves: Sequence[Any], size: int) -> str:
    """Why a batch cannot be taken apart into rows, or "". Asked of every one, since samples need not be alike."""
    if not leaves or not all(type(leaf) is torch.Tensor and leaf.dim() for leaf in leaves):
        return "its batches hold more than tensors"
    if any(len(leaf) != size or leaf.device.type != "cpu" or leaf.layout != torch.strided for leaf in leaves):
        return "its batches are not one row a sample in main memory"
    if any(leaf.is_quantized or leaf.requires_grad or not leaf.is_contiguous() for leaf in leaves):
        return "its batches are quantized, part of a graph, or not laid out row by row"
    return "its samples are empty" if any(not leaf.numel() for leaf in leaves) else ""


class Filler:
    """Forked from the calling thread, which must be the main one: the processes end when it does. `rows` (bytes) are
    written by them, `has` (which of them are there) only by the caller, who learns from `collect` what was made."""

    def __init__(
        self, read: Reader, rows: Sequence[Any], has: Any, form: Form, processes: int
    ) -> None:  # fmt: skip
        self._owner = os.getpid()
        self._children: list[int] = []
        try:
            self._reading, writing = os.pipe()
        except OSError:  # the script has as many files open as it may
            return
        os.set_blocking(self._reading, False)
        self._pipe = os.fstat(self._reading)
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        for number in range(processes):
            try:
                child = fork()
            except (OSError, RuntimeError):  # it has as many processes, or is going down
                break
            if child == 0:
                try:
                    _come_down(library)
                    _fill(read, rows, has, form, range(len(has) - 1 - number, -1, -processes), writing, self._owner)
                finally:
                    os._exit(0)
            self._children.append(child)
        os.close(writing)

    def collect(self) -> Any:
        """The samples that were made since the last time."""
        said = b""
        while self._children:
            if not self._is_open():
                self.close()
                break
            try:
                more = os.read(self._reading, 1 << 16)
            except BlockingIOError:
                break
            said += more
            if not more:  # all have ended
                self.close()
        return numpy.frombuffer(said, dtype=numpy.int64)

    def close(self) -> None:
        if not self._children or os.getpid() != self._owner:  # a forked copy of us owns nothing
            return
        children, self._children = self._children, []
        if self._is_open():
            os.close(self._reading)
        for child in children:
            end(child)

    def _is_open(self) -> bool:
        """A script that closes all files closes ours, and its next one gets the number."""
        try:
            return os.path.samestat(os.fstat(self._reading), self._pipe)
        except OSError:
            return False


def _come_down(library: Any) -> None:
    """Below everything else that wants to run, silent, and gone when the training is."""
    if library is not None:
        library.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    stand_aside()
    os.nice(19)
    gc.freeze()


def _fill(
    read: Reader, rows: Sequence[Any], has: Any, form: Form, order: Sequence[int], writing: int, owner: int
) -> None:  # fmt: skip
    for place in numpy.flatnonzero(has)[:_PROVEN].tolist():
        if any((kept[place] != made).any() for kept, made in zip(rows, _made(read, place, form), strict=True)):
            return
    for place in order:
        if os.getppid() != owner:
            return
        if not has[place]:
            for kept, made in zip(rows, _made(read, place, form), strict=True):
                kept[place] = made
            os.write(writing, place.to_bytes(8, sys.byteorder))


def _made(read: Reader, place: int, form: Form) -> list[Any]:
    """A sample as bytes, one array for each row. One of another form ends the process: the loader will meet it."""
    leaves, structure = tree_flatten(default_collate(read([place])))
    if why_no_rows(leaves, 1) or Form.of(leaves, structure) != form:
        raise ValueError(place)
    return [leaf.contiguous().reshape(1, -1).view(torch.uint8).numpy()[0] for leaf in leaves]
