"""What the script trains with: its loaders, optimizers and roots, each with how often it was used.

Nothing of the script's is kept alive: what its objects are is written down now and then, and the latest word counts
once they are gone."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from hotlap.observe.facts import elements, optimizer_facts, root_facts
from hotlap.observe.loaders import Loaders
from hotlap.observe.met import Met

if TYPE_CHECKING:
    from hotlap.observe.roots import RootFinder
    from hotlap.observe.run import LoaderFacts


class Inventory:
    def __init__(self, finder: RootFinder) -> None:
        self._finder = finder
        self.loaders = Loaders()
        self.uses: Counter[int] = Counter()  # draws, updates, calls
        self.closures: set[int] = set()  # optimizers that compute the loss themselves
        self.device = "cpu"  # where the weights live
        self._optimizers, self._roots = Met(), Met()
        self._weight_bytes = 0

    def add_optimizer(self, optimizer: Any) -> None:
        self._optimizers.add(id(optimizer), optimizer)

    def add_root(self, root: Any) -> None:
        self._roots.add(id(root), root)

    @property
    def optimizers(self) -> list[Any]:
        """Those that live."""
        return [optimizer for _, optimizer in self._optimizers.alive()]

    @property
    def roots(self) -> list[Any]:
        return [root for _, root in self._roots.alive()]

    def refresh(self) -> None:
        """Write down what they are, while they live."""
        self.loaders.refresh()
        self._optimizers.refresh(optimizer_facts)
        self._roots.refresh(lambda root: root_facts(root, self._finder))
        owned = [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        weights = {id(p): p for p in owned or [p for root in self.roots for p in root.parameters()]}
        if weights:
            self.device = next(p.device.type for p in weights.values())
            self._weight_bytes = sum(elements(p) * p.element_size() for p in weights.values())

    def loader_facts(self) -> dict[int, LoaderFacts]:
        return self.loaders.facts(self.uses)

    def facts(self) -> dict[str, Any]:
        """All but the loaders, by the names that a run's record has for them."""
        optimizers, roots = self._optimizers.facts.items(), self._roots.facts.items()
        return {
            "device": self.device,
            "parameter_bytes": self._weight_bytes,
            "optimizers": [
                dataclasses.replace(one, updates=self.uses[key], closure=key in self.closures)
                for key, one in optimizers
            ],
            "roots": [dataclasses.replace(one, calls=self.uses[key]) for key, one in roots],
        }
