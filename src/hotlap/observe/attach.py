"""Attaching to the process a script is about to run in: the joints, the chosen techniques, and a watch if wanted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from hotlap.observe.compiling import compiled_facts
from hotlap.observe.imports import on_import
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.observe.replays import Replays
from hotlap.observe.watch import Watch

NO_GPU = "needs a GPU, and torch sees none here"


def lacks_gpu(choice: Any) -> bool:
    """Whether what it needs is not there, as far as torch, once it is imported, can tell without touching CUDA."""
    torch = sys.modules.get("torch")
    return choice.device == "cuda" and torch is not None and not torch.cuda.device_count()


class Attached:
    """What hangs on the process. Everything waits for the script's own `import torch`."""

    def __init__(self, choices: Iterable[Any], watch: Callable[[Patch], Watch] | None = None) -> None:
        self.patch = Patch(Joints())
        self.watch: Watch | None = None
        self._patches: list[tuple[Any, Patch]] = []  # each choice and what it changed
        self._choices, self._make_watch = list(choices), watch
        self._cancel = on_import("torch", self._torch_is_here)

    @property
    def applied(self) -> list[str]:
        """What took hold and was not given up since."""
        return [str(one) for one, patch in self._patches if not patch.is_withdrawn and not lacks_gpu(one)]

    @property
    def withdrawn(self) -> list[str]:
        """What was given up, each with its reason: also what a worker found to differ."""
        joints = self.patch.joints
        idle = [f"{one}: {NO_GPU}" for one, patch in self._patches if not patch.is_withdrawn and lacks_gpu(one)]
        why = joints.aside[0] if joints.aside and not joints.wrapped else ""
        round_roots = [one for one, patch in self._patches if patch.stands_round_roots and not patch.is_withdrawn]
        aside = [f"{one}: {why}" for one in round_roots if why and not lacks_gpu(one)]
        return [*joints.withdrawn, *idle, *aside, *(str(one) for one in joints.comparisons if one.failed)]

    @property
    def shown(self) -> list[str]:
        """What techniques compared on the way and found within limits, what they say, and what compiling came to."""
        joints = self.patch.joints
        compiled = [str(compiled_facts())] if any(seen.has_graphs for seen in joints.roots.found.values()) else []
        told = [f"{about}: {words}" for about, tell in joints.told if (words := tell())]
        return [*compiled, *told, *(str(one) for one in joints.comparisons if one.facts.count and not one.failed)]

    def _torch_is_here(self) -> None:
        Replays(self.patch)
        if self._make_watch is not None:
            self.watch = self._make_watch(self.patch)
        for choice in self._choices:
            own = Patch(self.patch.joints, str(choice))
            self.patch.on_undo(own.undo)
            self._patches.append((choice, own))
            try:
                choice.technique.apply(own, choice.setting)
            except Exception as error:  # a technique that breaks is withdrawn; the training goes on without it
                own.withdraw(f"{type(error).__name__}: {error}")

    def detach(self) -> None:
        self._cancel()
        self.patch.undo()
