"""What the roots are fed: shapes at every call, for as little as a comparison, and values in a few calls."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from hotlap.observe.scrutiny_facts import InputFacts

_SHAPES_LISTED, _SHAPES_COUNTED = 8, 1000
_ROOTS, _TENSORS, _LOOKS = 64, 32, 16
_CHANNELS = 256  # more of them are positions in a sequence, and are taken together


class Inputs:
    """Keeps neither a root nor a batch alive."""

    def __init__(self) -> None:
        self._roots: dict[int, _Root] = {}
        self._gone: list[_Root] = []
        self._tensor: Any = None

    def saw(self, root: Any, args: Any, kwargs: Any) -> None:
        """At every training call of a root."""
        seen = self._roots.get(id(root))
        if seen is None or seen.alive() is not root:
            seen = self._root(root)
        shapes: Any = None
        try:
            shapes = self._shapes(args)
            if kwargs:
                shapes += self._shapes(kwargs.values())
                shapes.append(tuple(kwargs))
            if shapes == seen.shapes:
                return
        except Exception:  # an input that has no shape is no reason to stop a training, nor to forget the others
            shapes = None
        seen.shapes = shapes
        for name, part in _named(args, kwargs):
            with contextlib.suppress(Exception):
                seen.fed.setdefault(name, _Fed(part)).note(part)

    def _shapes(self, values: Any, is_inside: bool = False) -> list[Any]:
        found: list[Any] = []
        tensor = self._tensor
        for value in values:
            kind = type(value)
            if kind is tensor:
                found.append(value.shape)
            elif value is None or kind in (int, float, str, bool):
                continue
            elif kind is dict and not is_inside:
                found.append(tuple(value))
                found += self._shapes(value.values(), True)
            elif kind in (list, tuple) and not is_inside:
                found += self._shapes(value, True)
            elif issubclass(kind, (tensor, dict, list, tuple)):
                found.append(object())  # equals no other: to be gone through at every call
        return found

    def look(self, root: Any, args: Any, kwargs: Any) -> None:
        """In a few calls: mean and spread, left on the device, so that nothing waits."""
        self.saw(root, args, kwargs)
        fed_by_name = self._roots[id(root)].fed if id(root) in self._roots else {}
        for name, tensor in _named(args, kwargs):
            fed = fed_by_name.get(name)
            with contextlib.suppress(Exception):  # as above
                if fed is not None and len(fed.moments) < _LOOKS and _can_be_read(tensor):
                    fed.moments.append(_moments(tensor))

    def facts(self, names: Callable[[Any], str] | None = None) -> list[InputFacts]:
        found = []
        for seen in [*self._gone, *self._roots.values()]:
            root = seen.alive()
            label = names(root) if names is not None and root is not None else seen.kind
            found += [fed.facts(label, name) for name, fed in seen.fed.items()]
        return found

    def _root(self, root: Any) -> _Root:
        import torch

        self._tensor = torch.Tensor
        if id(root) in self._roots:
            self._gone.append(self._roots.pop(id(root)))  # its place in memory has been taken by another
        if len(self._roots) + len(self._gone) >= _ROOTS:
            return _Root(root)
        return self._roots.setdefault(id(root), _Root(root))


class _Root:
    def __init__(self, root: Any) -> None:
        self.alive, self.kind = weakref.ref(root), type(root).__name__
        self.shapes: list[Any] | None = None  # of the last call
        self.fed: dict[str, _Fed] = {}


class _Fed:
    """One tensor input."""

    def __init__(self, tensor: Any) -> None:
        self.dtype = str(_quietly(tensor, "dtype")).removeprefix("torch.")
        self.shapes: dict[tuple[int, ...], None] = {}
        self.moments: list[tuple[int, Any, Any, Any]] = []  # values a channel, mean, variance, all finite

    def note(self, tensor: Any) -> None:
        if len(self.shapes) < _SHAPES_COUNTED:
            self.shapes[tuple(int(size) for size in _quietly(tensor, "shape"))] = None

    def facts(self, root: str, name: str) -> InputFacts:
        read = [(n, mean.tolist(), variance.tolist(), bool(finite)) for n, mean, variance, finite in self.moments]
        like = [row for row in read if row[3] and len(row[1]) == len(read[0][1])]
        total = sum(n for n, *_ in like)
        mean, spread = [], []
        for channel in range(len(like[0][1]) if like else 0):
            centre = sum(n * means[channel] for n, means, _, _ in like) / total
            squares = sum(n * (v[channel] + (means[channel] - centre) ** 2) for n, means, v, _ in like) / total
            mean.append(centre)
            spread.append(math.sqrt(squares))
        if not all(map(math.isfinite, [*mean, *spread])):
            mean, spread = [], []  # too large for their own squares
        return InputFacts(
            root=root,
            name=name,
            shapes=[list(shape) for shape in list(self.shapes)[:_SHAPES_LISTED]],
            shapes_seen=len(self.shapes),
            dtype=self.dtype,
            mean=mean,
            spread=spread,
            finite=all(finite for *_, finite in read),
        )


def _named(args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    """The tensors among the arguments, and one level inside the lists, tuples and dicts there."""
    import torch

    found = 0
    for name, value in [*enumerate(args), *kwargs.items()]:
        inside: Any = ((None, value),)
        if issubclass(type(value), dict):
            inside = list(dict.items(value))
        elif issubclass(type(value), (list, tuple)):
            inside = enumerate(value)
        for key, part in inside:
            if found < _TENSORS and issubclass(type(part), torch.Tensor):
                found += 1
                yield (str(name) if key is None else f"{name}.{key}"), part


def _quietly(tensor: Any, name: str) -> Any:
    """A subclass may answer in its own way, or not at all."""
    import torch

    with torch._C.DisableTorchFunction():
        return getattr(tensor, name)


def _can_be_read(tensor: Any) -> bool:
    import torch

    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not tensor.is_nested
        and tensor.layout is torch.strided
        and tensor.is_floating_point()
        and not tensor.is_meta
        and tensor.numel() > 0
        # what is allocated while a graph is being captured belongs to the graph
        and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _moments(tensor: Any) -> tuple[int, Any, Any, Any]:
    import torch

    with torch.no_grad():
        values = tensor.detach()
        if values.dtype is not torch.float64:
            values = values.float()
        by_channel = values.dim() >= 3 and values.shape[1] <= _CHANNELS
        over = [d for d in range(values.dim()) if d != 1 or not by_channel]
        variance, mean = torch.var_mean(values, dim=over, correction=0)
        return values.numel() // mean.numel(), mean.reshape(-1), variance.reshape(-1), torch.isfinite(values).all()
