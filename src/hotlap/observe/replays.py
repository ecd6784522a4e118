"""Passes that are recorded and replayed, as the joints see them. Torch tells nobody of a replay, so that whoever
watches the loop is told here; and what only happens for a recording is nobody's to see."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hotlap.observe.comparison import Comparison
from hotlap.observe.imports import on_import
from hotlap.observe.patch import Patch

if TYPE_CHECKING:
    from hotlap.observe.joints import Joints

_PART = "hotlap.parts.recorded_pass"
_WHAT = "replayed passes, loss and gradients"


class Replays:
    """Stands where the part looks for listeners. A replay counts as the call of the first root, since it is known only
    as a whole; its loss is known once it was played."""

    def __init__(self, patch: Patch) -> None:
        self._joints: Joints = patch.joints
        self._comparison: Comparison | None = None
        self._play: Callable[[], Any] | None = None
        patch.on_undo(on_import(_PART, lambda: patch.set(sys.modules[_PART], "listeners", self)))

    @property
    def changes(self) -> int:
        return self._joints.root_called.changes + self._joints.loss_known.changes

    @property
    def are_there(self) -> bool:
        return self._joints.root_called.is_watched or self._joints.loss_known.is_watched

    @property
    def why_not(self) -> str:
        return "another technique takes part in backward" if self._joints.loss_known.has_techniques else ""

    @contextmanager
    def recording(self) -> Iterator[None]:
        around = (self._joints.root_called, self._joints.method_called, self._joints.loss_known)
        for joint in around:
            joint.is_recorded = True
        try:
            yield
        finally:
            for joint in around:
                joint.is_recorded = False

    def played(self, play: Callable[[], Any], inputs: Sequence[Any]) -> None:
        joints, root = self._joints, next(iter(self._joints.roots.found), None)
        self._play = play
        loss = play() if root is None else joints.root_called.told(self._call, root, tuple(inputs), {})
        self._play = None
        joints.loss_known.told(_nothing, loss)

    def _call(self, root: Any, args: Any, kwargs: Any) -> Any:
        assert self._play is not None
        return self._play()

    def compared(self, difference: float, limit: float) -> None:
        if self._comparison is None:
            self._comparison = Comparison(_WHAT, limit, 16)
            self._joints.comparisons.append(self._comparison)
        self._comparison.add(difference)

    def refused(self, reason: str) -> None:
        if self._comparison is None or not self._comparison.failed:  # which is told as a withdrawal by itself
            self._joints.withdrawn.append(f"the recorded pass: {reason}")


def _nothing(tensors: Any) -> None: ...
