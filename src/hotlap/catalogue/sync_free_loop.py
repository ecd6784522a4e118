"""No waiting for the device in the loop."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hotlap.source.bodies import method, receiver
from hotlap.source.edits import Edit, add_import, insert_before, replace_node
from hotlap.source.meters import Told, told
from hotlap.source.running_totals import Refused, Total, running_total
from hotlap.source.waits import waits
from hotlap.technique import CannotHelp, Family, Needs, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.run import Run, SyncFacts
    from hotlap.source.module import Site, Source

_COPIES = ("pageable copy", "synchronize")  # waits that other techniques mend, or that are meant
_PART, _LATER, _NOW = "hotlap.parts.late_reads", "read_later", "read_now"
_METERS, _TELL = "hotlap.parts.late_meters", "tell_later"


class SyncFreeLoop(Technique):
    """The host queues one step after the other, instead of waiting for the device to finish each of them.

    ## Why it is faster
    A GPU works through a queue that the host fills ahead of time. `loss.item()` needs the number now: the host stands
    still until everything queued has been computed, then begins to fill the queue again, while the GPU runs dry. Sums,
    counts and running averages can wait: `total += read_later(loss)` puts the value aside on the device, and
    `total = read_now(total)` reads all of them at once, where the number is shown. A meter that is told a loss in every
    step does its sums when somebody looks at it. `.tolist()`, `float(x)`, `print(x)`, `if x > 0:` and `nonzero` wait in
    the same way.

    ## When it does not help
    On a CPU nobody waits. Where a step keeps the GPU busy far longer than it takes to queue, the wait costs little:
    `hotlap profile` gives the seconds for each line. Reading every hundredth step is the remedy, not the mistake, so
    what stands under an `if` is reported only where its other branch waits as well. One copy of an evaluation's outputs
    to the host is not either: it frees the device's memory. A number shown in every step, as in a progress bar, cannot
    be both undelayed and read late. It is left alone and reported with the reason, as are numbers that other code may
    see: globals, attributes, what an inner function uses; and meters whose class does more than add up, or is not
    found.

    ## What changes numerically
    Nothing: the values are put aside on the device, and the arithmetic is Python's own, done when the number is read,
    in the order in which it is written. The type is the same, too. A sum made on the device would not do: in float32 it
    rounds where Python does not. The fix is marked
    unsafe because it makes the script import hotlap.

    ## Claims
    "Avoid .item(), .cpu(), .numpy() and print in the loop" is in most lists, without a figure and without the reason
    why it may do nothing: the wait is only worth what the host could have queued meanwhile. The first wait of a step
    is the one that costs; a second right after it finds the queue empty.
    """

    family = Family.SYNC
    needs = Needs(device="cuda")
    aliases = ("item", ".item()", "synchronisation", "cudaStreamSynchronize", "nonzero")

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def spot(self, source: Source) -> Iterator[Site]:
        for node, (what, is_step) in waits(source).items():
            often, later = ("in every step", "when shown") if is_step else ("at every evaluation batch", "at the end")
            message = f"{what} waits for the device {often}; {_remedy(what, later)}"
            try:
                is_total = self._total(source, node) is not None
            except Refused as reason:
                yield source.site(node, f"{message} (left alone: {reason})")
            else:
                yield source.site(node, message, "unsafe" if is_total else None)

    def seen(self, run: Run) -> bool | None:
        """From a close watch on a device only."""
        if run.device == "cpu" or not run.syncs or not run.step_seconds:
            return None
        return not _every_step(run)

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if run.syncs and not _every_step(run):
            return CannotHelp("the host does not wait for the device in most of this script's steps")
        # Without a close watch a wait counts as time nobody has accounted for.
        return [Try({}, run.share("sync") if run.syncs else run.share("sync", "other"))]

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source, total = site.source, self._total(site.source, site.node)
        assert total is not None
        if isinstance(total, Told):
            yield from replace_node(source, total.call, total.text(source, _TELL, _LATER))
            yield from add_import(source, f"from {_METERS} import {_TELL}")
            yield from add_import(source, f"from {_PART} import {_LATER}")
            return
        for read in total.reads:
            yield from replace_node(source, read, _late(source, read))
        for statement in total.shown:
            yield from insert_before(source, statement, f"{total.name} = {_NOW}({total.name})")
        yield from add_import(source, f"from {_PART} import {_LATER}{f', {_NOW}' if total.shown else ''}")

    def _total(self, source: Source, node: ast.AST) -> Total | Told | None:
        """The number that a value from the device is added to, or the meter it is told; None where it is no single
        value."""
        what, _ = waits(source)[node]
        if what not in (".item()", "float(...)", "int(...)"):
            return None
        total = told(source, node) or running_total(source, node, lambda one: one in waits(source))
        if any(source.is_ignored(read.lineno, self.id) for read in total.reads):
            raise Refused("part of it is to be ignored")
        for part, name in ((_PART, _LATER), (_PART, _NOW), (_METERS, _TELL)):
            if source.mentions(name) and source.names.spelled(f"{part}.{name}") != name:
                raise Refused(f"the file has a {name} of its own")
        return total


def _every_step(run: Run) -> list[SyncFacts]:
    """The waits that could be saved; one in fewer than half the steps is one for show."""
    often = [sync for sync in run.syncs if 2 * sync.steps >= len(run.step_seconds)]
    return [sync for sync in often if sync.kind not in _COPIES]


def _late(source: Source, read: ast.Call) -> str:
    if method(read) == "item":
        return f"{_LATER}({source.segment(receiver(read))})"
    return f"{_LATER}({source.segment(read.args[0])}, {source.segment(read.func)})"


def _remedy(what: str, later: str) -> str:
    """A value that is kept or shown can be read later; one that decides what comes next cannot."""
    is_kept = what.startswith(".") or what in ("float(...)", "int(...)", "print(...)")
    return f"add up on the device, read {later}" if is_kept else "decide on the device, or ask less often"
