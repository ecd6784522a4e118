"""The undo stack: every change to the process goes through a Patch, which undoes them in reverse."""

from __future__ import annotations

import inspect
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from hotlap.observe.comparison import Comparison

if TYPE_CHECKING:
    from hotlap.observe.joints import Joints

_ABSENT = object()


class Patch:
    """Records old values as it sets new ones. `joints` is where techniques meet the training loop."""

    def __init__(self, joints: Joints, about: str = "") -> None:
        self.joints, self._about = joints, about
        self.is_withdrawn = self.stands_round_roots = False
        self._undo: list[Callable[[], object]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute. What an owner only inherits, from a base or its class, is inherited again after undo."""
        if isinstance(owner, type):
            old = vars(owner).get(name, _ABSENT)
        else:
            on_class = inspect.getattr_static(type(owner), name, _ABSENT)  # a property itself, not its value
            is_inherited = on_class is not _ABSENT and not hasattr(on_class, "__set__")
            is_own = name in getattr(owner, "__dict__", {})
            old = _ABSENT if is_inherited and not is_own else getattr(owner, name, _ABSENT)
        setattr(owner, name, value)
        self._undo.append(lambda: delattr(owner, name) if old is _ABSENT else setattr(owner, name, old))

    def item(self, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        old = mapping.get(key, _ABSENT)
        mapping[key] = value
        self._undo.append(lambda: mapping.pop(key, None) if old is _ABSENT else mapping.__setitem__(key, old))

    def hold(self, handle: Any) -> None:
        """Keep a handle of torch's (hooks and the like) and remove it on undo."""
        self._undo.append(handle.remove)

    def on_undo(self, action: Callable[[], object]) -> None:
        self._undo.append(action)

    def at(
        self, joint: Any, subscriber: Callable[..., Any], depth: int = 0, sees_replays: bool = True
    ) -> Callable[[], None]:
        """Take part in a joint; see `joints` for what each one passes. Deeper subscribers sit nearer to torch. Gives
        the way out before undo. Who sees replays is told of each, which takes as long as the replay."""
        joint.subscribe(subscriber, depth, sees_replays)
        self.stands_round_roots |= joint is self.joints.root_called

        def leave() -> None:
            joint.unsubscribe(subscriber)

        self._undo.append(leave)
        return leave

    def withdraw(self, reason: str) -> None:
        """What this patch was made for does not work here: it is undone, the run goes on, and the reason is told."""
        self.joints.withdrawn.append(f"{self._about}: {reason}")
        self.is_withdrawn = True
        self.undo()

    def tell(self, words: Callable[[], str]) -> None:
        """What a run is to say at its end, where there is something to say by then."""
        self.joints.told.append((self._about, words))

    def compare(self, what: str, limit: float, first: int = 16) -> Comparison:
        """Hold the first things a swap makes against the script's own; the figure stands in every report of the plan,
        and one beyond the limit is told as a withdrawal. The swap asks `failed` each time, and then stands aside."""
        comparison = Comparison(f"{self._about}: {what}", limit, first)
        self.joints.comparisons.append(comparison)
        return comparison

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()
