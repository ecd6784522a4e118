"""Copies the host does not wait for."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hotlap.source.calls import UNSURE, Call
from hotlap.source.edits import Edit, insert_argument
from hotlap.source.origins import given_anywhere, makers
from hotlap.source.transfers import Draw, device_moves, draws
from hotlap.technique import Family, Needs, Parity, Setting, Technique

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source

LOADER = "torch.utils.data.DataLoader"
PIN_MEMORY = 7  # its position among DataLoader's parameters
_WAITS = ("item", "cpu", "numpy", "tolist", "synchronize")


class AsyncCopies(Technique):
    """A batch in pinned memory is copied to the device while the host goes on to queue the step's kernels.

    ## Why it is faster
    `.to(device)` waits until the copy is done; with `non_blocking=True` it is only queued, in order, before the kernels
    that use it. Two copies of one batch no longer wait for each other, and the host is ahead by the time they take,
    which matters where launching kernels is what the step is bound by.

    ## When it does not help
    From ordinary memory: that copy waits whatever is asked for, so only batches of a loader that surely pins are
    reported. When the host waits for the device right afterwards (`loss.item()` at once), nothing is won: the finding
    says so. A copy that also changes the dtype is cast in ordinary memory first.

    ## What changes numerically
    Nothing, from host to device: kernels are queued behind the copy. From device to host it would be wrong data:
    `x.to("cpu", non_blocking=True)` returns before the values are there. That direction is never touched, nor is a
    batch that is written to after its copy was queued.

    ## Claims
    The lists name it together with pinned memory, without a figure. It is worth at most the copy's share of the step,
    and on the same stream the device still computes nothing meanwhile: real overlap takes a second stream.
    """

    family = Family.COPY
    needs = Needs(device="cuda")
    aliases = ("non_blocking", "asynchronous copies")
    helps_with = frozenset({"pinned batches"})

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def spot(self, source: Source) -> Iterator[Site]:
        found: dict[ast.Call, str] = {}
        for draw in draws(source):
            moves = [one for one in device_moves(source, draw) if _is_plain(one)]
            loaders = makers(source, draw.loader, LOADER) if moves else None
            if not loaders or not all(map(_is_pinned, loaders)):
                continue
            for move in moves:
                if not _is_written_later(source, draw, move):
                    found[move] = "; the next line waits for it all the same" if _waits_next(source, move) else ""
        for move in sorted(found, key=lambda one: (one.lineno, one.col_offset)):
            yield source.site(move, f"the host waits for this copy; non_blocking=True queues it{found[move]}", "safe")

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        assert isinstance(site.node, ast.Call)
        return insert_argument(site.node, "non_blocking=True", source=site.source)


def _is_pinned(call: Call) -> bool:
    """Surely, or wherever the file says anything: `{"pin_memory": True} if use_cuda else {}`."""
    given = call.setting("pin_memory", PIN_MEMORY)
    if given is UNSURE and any(one.arg is None for one in call.node.keywords):
        values = [value for _, value in given_anywhere(call.source, call.node, "pin_memory")]
        return bool(values) and all(isinstance(one, ast.Constant) and one.value is True for one in values)
    return isinstance(given, ast.Constant) and given.value is True


def _is_plain(move: ast.Call) -> bool:
    """Neither chosen already, by name or position, nor hidden in `**options`."""
    most = 1 if isinstance(move.func, ast.Attribute) and move.func.attr == "cuda" else 2
    is_known = len(move.args) <= most and not any(isinstance(one, ast.Starred) for one in move.args)
    return is_known and all(one.arg not in (None, "non_blocking") for one in move.keywords)


def _waits_next(source: Source, move: ast.Call) -> bool:
    """Whether the statement right after the move makes the host wait."""
    statement = source.statement(move)
    block = source.block(statement)
    place = next(number for number, one in enumerate(block) if one is statement)
    following = block[place + 1 : place + 2]
    calls = [node.func for one in following for node in ast.walk(one) if isinstance(node, ast.Call)]
    return any(isinstance(function, ast.Attribute) and function.attr in _WAITS for function in calls)


def _is_written_later(source: Source, draw: Draw, move: ast.Call) -> bool:
    """Whether the batch on the host, still being read by the copy, is changed in place further on."""
    for node in ast.walk(draw.place):
        if getattr(node, "lineno", 0) <= move.lineno:
            continue
        written: ast.AST | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            written = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            written = node.func.value
        if isinstance(written, ast.Name) and written.id in draw.names and not _is_rebound(source, move, written.id):
            return True
    return False


def _is_rebound(source: Source, move: ast.Call, name: str) -> bool:
    statement = source.statement(move)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(node, ast.Name) and node.id == name for target in targets for node in ast.walk(target))
