"""Layers whose memory traffic is in proportion to their arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotlap.technique import CannotHelp, Family, Parity, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.observe.scrutiny_facts import LayerFacts, LookFacts

_NAMED = 3
_FELT = 0.01  # of the layers' time: less is not worth a word


class LeanLayers(Technique):
    """Convolutions that move few bytes for their arithmetic, in a network of few branches and few element-wise steps.

    ## Why it is faster
    A layer takes as long as the slower of two things: its arithmetic, and the bytes it reads and writes. Counted by
    FLOPs alone a depthwise convolution is cheap, but it does so little with each byte that it waits for memory. Four
    rules follow (Ma et al., ShuffleNet V2, 2018): a 1x1 convolution moves least where it has as many inputs as outputs;
    many groups cost traffic; many small branches cost launches; element-wise operations are all traffic.

    ## When it does not help
    Where the arithmetic is what takes the time, which holds for most wide 3x3 convolutions. Other shapes are another
    model, to be trained and judged anew: it is advice, with the bytes and FLOPs of the layers as they were counted in a
    step of `hotlap profile`. `tune` does not count them.

    ## What changes numerically
    Everything: a network of another shape is another network, and how good it is remains to be seen.

    ## Claims
    The paper measured the four rules on one GPU and one phone processor of 2018, at the same FLOPs. The bytes hold
    anywhere; what they cost depends on the chip, so each layer is held against the rates measured on this one.
    """

    family = Family.COMPUTE
    aliases = ("shufflenet", "mac", "memory access cost", "depthwise", "flops")
    suits = "CNN"

    def parity(self, run: Run | None) -> Parity:
        return Parity.DIFFERENT

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        look = run.look
        if not look.layers:
            return CannotHelp("the layers were not counted: `hotlap profile` does")
        convolutions = [one for one in look.layers if one.kind.startswith("Conv") and one.flops and one.moved_bytes]
        starved = sorted((one for one in convolutions if _is_starved(one, look)), key=_seconds, reverse=True)
        found = [_words(one, look) for one in starved[:_NAMED]]
        if found:
            count = f"{len(starved)} of {len(convolutions)} convolutions wait for memory, not for arithmetic"
            found = [f"{count}: {', '.join(found)}"]
        if not convolutions and not look.remarks:
            return CannotHelp("no model here has convolutions")
        if not found and not look.remarks:
            return CannotHelp(f"none of the {len(convolutions)} convolutions moves too many bytes for its arithmetic")
        return CannotHelp("; ".join([*found, *look.remarks]))


def _is_starved(one: LayerFacts, look: LookFacts) -> bool:
    """Its bytes take longer than its arithmetic, at the rates measured here, and long enough to be felt."""
    peak = look.peak_flops.get(one.dtype, 0.0)
    waits = peak > 0 and one.moved_bytes * peak > one.flops * look.peak_bandwidth > 0
    return waits and _seconds(one) >= _FELT * sum(map(_seconds, look.layers))


def _seconds(one: LayerFacts) -> float:
    return one.forward_seconds + one.backward_seconds


def _words(one: LayerFacts, look: LookFacts) -> str:
    share = _seconds(one) / (sum(map(_seconds, look.layers)) or 1.0)
    notes = "".join(f"; {note}" for note in one.notes)
    figures = f"{one.flops / 1e6:,.3g} MFLOP on {one.moved_bytes / 1e6:,.3g} MB, {share:.0%} of the layers' time"
    return f"{one.name or one.root} ({figures}{notes})"
