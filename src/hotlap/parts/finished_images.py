"""What was deferred, done: images decoded and transformed in a batch, and the first of them held against the script's
own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from hotlap.parts.cuda_copier import pinned
from hotlap.parts.deferred_samples import ON_TRIAL, PROVEN, REFUSED, TRUSTED, Deferred
from hotlap.parts.device_jpeg import by_pillow, decode_ahead, decode_all, keep_for
from hotlap.parts.undone_images import UndoneBatch

_BRIGHTNESS, _COLOURS, _SHIFT = 1.5, 8.0, 1.0  # levels of 255 that decoders may differ by; see `_apart`
_SPREAD = 32.0  # levels that the images of a batch spread over, at least


class Judge(Protocol):
    """Who hears how far the first samples are from the script's own, 1 being what is allowed, and may end it all."""

    @property
    def failed(self) -> bool: ...
    def add(self, difference: float) -> None: ...


class Finished(NamedTuple):
    """A batch on the device, and the images it was made from, for who wants to look at them."""

    undone: UndoneBatch
    images: Callable[[], list[torch.Tensor]]
    batch: torch.Tensor


def finished(undone: UndoneBatch, pipelines: Sequence[Any], device: torch.device) -> Finished:
    """What the script's own transforms would have made of these images."""
    pixels = undone.pixels
    if device.type == "cuda" and len(pixels):
        pixels = pinned(pixels).to(device, non_blocking=True)
    together = undone.together(pixels)
    if together is not None:
        ((site, recipes),) = undone.recipes.items()
        batch = pipelines[site].run(together, recipes, device)
        return Finished(undone, lambda: undone.decoded(pixels), batch)
    ready, undone.ready = undone.ready, None
    if ready is not None and ready.images[0].device != device:  # the script has moved a batch elsewhere meanwhile
        ready = None
    if ready is not None:
        torch.cuda.current_stream(device).wait_event(ready.done)
    decoded = iter(undone.decoded(pixels))
    encoded = iter(ready.images if ready else decode_all(undone.encoded(), device) if undone.lengths else ())
    images = [next(decoded) if is_there else next(encoded) for is_there in undone.shapes.any(1)]
    batch = _transformed(undone, images, pipelines, device)
    if ready is not None:
        keep_for(torch.cuda.current_stream(device), ready.images)
    return Finished(undone, lambda: images, batch)


def begin(undone: UndoneBatch, device: torch.device) -> None:
    """Decode its files ahead, in a thread that has nothing else to do."""
    if device.type == "cuda" and undone.lengths:
        undone.ready = decode_ahead(undone.encoded(), device)


def _transformed(
    undone: UndoneBatch, images: Sequence[torch.Tensor], pipelines: Sequence[Any], device: torch.device
) -> torch.Tensor:
    """The first images of a batch, each by the transform of its own site, one batch for each of them."""
    parts, places = [], []
    for site, recipes in undone.recipes.items():
        mine = np.flatnonzero(undone.sites[: len(images)] == site).tolist()
        if mine:
            parts.append(pipelines[site].run([images[place] for place in mine], recipes.first(len(mine)), device))
            places += mine
    if len(parts) == 1:
        whole: torch.Tensor = parts[0]
        return whole
    return torch.cat(parts)[torch.tensor(places, device="cpu").argsort().to(device)]


class Trial:
    """One kind of batch: the same transforms of the same kind of data set. Workers look at the verdicts, one for each
    site, before every batch: while one is open they make some samples both ways; once refused they make all as ever."""

    def __init__(self, pipelines: Sequence[Any], judge: Judge) -> None:
        self.pipelines, self._judge = pipelines, judge
        self.verdicts = torch.full((len(pipelines),), ON_TRIAL, dtype=torch.uint8, device="cpu").share_memory_()
        self._seen = self.verdicts.numpy()  # the same memory, without torch's detours
        self._proven: Counter[int] = Counter()
        self.missed = 0  # batches in a row that could not be deferred
        self.has_files: bool | None = None  # among what was deferred so far; None before the first batch

    @property
    def is_refused(self) -> bool:
        return REFUSED in self._seen or self._judge.failed

    def refuse(self) -> None:
        self.verdicts.fill_(REFUSED)

    def hear(self, batch: Deferred, made: Sequence[Finished]) -> None:
        """What the script's own way made of some samples, on the stream that made the others."""
        if not batch.is_like or any(len(images) != len(made) for images in batch.own):
            self._judge.add(math.inf)
        elif batch.own and any(self._seen[site] == ON_TRIAL for one in made for site in one.undone.recipes):
            shares = [self._of(one, [images[at] for images in batch.own]) for at, one in enumerate(made)]
            for share in zip(*shares, strict=True):
                self._judge.add(max(share))  # of the images in one sample
            self._proven.update(site for one in made for site in one.undone.sites[: len(batch.own)].tolist())
        if self._judge.failed:
            self.refuse()
            return
        for site, count in self._proven.items():
            if count >= PROVEN and self._seen[site] == ON_TRIAL:
                self._seen[site] = TRUSTED

    def _of(self, one: Finished, owns: Sequence[Any]) -> list[float]:
        """How far each image is from the script's own, of what is allowed. Transforms are held to their own tolerance,
        on the very pixels the script had; decoders to theirs; and what came out in the batch to both."""
        device, spread = one.batch.device, float(one.batch.double().std()) or 1.0
        files = [one.undone.file(place) for place in range(len(owns))]
        images = one.images()
        pixels = [own if file is None else by_pillow(file) for own, file in zip(images, files, strict=False)]
        exact = _transformed(one.undone, [image.to(device) for image in pixels], self.pipelines, device)
        shares = []
        for place, own in enumerate(owns):
            tolerance = spread * max(float(self.pipelines[one.undone.sites[place]].tolerance), 1e-6)
            whole = _distance(one.batch[place], own) / (tolerance + spread * _COLOURS / _SPREAD)
            apart = _apart(images[place], pixels[place]) if files[place] is not None else [0.0]
            shares.append(max(_distance(exact[place], own) / tolerance, whole, *apart))
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
