"""Everything that makes a figure less certain, each with the advice that fits. One place, one wording."""

from __future__ import annotations

from enum import Enum


class Caveat(Enum):
    NOISY = "more than a third of the trials were disturbed by other work: close it, or give a larger --budget"
    DISTURBED = "other work ran on these cores meanwhile: profile again when it is quiet"
    UNPROTECTED = "trials ran without protection: files the script writes were really written"
    REDIRECTED = (
        "writes were redirected in Python: programs the script starts could use the network and change file modes"
    )
    SHORT = "the script ends after {steps} steps, so trials were short: give it more epochs for a firmer figure"
    UNSETTLED = "step times never settled, or grow on and on: give a larger --budget, or look for what piles up"
    RECOMPILES = "the script {storm}: give it steady shapes, or torch.compile(dynamic=True)"
    NO_EPOCH_END = "no trial reached the end of an epoch: what happens there was not compared"
    TOO_LARGE = "the model is too large to compare whole states: parity rests on batches, losses and norms"
    INTERRUPTED = "stopped before it was done: what was not proven by then is not kept"
    NO_ROOM = "the budget left no room for {count} of the trials beside the proof: try --budget {budget}"
    NOT_CONFIRMED = "the budget ended before the gain was proven by pairs: try --budget {budget}"
    NOT_TOLD_APART = (
        "{pairs} pairs could not tell the plan from the script, their times are too far apart: close other work, or let"
        " the script train for longer"
    )
    NOT_LOOKED_AT = (
        "the whole plan was not the same training, and the budget left no room to look at {count} of its members by"
        " themselves: try --budget {budget}"
    )
    REPEATS_ITSELF_NOT = "the script does not repeat itself bit for bit, so equality is judged by its own spread"

    KNOWN_PROOF = "the proof by pairs is from {day}, and nothing changed since: --fresh measures it again"
    NOT_KEPT = "what was measured could not be kept for the next tuning ({why}): see to the report folder"

    def text(self, **facts: object) -> str:
        return self.value.format(**facts)
