"""The random generators a data set draws from: the global ones, whose states can be put back, and those of its own."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

_DRAWS = re.compile("Random|RandAugment|ColorJitter|AutoAugment|TrivialAugment|AugMix")  # transforms, by their names


def generator_states() -> tuple[Any, ...]:
    """Of torch, `random` and NumPy, as plain data."""
    import torch

    numpy = sys.modules.get("numpy")
    return (
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        numpy.random.get_state(legacy=False) if numpy is not None else None,
    )


def put_back(states: tuple[Any, ...]) -> None:
    import torch

    torch.set_rng_state(torch.frombuffer(bytearray(states[0]), dtype=torch.uint8))
    random.setstate(states[1])
    if states[2] is not None:
        import numpy

        numpy.random.set_state(states[2])


def has_private_generator(dataset: Any, depth: int = 3) -> bool:
    """Whether the data set, or something it holds, draws from a generator that nobody else would reseed or put back."""
    import torch

    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    held = _held(dataset)
    if any(isinstance(value, kinds) for value in (*held, *_named_in_class(type(dataset)))):
        return True
    return depth > 0 and any(has_private_generator(value, depth - 1) for value in held if _may_hold(value))


def has_random_transform(dataset: Any, depth: int = 3) -> bool:
    """Whether it surely draws at random, told without a draw: what workers do to their generators nobody watches."""
    if "torchvision" not in sys.modules:
        return False
    held = _held(dataset)
    if any(type(value).__module__.startswith("torchvision.") and _DRAWS.match(type(value).__name__) for value in held):
        return True
    return depth > 0 and any(has_random_transform(value, depth - 1) for value in held if _may_hold(value))


def _held(thing: Any) -> list[Any]:
    held = list(getattr(thing, "__dict__", {}).values())
    for value in list(held):
        if isinstance(value, (list, tuple, dict)) and len(value) <= 32:
            held.extend(value.values() if isinstance(value, dict) else value)
    return held


def _may_hold(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType, sys.modules["torch"].Tensor))


def _named_in_class(kind: type) -> Iterator[Any]:
    """What a class of the script's own holds itself, and the globals that its methods speak of."""
    for owner in kind.__mro__:
        if owner.__module__.split(".")[0] in ("builtins", "torch", "torchvision"):
            continue
        for value in vars(owner).values():
            yield value
            if isinstance(value, FunctionType):
                yield from (value.__globals__.get(name) for name in value.__code__.co_names)
