"""Nothing is initialised that is never used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotlap.technique import CannotHelp, Family, Parity, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.observe.scrutiny_facts import UnusedFacts

_NAMED = 3


class UsedParameters(Technique):
    """Every parameter and submodule that is built takes part in the training, and nothing is carried along.

    ## Why it is faster
    A parameter without a gradient is initialised, moved to the device, kept there, and written to every checkpoint.
    `DistributedDataParallel` does not go on without its gradient, unless it is told to search the graph in every step
    with `find_unused_parameters=True`. Taken out of `__init__`, all that is saved; and now and then it shows a mistake:
    a layer that was meant to be called and is not.

    ## When it does not help
    Where the part is used in evaluation, in a later phase, or only for some batches: a few updates are watched, and a
    profile watches a few steps. What does not require a gradient was frozen on purpose and is not named. It mostly
    saves memory and the time to start, seldom time in a step.

    ## What changes numerically
    Nothing that is used. Weights initialised after such a part come from another place of the random stream, and
    checkpoints have fewer keys; so it is advice, and nothing is taken out unasked.

    ## Claims
    The lists say not to initialise what is not used, without a figure. The figure here is the number of elements, and
    their part of the whole model.
    """

    family = Family.MEMORY
    aliases = ("unused parameters", "find_unused_parameters", "dead layers")

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if not run.roots:
            return CannotHelp("no model with trainable parameters was called")
        found = run.look.unused if run.look.steps else [one for root in run.roots for one in root.without_gradient]
        if not found:
            return CannotHelp("no parameter was seen to go without a gradient")
        unused, total = sum(one.elements for one in found), sum(root.elements for root in run.roots)
        named = sorted(found, key=lambda one: -one.elements)
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        figures = f"{unused:,} of {total:,} parameters ({unused / max(total, 1):.1%})"
        return CannotHelp(f"{figures} were never used: {', '.join(map(_words, named[:_NAMED]))}{more}")


def _words(one: UnusedFacts) -> str:
    """A module is named with its class: that one was never called."""
    kind = "" if one.kind == "parameter" else f"{one.kind}, never called, "
    return f"{one.name} ({kind}{one.elements:,})"
