"""Loaders that are built from the settings of another one, as trainers do when they take over a script's, copied or
saved: what was changed of those by then is no choice of the script's."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from hotlap.parts.worker_room import DEPTH

SETTINGS = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "multiprocessing_context")
_HELD_AS = {"multiprocessing_context": "_DataLoader__multiprocessing_context"}


class RebuiltLoaders:
    def __init__(self) -> None:
        self._changed: weakref.WeakKeyDictionary[Any, dict[str, tuple[Any, Any]]] = weakref.WeakKeyDictionary()

    def through(self, go_on: Callable[..., None], build: Callable[..., None], loader: Any, bound: Any) -> None:
        """Stands before all others who see a loader being built."""
        chosen = bound.arguments
        for name, (own, given) in self._copied_from(chosen).items():
            if chosen[name] == given:
                chosen[name] = own
        before = {name: chosen[name] for name in SETTINGS}
        go_on(build, loader, bound)
        changed = {name: (own, chosen[name]) for name, own in before.items() if chosen[name] != own}
        if changed:
            self._changed[loader] = changed

    def reduced(self, original: Callable[[Any, Any], Any], loader: Any, protocol: Any) -> Any:
        """For copies and pickles: as the script made it, and without the iterator that lives on with its workers, which
        torch refuses to copy."""
        made = original(loader, protocol)
        own = {_HELD_AS.get(name, name): own for name, (own, _) in self._changed.get(loader, {}).items()}
        state = made[2] if isinstance(made, tuple) and len(made) > 2 else None
        if not own or not isinstance(state, dict):
            return made
        state = state | own
        state["prefetch_factor"] = (state.get("prefetch_factor") or DEPTH) if state.get("num_workers") else None
        if own.get("persistent_workers") is False:
            state["_iterator"] = None
        return (*made[:2], state, *made[3:])

    def _copied_from(self, chosen: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
        """What was changed of the loader that hands on its sampler to this one."""
        for other, changed in list(self._changed.items()):
            for name in ("batch_sampler", "sampler"):
                if chosen[name] is not None and getattr(other, name, None) is chosen[name]:
                    return changed
        return {}
