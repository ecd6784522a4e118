"""Blocks of steps in turns, within one process: batches as the script draws them, and some that already lie on the
device, handed out again and again. What is between the two is all that data costs a step.

Copied as `sitecustomize.py` into a folder on PYTHONPATH, beside bench/step_clock.py, whose hook it uses; imports
neither hotlap nor torch of its own accord. The order is A B B A; the device is waited for between blocks and nowhere
else. The first steps of a block are not timed: queues that filled up while nothing was drawn would flatter it. Those of
a frozen block draw what is handed out later: a network that sees one batch only learns it by heart, and a chip computes
faster on the small gradients that are left."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from step_clock import AfterOptimizers, Marks, run_the_next

ORDER = "HOTLAP_FROZEN_BATCHES"  # path, warmup_steps, block_steps, untimed_steps, turns; as JSON
PATTERN = (False, True, True, False)  # whether the batches are frozen
_KEPT_BYTES = 2 << 30  # on the device


class Turns:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.steps = -1 * order["warmup_steps"]
        self.is_frozen = False
        self.blocks: list[tuple[bool, list[float]]] = []  # whether frozen, and the seconds of each step
        self.drawn = self.handed_again = 0
        self.next_seconds: list[float] = []  # of the host, in each timed step that draws
        self.waited_seconds: list[float] = []  # of those, how many its thread had no work, or no leave to do it
        self.kept: dict[int, list[Any]] = {}  # batches of each loader
        self._marks: Marks | None = None  # while a block is timed
        self._is_attached = False

    @property
    def is_timed(self) -> bool:
        return self._marks is not None

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
            if not self.is_frozen:
                self.kept.clear()

    def attach(self) -> None:
        """When the first optimizer is there, so is whoever else stands at a loader, and the script has not begun to
        draw: what is put there now is what the script sees."""
        if self._is_attached:
            return
        self._is_attached = True
        loader: Any = sys.modules["torch"].utils.data.DataLoader
        begun, turns = loader.__iter__, self

        def __iter__(loader: Any) -> Drawn:
            return Drawn(begun(loader), turns, id(loader))

        loader.__iter__ = __iter__

    def _close(self) -> None:
        assert self._marks is not None
        self.blocks.append((self.is_frozen, self._marks.between()))
        self._marks = None
        if len(self.blocks) == self.order["turns"] * len(PATTERN):
            found: dict[str, Any] = {"blocks": self.blocks, "drawn": self.drawn, "handed_again": self.handed_again}
            found |= {"next_seconds": self.next_seconds, "waited_seconds": self.waited_seconds}
            with open(self.order["path"] + ".part", "w") as file:
                json.dump(found, file)
            os.replace(self.order["path"] + ".part", self.order["path"])
            raise SystemExit(0)


class Drawn:
    """An iterator of a loader as the script sees it. Frozen only where it feeds the training: a test, in which no
    weight is updated, would never come to its end."""

    def __init__(self, iterator: Any, turns: Turns, loader: int) -> None:
        self._iterator, self._turns, self._loader = iterator, turns, loader
        self._steps: int | None = None  # when it was last drawn from

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
            return self._drawn()
        kept = turns.kept.setdefault(self._loader, [])
        if not kept or (not turns.is_timed and (len(kept) + 1) * _bytes_of(kept[0]) <= _KEPT_BYTES):
            kept.append(_on_device(self._drawn()))
            return kept[-1]
        turns.handed_again += 1
        return kept[turns.handed_again % len(kept)]

    def _drawn(self) -> Any:
        turns, began, began_work = self._turns, time.perf_counter(), time.thread_time()
        batch = next(self._iterator)
        worked, took = time.thread_time() - began_work, time.perf_counter() - began
        turns.drawn += 1
        if turns.is_timed and not turns.is_frozen:
            turns.next_seconds.append(took)
            turns.waited_seconds.append(max(0.0, took - worked))
        return batch


def _on_device(batch: Any) -> Any:
    torch = sys.modules["torch"]
    device = "cuda" if torch.cuda.is_initialized() else "cpu"

    def moved(leaf: Any) -> Any:
        return leaf.to(device).clone() if isinstance(leaf, torch.Tensor) else leaf

    return torch.utils._pytree.tree_map(moved, batch)


def _bytes_of(batch: Any) -> int:
    torch = sys.modules["torch"]
    leaves = torch.utils._pytree.tree_leaves(batch)
    return sum(one.numel() * one.element_size() for one in leaves if isinstance(one, torch.Tensor))


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
