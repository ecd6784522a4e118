"""Where a data set holds transforms that can be run in batches."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from hotlap.parts.generators import has_private_generator
from hotlap.parts.known_transforms import flat

_DEPTH = 4  # data sets inside data sets
_INSIDE = ("dataset", "datasets")  # where torch's own wrappers hold them


class Site(NamedTuple):
    """A transform found in a data set, or in one inside it."""

    owner: Any
    name: str
    held: Any  # under that name
    transform: Any  # the same, or what a pair for images and targets has for images
    pipeline: Any


def sites_of(dataset: Any) -> list[Site]:
    """The recognised transforms of a data set."""
    return _looked_for(dataset)[0]


def _looked_for(dataset: Any) -> tuple[list[Site], str]:
    """With the reason where there is none."""
    from hotlap.parts.batched_transforms import recognised

    found, reason = [], "its data set holds no transform"
    for owner in owners_of(dataset):
        for name, value in list(vars(owner).items()):
            if not callable(value) or isinstance(value, type) or name == "target_transform" or name in _INSIDE:
                continue
            inner = value.transform if _is_joint(value) else value
            pipeline = recognised(inner) if inner is not None else "it has none"
            if not isinstance(pipeline, str):
                found.append(Site(owner, name, value, inner, pipeline))
            elif "transform" in name and inner is not None:
                reason = pipeline
    return found, reason


def owners_of(dataset: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """A data set and those inside it."""
    held = getattr(dataset, "__dict__", None)
    if not isinstance(held, dict) or isinstance(dataset, torch.nn.Module):
        return
    yield dataset
    inside = [held.get(name) for name in _INSIDE]
    for one in (*inside[:1], *(inside[1] if isinstance(inside[1], (list, tuple)) else ())):
        if depth and hasattr(one, "__getitem__"):
            yield from owners_of(one, depth - 1)


def _is_joint(transform: Any) -> bool:
    """torchvision's pair of a transform for images and one for targets."""
    return type(transform).__name__ == "StandardTransform" and hasattr(transform, "target_transform")


def why_not(loader: Any) -> str | None:
    """What rules a loader out before a sample is read."""
    if isinstance(loader.dataset, IterableDataset):
        return "its data set is iterable"
    if loader.collate_fn is not default_collate or loader.batch_sampler is None:
        return "it collates in a way of its own"
    if type(loader)._get_iterator is not DataLoader._get_iterator:
        return "it is iterated in a way of its own"
    if not getattr(loader, "in_order", True):
        return "its batches come in any order"
    try:
        sites, reason = _looked_for(loader.dataset)
    except Exception as error:  # attributes of the script's own classes are its own affair
        return f"its transforms cannot be read: {type(error).__name__}"
    if sites and has_private_generator(loader.dataset):  # some samples are read twice
        return "its data set owns a random generator"
    return None if sites else reason


def mark(sites: Sequence[Site]) -> bytes:
    """Changes when one of the transforms is replaced, or set to something else."""
    content = [(site.name, *map(_setting, flat(site.transform))) for site in sites]
    return hashlib.blake2b(repr(content).encode(), digest_size=16).digest()


def _setting(transform: Any) -> bytes | int:
    try:
        return pickle.dumps(transform)
    except Exception:  # a lambda: told apart by where it lies
        return id(transform)
