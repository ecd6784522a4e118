"""The model's calls without gradients, recorded as CUDA graphs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hotlap.technique import CannotHelp, Family, Needs, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run


class CapturedEvaluation(Technique):
    """Tests, validation and sampling replay the model's forward with one launch, as the training does.

    ## Why it is faster
    Where a training step is held up by the host, so is every call of the model without gradients: a test after each
    epoch, a text that is sampled token by token. Once the step itself is a few launches, those are what is left of an
    epoch. A CUDA graph starts all kernels of a forward at once, and reads the weights where they lie, so that it stays
    right while they are trained.

    ## When it does not help
    Where the device is busy anyway, as with large models and batches, and in scripts that never evaluate. A call is
    recorded after four in a row were of one kind; shapes that change from call to call, as in the first tokens of a
    text, run as they are. So do calls that wait for the device, print, draw on the host, change buffers or weights,
    read tensors that are not the model's, models with hooks or in training mode, and calls under `torch.compile`. Each
    kind, four at most, keeps the memory of one forward.

    No step shows what it saves: `tune` times whole epochs for it, where they are short enough with the rest of the
    plan. Where they are not, it comes with `captured-pass` and `captured-model`: a trial has shown then that launches
    are what the script waits for.

    ## What changes numerically
    The same kernels in the same order. The first two replays of each recording are held against the plain call, outputs
    and random numbers alike; beyond rounding it ends for good, and the script has got its own.

    ## Claims
    None of the lists has it; they say `torch.no_grad()` and `model.eval()`, which this needs. On one H200, with the
    tests of pytorch-cifar's ResNet18 kept on the device as well, an epoch went from 1.66 to 1.41 s and in another
    tuning from 2.19 to 1.90 s, by single trials; a test of 100 batches then took 0.18 to 0.23 s, 0.06 s of them spent
    waiting for the device.
    """

    family = Family.COMPUTE
    needs = Needs(device="cuda")
    aliases = ("evaluation graph", "cuda graph inference", "generate", "validation")
    between_steps = True
    comes_with = frozenset({"captured pass", "recorded calls"})

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        aside = next((root.stands_aside for root in run.roots if root.stands_aside), None)
        return CannotHelp(aside) if aside else [Try({}, 0.0)]

    def apply(self, patch: Patch, setting: Setting) -> None:
        from hotlap.observe.slot import kept_with
        from hotlap.parts import captured_evaluation
        from hotlap.parts.replay_proof import LIMIT

        captured = weakref.WeakSet[captured_evaluation.CapturedEvaluation]()
        proof = patch.compare("what recorded evaluations give, relative to plain ones", LIMIT)

        def call(proceed: Any, root: Any, args: Any, kwargs: Any) -> Any:
            if root.training or patch.joints.roots.is_looking:
                return proceed(root, args, kwargs)
            kept = kept_with(root)
            if patch not in kept:
                kept[patch] = captured_evaluation.CapturedEvaluation(proof=proof)
                captured.add(kept[patch])
            own: captured_evaluation.CapturedEvaluation = kept[patch]
            return own.call(root, args, kwargs, proceed)

        def close() -> None:
            for own in list(captured):
                own.close()

        patch.at(patch.joints.root_called, call, depth=6)  # autocast and layouts go round it
        patch.on_undo(close)
