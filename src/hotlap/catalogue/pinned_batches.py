"""Batches in page-locked memory."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hotlap.source.calls import ABSENT, Call
from hotlap.source.edits import Edit, insert_argument
from hotlap.source.origins import makers
from hotlap.source.transfers import device_moves, draws, is_device_move
from hotlap.source.values import Known
from hotlap.technique import CannotHelp, Family, Needs, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source

LOADER = "torch.utils.data.DataLoader"
NUM_WORKERS, PIN_MEMORY = 5, 7  # positions of DataLoader's parameters


class PinnedBatches(Technique):
    """The loader delivers batches in page-locked memory, which the GPU reads by itself and at full speed.

    ## Why it is faster
    The GPU's copy engine can only read memory that cannot be swapped out. An ordinary batch is first copied, piece by
    piece, into such memory by the driver, and the training process waits meanwhile. With `pin_memory=True` a thread of
    the loader does that while the model computes. Only from pinned memory can a copy overlap with computing at all.

    ## When it does not help
    Without a GPU, or when the batch is small beside the step. A loader without workers has no such thread: the training
    process locks the memory itself, so those are only reported on request (`check --doubtful`). It locks memory that
    other processes then lack. A batch of a type of one's own is pinned only if its class has a `pin_memory` method.
    `x.pin_memory().to(device)` in the training loop is a mistake, not a remedy: the locking itself, on the thread that
    trains, takes longer than the copy it speeds up; it is reported as well, and the fix takes it away.

    ## What changes numerically
    Nothing: the same bytes arrive, in the same order.

    ## Claims
    "4 workers and pinned memory halve the epoch" gives pinning a part in a gain that is mostly the workers'. Its own
    part is at most the copy's share of the step. One list says `prefetch_factor` needs pinned memory: it does not.
    Torch's own tutorial measures `pin_memory().to(...)` as up to twice as slow as a plain `.to(...)`.
    """

    family = Family.COPY
    needs = Needs(device="cuda")
    aliases = ("pin_memory", "pinned memory", "page-locked")
    traits = frozenset({"pinned batches"})

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def spot(self, source: Source) -> Iterator[Site]:
        for call in source.method_calls("to", "cuda"):
            if _pinned_here(call) and is_device_move(source, call):
                message = "locking memory on the training thread takes longer than it saves; leave it out"
                yield source.site(call, message, "safe")
        if not any(source.calls(LOADER)):
            return
        moved: set[ast.Call] = set()
        for draw in draws(source):
            if any(device_moves(source, draw)):
                moved.update(maker.node for maker in makers(source, draw.loader, LOADER) or ())
        for loader in source.calls(LOADER):
            if loader.node in moved and loader.setting("pin_memory", PIN_MEMORY) is ABSENT:
                message = "its batches are copied to the device from pageable memory; pin_memory=True copies faster"
                yield source.site(loader.node, message, "safe", doubtful=_has_no_workers(loader))

    def seen(self, run: Run) -> bool | None:
        training = [loader.pin_memory for loader in run.loaders if loader.trains]
        return all(training) if training else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if not any(loader.trains and not loader.pin_memory for loader in run.loaders):
            return CannotHelp("no training loader without pinned memory was seen")
        return [Try({}, run.share("copy", "other"))]  # only a close watch tells copies from the rest

    def apply(self, patch: Patch, setting: Setting) -> None:
        from hotlap.observe.facts import holds_device_memory

        def built(proceed: Any, loader: Any, bound: Any) -> None:
            # What already lies on the device cannot be pinned: torch would raise.
            if not holds_device_memory(bound.arguments["dataset"]):
                bound.arguments["pin_memory"] = True
            proceed(loader, bound)

        patch.at(patch.joints.loader_built, built)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source = site.source
        assert isinstance(site.node, ast.Call)
        pinning = _pinned_here(site.node)
        if pinning is not None:
            assert isinstance(pinning.func, ast.Attribute)
            return [Edit(source.lines.span(pinning.func.value)[1], source.lines.span(pinning)[1], "")]
        call = next(call for call in source.calls(LOADER) if call.node is site.node)
        return insert_argument(call, "pin_memory=True")


def _has_no_workers(loader: Call) -> bool:
    """Then the training thread itself locks the memory."""
    number = loader.known("num_workers", NUM_WORKERS)
    return number is ABSENT or (isinstance(number, Known) and number.value == 0 and not number.is_default)


def _pinned_here(call: ast.Call) -> ast.Call | None:
    """The inner call of `x.pin_memory().to(...)`."""
    inner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(inner, ast.Call) or not isinstance(inner.func, ast.Attribute):
        return None
    return inner if inner.func.attr == "pin_memory" else None
