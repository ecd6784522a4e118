"""Attaching to the process a script is about to run in: the joints, the chosen techniques, and a watch if wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hotlap.observe.compiling import compiled_facts
from hotlap.observe.imports import on_import
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.observe.replays import Replays
from hotlap.observe.watch import Watch


class Attached:
    """What hangs on the process. Everything waits for the script's own `import torch`."""

    def __init__(self, choices: Iterable[Any], watch: Callable[[Patch], Watch] | None = None) -> None:
        self.patch = Patch(Joints())
        self.watch: Watch | None = None
        self.applied: list[str] = []
        self._choices, self._make_watch = list(choices), watch
        self._cancel = on_import("torch", self._torch_is_here)

    @property
    def withdrawn(self) -> list[str]:
        """What was given up, each with its reason: also what a worker found to differ."""
        joints = self.patch.joints
        return [*joints.withdrawn, *(str(one) for one in joints.comparisons if one.failed)]

    @property
    def shown(self) -> list[str]:
        """What techniques compared on the way and found within limits, and what compiling came to."""
        joints = self.patch.joints
        compiled = [str(compiled_facts())] if any(seen.has_graphs for seen in joints.roots.found.values()) else []
        return [*compiled, *(str(one) for one in joints.comparisons if one.facts.count and not one.failed)]

    def _torch_is_here(self) -> None:
        Replays(self.patch)
        if self._make_watch is not None:
            self.watch = self._make_watch(self.patch)
        for choice in self._choices:
            own = Patch(self.patch.joints, str(choice))
            self.patch.on_undo(own.undo)
            try:
                choice.technique.apply(own, choice.setting)
                self.applied.append(str(choice))
            except Exception as error:  # a technique that breaks is withdrawn; the training goes on without it
                own.withdraw(f"{type(error).__name__}: {error}")

    def detach(self) -> None:
        self._cancel()
        self.patch.undo()
