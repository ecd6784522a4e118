"""Randomness lined up between processes: what a training draws depends on where it stands in the loop alone."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable
from typing import Any

from hotlap.observe.patch import Patch


class Lineup:
    """Seeds every generator by name. Where it is `shifted`, the script's own seeds are replaced by others."""

    def __init__(self, patch: Patch, seed: int, shifted: bool) -> None:
        import numpy
        import torch

        self._seed = seed
        self._own = (torch.manual_seed, random.seed, numpy.random.seed)  # before they are replaced for the script
        self._marked: Any = None
        self.seed("start")
        self._line_up_data(patch)
        if shifted:
            self._shift_seeds(patch)

    def seed(self, about: object) -> None:
        number = _number(self._seed, about)
        for seed in self._own:
            seed(number)

    def mark(self) -> None:
        self._marked = _fingerprints()

    @property
    def has_moved(self) -> bool:
        """Whether something was drawn from any of the global generators since the mark."""
        return self._marked is not None and self._marked != _fingerprints()

    def _line_up_data(self, patch: Patch) -> None:
        """What a data set draws depends on the items asked for alone, not on which process fetches them, and does
        not move the generators of the training loop."""
        from torch.utils.data._utils.fetch import _MapDatasetFetcher

        original: Callable[..., Any] = _MapDatasetFetcher.fetch

        def fetch(fetcher: Any, index: Any) -> Any:
            states = _all_states()
            self.seed(hashlib.blake2b(repr(index).encode(), digest_size=4).hexdigest())
            try:
                return original(fetcher, index)
            finally:
                _restore(states)

        patch.set(_MapDatasetFetcher, "fetch", fetch)

    def _shift_seeds(self, patch: Patch) -> None:
        """The script asks for a seed and gets another, always the same for the same wish. Generators of its own keep
        theirs: what they split or shuffle is usually part of the task."""
        import numpy
        import torch

        owners = ((torch, "manual_seed"), (torch.random, "manual_seed"), (random, "seed"), (numpy.random, "seed"))
        for owner, name in owners:
            patch.set(owner, name, self._shifted(getattr(owner, name)))

    def _shifted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def seed(*wish: Any, **named: Any) -> Any:
            return original(_number(self._seed, [*wish, *named.values()]))

        return seed


def _number(seed: int, about: object) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {about}".encode(), digest_size=4).digest(), "little")


def _fingerprints() -> list[int]:
    import torch

    on_host, plain, numpy = _all_states()
    on_device = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [
        *(hash(state.numpy().tobytes()) for state in (on_host, *on_device)),
        hash(plain),
        hash((numpy[1].tobytes(), numpy[2:])),
    ]


def _all_states() -> tuple[Any, ...]:
    import numpy
    import torch

    return torch.get_rng_state(), random.getstate(), numpy.random.get_state()


def _restore(states: tuple[Any, ...]) -> None:
    import numpy
    import torch

    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])
