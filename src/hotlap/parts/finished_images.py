"""What was deferred, done: images decoded and transformed in a batch, and the first of them held against the script's
own."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from hotlap.parts.deferred_samples import ON_TRIAL, PROVEN_A_BATCH, REFUSED, TRUSTED, Packed, Proof
from hotlap.parts.device_jpeg import by_pillow, decode_all
from hotlap.parts.early_copies import pinned

_BRIGHTNESS, _COLOURS, _SHIFT = 1.5, 8.0, 1.0  # levels of 255 that decoders may differ by; see `_apart`
_SPREAD = 32.0  # levels that the images of a batch spread over, at least


class Judge(Protocol):
    """Who hears how far the first samples are from the script's own, 1 being what is allowed, and may end it all."""

    @property
    def failed(self) -> bool: ...
    def add(self, difference: float) -> None: ...


class Finished(NamedTuple):
    """A batch on the device, and the images it was made from."""

    packed: Packed
    images: list[torch.Tensor]
    batch: torch.Tensor


def finished(packed: Packed, pipelines: Sequence[Any], device: torch.device) -> Finished:
    """What the script's own transforms would have made of these images."""
    pixels = packed.pixels
    if device.type == "cuda" and len(pixels):
        pixels = pinned(pixels).to(device, non_blocking=True)
    decoded = iter(packed.decoded(pixels))
    encoded = iter(decode_all(packed.encoded(), device)) if packed.lengths else iter(())
    images = [next(encoded) if shape is None else next(decoded) for shape in packed.shapes]
    return Finished(packed, images, _transformed(images, packed.sites, packed.recipes, pipelines, device))


def _transformed(
    images: Sequence[torch.Tensor], sites: Sequence[int], recipes: Sequence[Any], pipelines: Sequence[Any],
    device: torch.device,
) -> torch.Tensor:  # fmt: skip
    """Each image by the transform of its own site, one batch for each of them."""
    parts, places = [], []
    for site in sorted(set(sites)):
        mine = [place for place, one in enumerate(sites) if one == site]
        parts.append(pipelines[site].run([images[place] for place in mine], [recipes[place] for place in mine], device))
        places += mine
    if len(parts) == 1:
        whole: torch.Tensor = parts[0]
        return whole
    return torch.cat(parts)[torch.tensor(places, device="cpu").argsort().to(device)]


class Trial:
    """One kind of batch: the same transforms of the same kind of data set. Workers look at the verdict for every batch:
    while it is open they make some samples both ways, and once it is refused they make all as ever."""

    def __init__(self, pipelines: Sequence[Any], judge: Judge) -> None:
        self.pipelines = copy.deepcopy(list(pipelines))  # workers that live on keep the transforms they began with
        self._judge = judge
        self.verdict = torch.tensor([ON_TRIAL], dtype=torch.uint8, device="cpu").share_memory_()
        self._proven = 0

    @property
    def is_refused(self) -> bool:
        return int(self.verdict) == REFUSED or self._judge.failed

    def refuse(self) -> None:
        self.verdict.fill_(REFUSED)

    def hear(self, proofs: Sequence[Proof], made: Sequence[Finished]) -> None:
        """Proofs of a batch, on the stream that made it."""
        if int(self.verdict) != ON_TRIAL or not proofs:
            return
        for share in self._shares(proofs, made):
            self._judge.add(share)
            self._proven += 1
        if self._judge.failed:
            self.refuse()
        elif self._proven >= PROVEN_A_BATCH:
            self.verdict.fill_(TRUSTED)

    def _shares(self, proofs: Sequence[Proof], made: Sequence[Finished]) -> list[float]:
        """How far each sample is from the script's own, of what is allowed: the worst of the images in it."""
        if not all(proof.is_like and len(proof.images) == len(made) for proof in proofs):
            return [math.inf]
        places = [proof.place for proof in proofs]
        shares = [self._of(one, places, [proof.images[at] for proof in proofs]) for at, one in enumerate(made)]
        return [max(share) for share in zip(*shares, strict=True)]

    def _of(self, one: Finished, places: Sequence[int], owns: Sequence[Any]) -> list[float]:
        """Transforms are held to their own tolerance, on the very pixels the script had; decoders to theirs; and what
        came out in the batch to both."""
        device, spread = one.batch.device, float(one.batch.double().std()) or 1.0
        files = [one.packed.file(place) for place in places]
        decoded = [one.images[place] for place in places]
        pixels = [own if file is None else by_pillow(file) for own, file in zip(decoded, files, strict=True)]
        sites, recipes = ([have[place] for place in places] for have in (one.packed.sites, one.packed.recipes))
        exact = _transformed([image.to(device) for image in pixels], sites, recipes, self.pipelines, device)
        shares = []
        for at, (place, own) in enumerate(zip(places, owns, strict=True)):
            tolerance = spread * max(float(self.pipelines[sites[at]].tolerance), 1e-6)
            whole = _distance(one.batch[place], own) / (tolerance + spread * _COLOURS / _SPREAD)
            apart = _apart(decoded[at], pixels[at]) if files[at] is not None else [0.0]
            shares.append(max(_distance(exact[at], own) / tolerance, whole, *apart))
        return shares


def _distance(made: torch.Tensor, own: Any) -> float:
    """The mean over a sample; without end where it is of another kind."""
    if not isinstance(own, torch.Tensor) or made.shape != own.shape or made.dtype != own.dtype:
        return math.inf
    found = float((made.cpu().double() - own.double()).abs().mean())
    return math.inf if math.isnan(found) else found


def _apart(decoded: torch.Tensor, plain: torch.Tensor) -> list[float]:
    """Colours are stored at half the size, and each decoder has its own way to enlarge them: how far that goes depends
    on the picture. Brightness is stored in full, and no colour may come out stronger or weaker as a whole."""
    if decoded.shape != plain.shape:
        return [math.inf]
    levels = decoded.cpu().float() - plain.float()
    brightness = levels[0] * 0.299 + levels[1] * 0.587 + levels[2] * 0.114
    shift = levels.mean((1, 2)).abs().max()
    return [float(brightness.abs().mean()) / _BRIGHTNESS, float(levels.abs().mean()) / _COLOURS, float(shift) / _SHIFT]
