"""Fingerprints of batches: exact, and for pixels that were made another way, as a sketch with room for rounding."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

_VALUES = 1024  # means of each tensor of floats, evenly spread
_RUN = 31  # numbers that each is of: short, and no row's length, since one that is mirrored has the same mean
_LARGEST = 64 << 20  # elements of a batch that is kept whole


def fingerprint(batch: Any) -> str:
    """Hash of every tensor in a batch, whatever its structure, device and memory layout."""
    return _digest(batch, with_floats=True)


def sketch(batch: Any) -> list[Any]:
    """A hash of all that must be equal (labels, shapes, types), and what may differ by rounding as means of neighbours:
    a single pixel at the edge of a colour can be far off where two decoders agree on every picture."""
    import torch

    values: list[float] = []
    for leaf in _floats(batch):
        flat = leaf.detach().reshape(-1)
        if len(flat):
            number = min(_VALUES, len(flat))
            run = min(_RUN, len(flat) // number)
            starts = torch.arange(number, device=flat.device) * (len(flat) - run) // max(number - 1, 1)
            means = flat.unfold(0, run, 1)[starts].float().mean(1)
            values += [float(f"{value:.5g}") for value in means.tolist()]
    return [_digest(batch, with_floats=False), values]


def distance(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Between two sketches: the root mean square difference as a share of the values' own spread."""
    (frame, mine), (other_frame, other) = ours, theirs
    if frame != other_frame or len(mine) != len(other):
        return math.inf
    if not mine:
        return 0.0
    mean = math.fsum(mine) / len(mine)
    spread = math.fsum((value - mean) ** 2 for value in mine)
    apart = math.fsum((a - b) ** 2 for a, b in zip(mine, other, strict=True))
    return math.sqrt(apart / spread) if spread else (0.0 if not apart else math.inf)


def kept(batch: Any) -> list[Any] | None:
    """The floats of a batch, to be handed to another process; None where that would be too much."""
    floats = _floats(batch)
    if sum(leaf.numel() for leaf in floats) > _LARGEST:
        return None
    return [leaf.detach().cpu().clone() for leaf in floats]


def with_floats_of(batch: Any, floats: Sequence[Any] | None) -> Any:
    """The same batch with another's floats in it, on its own devices: so that only what follows is compared."""
    from torch.utils._pytree import tree_map

    if floats is None or [leaf.shape for leaf in _floats(batch)] != [leaf.shape for leaf in floats]:
        return batch
    rest = iter(floats)
    return tree_map(lambda leaf: next(rest).to(leaf.device, leaf.dtype) if _is_float(leaf) else leaf, batch)


def _floats(batch: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(batch) if _is_float(leaf)]


def _is_float(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _digest(batch: Any, with_floats: bool) -> str:
    import torch
    from torch.utils._pytree import tree_leaves

    digest = hashlib.blake2b(digest_size=8)
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            if leaf.numel() and (with_floats or not leaf.is_floating_point()):
                plain = leaf.detach().cpu().contiguous()
                digest.update(plain.view(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(leaf).encode() if isinstance(leaf, (int, float, str, bool)) else b"?")
    return digest.hexdigest()
