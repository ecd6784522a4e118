"""Blocks of steps in turns, within one process: batches as the script draws them, and one batch that already lies on
the device, handed out again and again. What is between the two is all that data costs a step.

Copied as `sitecustomize.py` into a folder on PYTHONPATH, beside bench/step_clock.py, whose hook it uses; imports
neither hotlap nor torch of its own accord. The order is A B B A; the device is waited for between blocks and nowhere
else. The first steps of a block are not timed: queues that filled up while nothing was drawn would flatter it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from step_clock import AfterOptimizers, Marks, run_the_next

ORDER = "HOTLAP_FROZEN_BATCHES"  # path, warmup_steps, block_steps, untimed_steps, turns; as JSON
PATTERN = (False, True, True, False)  # whether the batch is frozen


class Turns:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.steps = -1 * order["warmup_steps"]
        self.is_frozen = False
        self.blocks: list[tuple[bool, list[float]]] = []  # whether frozen, and the seconds of each step
        self.drawn = self.handed_again = 0
        self._marks: Marks | None = None  # while a block is timed
        self._is_attached = False

    def updated(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """torch calls this after every update. Two optimizers make two steps of one, in both kinds of blocks."""
        self.steps += 1
        if self.steps < 0:
            return
        within = self.steps % self.order["block_steps"]
        if within == self.order["untimed_steps"]:
            self._marks = Marks()
        if self._marks is not None:
            self._marks.take()
        if within == 0:
            if self.steps:
                self._close()
            self.is_frozen = PATTERN[len(self.blocks) % len(PATTERN)]

    def attach(self) -> None:
        """When the first optimizer is there, so is whoever else stands at a loader, and the script has not begun to
        draw: what is put there now is what the script sees."""
        if self._is_attached:
            return
        self._is_attached = True
        loader: Any = sys.modules["torch"].utils.data.DataLoader
        begun, turns = loader.__iter__, self

        def __iter__(loader: Any) -> Drawn:
            return Drawn(begun(loader), turns)

        loader.__iter__ = __iter__

    def _close(self) -> None:
        assert self._marks is not None
        self.blocks.append((self.is_frozen, self._marks.between()))
        self._marks = None
        if len(self.blocks) == self.order["turns"] * len(PATTERN):
            found = {"blocks": self.blocks, "drawn": self.drawn, "handed_again": self.handed_again}
            with open(self.order["path"] + ".part", "w") as file:
                json.dump(found, file)
            os.replace(self.order["path"] + ".part", self.order["path"])
            raise SystemExit(0)


class Drawn:
    """An iterator of a loader as the script sees it. Frozen only where it feeds the training: a test, in which no
    weight is updated, would never come to its end."""

    def __init__(self, iterator: Any, turns: Turns) -> None:
        self._iterator, self._turns = iterator, turns
        self._steps: int | None = None  # when it was last drawn from
        self._kept: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def __next__(self) -> Any:
        turns = self._turns
        trains, self._steps = self._steps is not None and turns.steps > self._steps, turns.steps
        if not turns.is_frozen or not trains:
            self._kept = None
            turns.drawn += 1
            return next(self._iterator)
        if self._kept is None:
            turns.drawn += 1
            self._kept = _on_device(next(self._iterator))
        turns.handed_again += 1
        return self._kept


def _on_device(batch: Any) -> Any:
    torch = sys.modules["torch"]
    device = "cuda" if torch.cuda.is_initialized() else "cpu"

    def moved(leaf: Any) -> Any:
        return leaf.to(device).clone() if isinstance(leaf, torch.Tensor) else leaf

    return torch.utils._pytree.tree_map(moved, batch)


if __name__ == "sitecustomize":
    run_the_next(__file__)
    if ORDER in os.environ:
        TURNS = Turns(json.loads(os.environ[ORDER]))

        def behind(module: Any) -> None:
            made = module.Optimizer.__init__

            def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
                made(optimizer, *args, **kwargs)
                TURNS.attach()

            module.Optimizer.__init__ = __init__
            module.register_optimizer_step_post_hook(TURNS.updated)

        sys.meta_path.insert(0, AfterOptimizers(behind))
