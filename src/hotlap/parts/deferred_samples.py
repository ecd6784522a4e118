"""Samples without pixels: a data set runs as it is, but its transforms only draw, and images stay encoded.

What its `__getitem__` does, in which order, and what it draws from which generator is the script's own. For the time of
a fetch its recognised transforms are replaced by ones that draw their random numbers and leave the work for later, and
`Image.open` by one that leaves JPEG files undecoded. A whole batch then travels as a few tensors. Where anything goes
wrong on the way, the generators are put back and the batch is made the script's own way."""

from __future__ import annotations

import copy
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map
from torch.utils.data._utils.pin_memory import pin_memory

from hotlap.parts.device_jpeg import pixels_of
from hotlap.parts.purity import reader, same
from hotlap.parts.transform_sites import Site, mark, sites_of

PROVEN_A_BATCH = 16  # samples made both ways, until so many are found alike: soon, since much is under way by then
ON_TRIAL, TRUSTED, REFUSED = 0, 1, 2
_MODES = ("RGB", "L")


class Unsuitable(Exception):
    """A sample that cannot be left undone; the batch is then made as ever."""


class Undone:
    """In a sample where the transformed image would be."""

    def __init__(self, site: int, image: Any, recipe: Any) -> None:
        self.site, self.image, self.recipe = site, image, recipe


class Packed:
    """In a batch where the images would be: what they are made from, in as few tensors as possible."""

    def __init__(self, undone: Sequence[Undone]) -> None:
        if not all(type(one) is Undone for one in undone):
            raise Unsuitable("some samples of a batch were transformed, some were not")
        self.sites, self.recipes = [one.site for one in undone], [one.recipe for one in undone]
        self.shapes = [None if isinstance(one.image, bytes) else tuple(one.image.shape) for one in undone]
        files = [one.image for one in undone if isinstance(one.image, bytes)]
        pixels = [one.image.reshape(-1) for one in undone if not isinstance(one.image, bytes)]
        self.lengths = [len(file) for file in files]
        self.files = torch.frombuffer(bytearray().join(files) or bytearray(1), dtype=torch.uint8)
        self.pixels = torch.cat(pixels) if pixels else torch.empty(0, dtype=torch.uint8, device="cpu")

    def __len__(self) -> int:
        return len(self.sites)

    def encoded(self) -> list[torch.Tensor]:
        return list(self.files.split([*self.lengths, len(self.files) - sum(self.lengths)])[: len(self.lengths)])

    def file(self, place: int) -> torch.Tensor | None:
        """The file of one of them, where it has one."""
        number = sum(shape is None for shape in self.shapes[:place])
        return self.encoded()[number] if self.shapes[place] is None else None

    def decoded(self, pixels: torch.Tensor) -> list[torch.Tensor]:
        """Images out of `pixels`, which may be a copy elsewhere. Those of one shape come out of one tensor."""
        shapes = [shape for shape in self.shapes if shape is not None]
        if len(set(shapes)) == 1:
            return list(pixels.view(-1, *shapes[0]).unbind(0))
        parts = pixels.split([math.prod(shape) for shape in shapes]) if shapes else ()
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


class Proof(NamedTuple):
    """What the script's own way made of one sample."""

    place: int
    images: list[Any]  # in the order in which they stand in the sample
    is_like: bool  # everything else in the sample is the same, and so are the generators afterwards


class Deferred:
    """A batch that is not done, and what is needed to make it the script's own way after all."""

    def __init__(self, batch: Any, index: Any, states: Any, proofs: list[Proof]) -> None:
        self.batch, self.index, self.states, self.proofs = batch, index, states, proofs

    def pin_memory(self) -> Deferred:
        self.batch = pin_memory(self.batch)
        return self

    def done_plainly(self, dataset: Any) -> Any:
        """The batch as the script's own loader would have made it, by the same random numbers."""
        here = generator_states()
        put_back(self.states)
        try:
            return default_collate(reader(dataset)(self.index))
        finally:
            put_back(here)


class Deferring:
    """Stands before the data set in a loader's fetcher. `verdict` is shared with whoever holds the first samples
    against the script's own."""

    def __init__(self, dataset: Any, verdict: torch.Tensor) -> None:
        self.__wrapped__ = dataset  # for whoever wants the script's own
        self._verdict, self._read = verdict, reader(dataset)
        found = sites_of(dataset)
        self._sites = [] if isinstance(found, str) else found
        self._mark = mark(self._sites)

    def __getitems__(self, index: list[Any]) -> Any:
        """A `Deferred`, which `collated` passes on, or samples."""
        if int(self._verdict) == REFUSED or not self._is_as_found():
            return self._read(index)
        states = generator_states()
        try:
            proofs: list[Proof] = []
            if int(self._verdict) == ON_TRIAL:
                samples = [self._on_trial(place, one, proofs) for place, one in enumerate(index)]
            else:
                with _swapped(self._sites):
                    samples = self._read(index)
            batch = collate(samples, collate_fn_map=_COLLATED)
            if not any(isinstance(leaf, Packed) for leaf in tree_flatten(batch)[0]):
                raise Unsuitable("its transforms are not called")
            return Deferred(batch, index, states, proofs)
        except Exception:
            put_back(states)
            return self._read(index)  # where an error of the script's own comes again

    def _on_trial(self, place: int, index: Any, proofs: list[Proof]) -> Any:
        before = generator_states()
        with _swapped(self._sites):
            (sample,) = self._read([index])
        if place < PROVEN_A_BATCH:
            after = generator_states()
            put_back(before)
            (own,) = self._read([index])
            images = _images(sample, own)
            is_like = images is not None and same(after, generator_states())
            proofs.append(Proof(place, images or [], is_like))
        return sample

    def _is_as_found(self) -> bool:
        """A transform may be replaced, or set to another size, while an epoch runs."""
        is_there = all(vars(site.owner).get(site.name) is site.held for site in self._sites)
        return bool(self._sites) and is_there and mark(self._sites) == self._mark


def collated(made: Any) -> Any:
    return made if isinstance(made, Deferred) else default_collate(made)


class InWorkers:
    """As a loader's `worker_init_fn`: the script's own comes first; then the worker's fetcher is given what defers."""

    def __init__(self, own: Callable[[int], object] | None, verdict: torch.Tensor) -> None:
        self._own, self._verdict = own, verdict

    def __call__(self, worker: int) -> None:
        from torch.utils.data import get_worker_info
        from torch.utils.data._utils.fetch import _MapDatasetFetcher

        if self._own is not None:
            self._own(worker)
        original, verdict, info = _MapDatasetFetcher.__init__, self._verdict, get_worker_info()
        mine = info.dataset if info is not None else None

        def __init__(fetcher: Any, dataset: Any, *rest: Any) -> None:
            original(fetcher, dataset, *rest)
            if dataset is mine:
                defer(fetcher, verdict)

        _MapDatasetFetcher.__init__ = __init__  # type: ignore[assignment, method-assign]  # in this worker alone


def defer(fetcher: Any, verdict: torch.Tensor) -> None:
    fetcher.dataset, fetcher.collate_fn = Deferring(fetcher.dataset, verdict), collated


class _Later:
    """In the place of a transform: draws what that would draw, and does nothing."""

    def __init__(self, number: int, site: Site) -> None:
        self._number, self._pipeline, self._transform = number, site.pipeline, site.transform
        self._expects = site.pipeline.expects

    def __call__(self, image: Any) -> Undone:
        if self._pipeline.head is not None:
            image = self._pipeline.head(image)
        if isinstance(image, torch.Tensor) != (self._expects == "levels"):
            raise Unsuitable("its transforms are given something else than their kind suggests")
        kept, width, height = _kept(image)
        return Undone(self._number, kept, self._pipeline.draw(width, height))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._transform, name)


def _kept(image: Any) -> tuple[Any, int, int]:
    """What travels: the file's bytes, or pixels; with its width and height."""
    if isinstance(image, torch.Tensor):
        if image.dtype is not torch.uint8 or image.ndim != 3 or image.device.type != "cpu":
            raise Unsuitable("an image is no tensor of bytes")
        return image, image.shape[2], image.shape[1]
    from PIL import Image

    from hotlap.parts.undecoded_jpeg import Undecoded, Unread

    if not isinstance(image, Image.Image) or image.mode not in _MODES:
        raise Unsuitable("an image is neither grey nor RGB")
    if isinstance(image, Unread) and image.mode == "RGB":
        image = image.convert("RGB")
    kept = image.data if isinstance(image, Undecoded) else pixels_of(image)
    return kept, *image.size


@contextmanager
def _swapped(sites: Sequence[Site]) -> Iterator[None]:
    """In the data set's own `__dict__`, whatever its class makes of an assignment. Nobody else reads it meanwhile: this
    is a worker's copy, or the thread that asked for the batch."""
    pil: Any = sys.modules.get("PIL.Image")
    pil_open = pil.open if pil is not None else None
    try:
        for number, site in enumerate(sites):
            later: Any = _Later(number, site)
            if site.held is not site.transform:
                later, joint = copy.copy(site.held), later
                later.transform = joint
            vars(site.owner)[site.name] = later
        if pil is not None:
            from hotlap.parts.undecoded_jpeg import open_undecoded

            pil.open = lambda *args, **kwargs: open_undecoded(pil_open, *args, **kwargs)
        yield
    finally:
        for site in sites:
            vars(site.owner)[site.name] = site.held
        if pil is not None:
            pil.open = pil_open


def _pack(batch: Any, **_: Any) -> Packed:
    return Packed(batch)


_COLLATED = {Undone: _pack, **default_collate_fn_map}


def _images(sample: Any, own: Any) -> list[Any] | None:
    """What stands in the script's own sample where the other has something undone; None where anything else differs."""
    (leaves, shape), (own_leaves, own_shape) = tree_flatten(sample), tree_flatten(own)
    if shape != own_shape:
        return None
    pairs = list(zip(leaves, own_leaves, strict=True))
    if not all(isinstance(leaf, Undone) or same(leaf, other) for leaf, other in pairs):
        return None
    return [other for leaf, other in pairs if isinstance(leaf, Undone)]


def generator_states() -> tuple[Any, ...]:
    """Of the global generators, as plain data."""
    numpy = sys.modules.get("numpy")
    return (
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        numpy.random.get_state() if numpy is not None else None,
    )


def put_back(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(states[0]), dtype=torch.uint8))
    random.setstate(states[1])
    if states[2] is not None:
        import numpy

        numpy.random.set_state(states[2])
