"""The two kinds of joint: who takes part in one, in which order, and that it is attached only while somebody does.

An `Around` joint stands round a call: a subscriber gets `proceed` first and may change what goes in and comes out.
A `Notice` only tells. Nothing is attached while nobody subscribes, and the last one to leave detaches it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hotlap.observe.patch import Patch

if TYPE_CHECKING:
    from hotlap.observe.joints import Joints


class _Joint:
    def __init__(self, attach: Callable[[Patch], None], joints: Joints) -> None:
        self._attach, self._joints = attach, joints
        self._subscribers: list[tuple[int, Callable[..., Any]]] = []
        self._blind: list[Callable[..., Any]] = []  # watching, but nothing that was replayed
        self._attached: Patch | None = None
        self._changed()

    def subscribe(self, subscriber: Callable[..., Any], depth: int = 0, sees_replays: bool = True) -> None:
        self._subscribers.append((depth, subscriber))
        self._blind += [] if sees_replays else [subscriber]
        self._subscribers.sort(key=lambda pair: -pair[0])  # deepest first; sort is stable
        self._changed()
        if self._attached is None:
            self._attached = Patch(self._joints)
            self._attach(self._attached)

    def unsubscribe(self, subscriber: Callable[..., Any]) -> None:
        self._subscribers = [pair for pair in self._subscribers if pair[1] != subscriber]
        self._blind = [one for one in self._blind if one != subscriber]
        self._changed()
        if not self._subscribers and self._attached is not None:
            self._attached.undo()
            self._attached = None

    def _changed(self) -> None: ...


class Notice(_Joint):
    def __call__(self, *args: Any) -> None:
        for _, subscriber in self._subscribers:
            subscriber(*args)


class Around(_Joint):
    """`through(original, *args)` runs the original inside all subscribers. Those who only watch have a depth below
    zero: they do not see what is only recorded, and `told` lets them alone see what was replayed."""

    changes = 0  # of those who take part, not of those who watch
    is_recorded = False
    _techniques: Sequence[tuple[int, Callable[..., Any]]] = ()

    def _changed(self) -> None:
        self._chains: dict[Any, Callable[..., Any]] = {}
        self._told: dict[Any, Callable[..., Any]] = {}
        techniques = [pair for pair in self._subscribers if pair[0] >= 0]
        self.changes += techniques != list(self._techniques)
        self._techniques = techniques
        self._watching = [pair for pair in self._subscribers if pair[0] < 0 and pair[1] not in self._blind]
        self.is_watched = bool(self._watching)

    @property
    def has_techniques(self) -> bool:
        return bool(self._techniques)

    def through(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.is_recorded:
            return _chain(original, self._techniques)(*args, **kwargs)
        chain = self._chains.get(original)
        if chain is None:
            chain = self._chains[original] = _chain(original, self._subscribers)
        return chain(*args, **kwargs)

    def told(self, original: Callable[..., Any], *args: Any) -> Any:
        chain = self._told.get(original)
        if chain is None:
            chain = self._told[original] = _chain(original, self._watching)
        return chain(*args)


def _chain(original: Callable[..., Any], subscribers: Sequence[tuple[int, Callable[..., Any]]]) -> Callable[..., Any]:
    for _, subscriber in subscribers:
        original = functools.partial(subscriber, original)
    return original
