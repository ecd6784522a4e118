"""Forward, loss and backward as one CUDA graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hotlap.source.bodies import receiver
from hotlap.source.early_reads import readings
from hotlap.source.edits import (
    Edit,
    add_import,
    indentation_unit,
    insert_after,
    move_before,
    replace_node,
    wrap_statements,
)
from hotlap.source.single_reads import single_reads
from hotlap.source.straight_passes import Pass, straight_passes
from hotlap.source.transfers import uses_device
from hotlap.technique import CannotHelp, Family, Needs, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source

_PART, _CALL, _NAME = "hotlap.parts.recorded_pass", "recorded", "one_pass"
_EARLY, _READ = "reading_early", "read_early"
_MOST = 8  # passes a step


class CapturedPass(Technique):
    """Forward, loss and backward of a step are replayed with one launch instead of hundreds.

    ## Why it is faster
    Eager PyTorch starts one kernel after the other, each through Python, the dispatcher and autograd. On a fast GPU a
    small model computes faster than the host can start its kernels: the GPU waits for Python. A CUDA graph records all
    kernels of a pass once, and then the host starts the whole of it with a single call. The statements of the loop from
    `zero_grad` or the model's call to `backward` become a function of their own, in memory; the update stays outside,
    where the fused optimizer's kind `captured` makes a second graph of it. A step may have several such passes, as two
    networks in turns have, and several of them may add up to one update: a recording adds to the gradients it finds, as
    long as they are the ones it was made with, and what an input was made of gets its gradient after the replay. A
    model that `compiled-model` has compiled in its mode `default` is recorded as compiled: fewer kernels, and one
    launch for all of them.

    What a step shows is read from the middle of it. `loss.item()` waits for everything that is queued, backward and
    update too, and while the host then counts, prints and fetches the next batch, the GPU has nothing to do. The graph
    marks where its forward ends; statements that only work with the loss, the outputs, the inputs and plain numbers
    wait for that mark alone, on a queue of their own, and the host is ready with the next step before this one is over.
    A single `loss.item()` is read so wherever the step asks for it, also behind an `if`, as to print every tenth.

    ## When it does not help
    Where the GPU is busy all the time there is nothing to save: large models and large batches. It needs a loop whose
    passes do the same in every step: no `.item()` between forward and backward, and no `if` or inner loop that decides
    whether something is set. Rounds in a pass, as along a sequence, are recorded with it, one after the other, and
    another number of them is another recording. What a pass hands on has no graph, so one that another pass goes back
    through is left as it is. A pass is given up, with the reason, where it waits for the device, computes or draws on
    the host, prints, leaves something behind in Python (a counter, a list), has hooks, adds to gradients that are made
    anew by a pass without a recording, or rests on what changes from step to step. Reads are left as they are where a
    statement does more than that, calls a function of the script, or makes a tensor that is used elsewhere; where other
    code was given the loss before, as `all_reduce(loss)`; and in files that measure by `elapsed_time` or copy to the
    host without waiting, since a read may be all that waits for those. Each shape of inputs has a graph of its own, and
    another where it adds to gradients, four at most; a smaller last batch runs as it is until it has come often enough.
    A recording keeps the memory of its activations for itself, about as much as a step needs on top of the weights.
    What the script gets back are copies without a graph of their own.

    ## What changes numerically
    Nothing is meant to: the same kernels run in the same order, and dropout goes on with the same random numbers. Only
    a library that chooses its kernel anew for a recording may round otherwise. The first replays of each recording are
    held against the pass itself, run from the same state: loss, gradients and buffers.

    ## Claims
    None of the lists has it. The gain is bounded by what the host spends on launches. By hand, a graph of the whole
    step, update included, took 0.36 ms on pytorch/examples' MNIST on one H200. There `hotlap run`, with the data set
    resident and the update recorded, came from 2.7 to 1.4 ms a step on average over three epochs, start-up and
    evaluations included, unedited; later epochs took 0.83 ms. Plans with it in them were proven by `hotlap tune`:
    9.8 -> 0.96 ms on MNIST, 17.9 -> 3.2 ms on pytorch-cifar's ResNet18, and on minGPT's chargpt 20.3 -> 4.0 ms, where
    the model is compiled and then recorded: 8.6 ms recorded as it is. pytorch-cifar reads loss and hits in every step
    for its progress bar. Beside a loop written by hand, which reads nothing, its training steps had 0.90x the pace
    without early reads; with them 1.07x (one round) and 1.16x (two rounds), in other calls and on hosts of other speed;
    and over whole epochs with their tests 0.92x and, after another change to those, 1.04x. For steps of several passes,
    and for passes that add up to one update, there is no figure yet.
    """

    family = Family.COMPUTE
    needs = Needs(device="cuda")
    aliases = ("CUDAGraph", "whole-step graph", "step graph")
    traits = frozenset({"captured pass"})
    # plain compiled code is fine; what does its work after each backward would be missed by a replay
    excludes = frozenset({"graphs of its own", "recorded calls", "works after backward"})
    helps_with = frozenset({"low precision", "image layout", "fused update"})
    written_last = True

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def spot(self, source: Source) -> Iterator[Site]:
        """Doubtful, all of them: whether the host is too slow for its device cannot be read from source."""
        if not uses_device(source) or source.mentions(_CALL, _NAME, _EARLY, _READ, *map(_name, range(1, _MOST))):
            return
        passes = [one for one in straight_passes(source) if isinstance(one, Pass) and one.number < _MOST]
        for found in passes:
            if found.late or not any(one.late for one in passes):  # the others are written when these are in a row
                message = "forward and backward are started kernel by kernel; one graph needs a single launch"
                yield source.site(found.first, message, "unsafe", doubtful=True)

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if any(optimizer.closure for optimizer in run.optimizers):
            return CannotHelp("each update calls the model itself (a closure)")
        if run.script_compiles:
            return CannotHelp("the script compiles its model")
        return [Try({}, run.share("forward", "backward", "other"))]

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source = site.source
        found = next(one for one in straight_passes(source) if isinstance(one, Pass) and one.first is site.node)
        if found.ahead_of is not None:
            yield from move_before(source, list(found.late), found.ahead_of)
            return
        name = _name(found.number)
        yield from wrap_statements(source, found.first, found.last, f"def {name}({', '.join(found.inputs)}):")
        results, call = ", ".join(found.results), f"{_CALL}({', '.join((name, *found.given))})"
        unit = indentation_unit(source, found.first)
        lines = [f"{unit}return {results}", f"{results} = {call}"] if results else [call]
        yield from insert_after(source, found.last, "\n".join(lines))
        beside = readings(source, found)
        if beside is not None:
            header = f"with {_EARLY}({', '.join((name, *beside.names))}):"
            yield from wrap_statements(source, beside.statements[0], beside.statements[-1], header)
        for read in single_reads(source, found, beside):
            yield from replace_node(source, read, f"{_READ}({name}, {source.segment(receiver(read))})")
        yield from add_import(source, f"from {_PART} import {', '.join(_imported(source))}")


def _name(number: int) -> str:
    return _NAME if not number else f"pass_{number + 1}"


def _imported(source: Source) -> list[str]:
    """What all passes of a file need, in one line."""
    passes = [one for one in straight_passes(source) if isinstance(one, Pass)]
    read = [(readings(source, one), one) for one in passes]
    has_singles = any(True for beside, one in read for _ in single_reads(source, one, beside))
    has_readings = any(beside is not None for beside, _ in read)
    return [*([_READ] if has_singles else []), *([_EARLY] if has_readings else []), _CALL]
