"""The state of a data set, as far as it can be compared cheaply: a copy of it in a worker does not see it change."""

from __future__ import annotations

import sys
import types
import zlib
from typing import Any

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_DEPTH, _ITEMS, _NODES = 5, 32, 2000
_SAMPLED_BYTES = 1 << 16


def dataset_state(dataset: Any) -> int:
    """A number that changes when an attribute, a transform's setting or a small array inside the data set does."""
    words: list[str] = []
    _describe(dataset, _DEPTH, words, set())
    return zlib.crc32("\0".join(words).encode("utf-8", "surrogatepass"))


def _describe(value: Any, depth: int, words: list[str], above: set[int]) -> None:
    words.append(type(value).__name__)
    if len(words) > _NODES or isinstance(value, _OPAQUE):
        return
    if isinstance(value, _PLAIN):
        words.append(repr(value) if not isinstance(value, (str, bytes)) else str(hash(value)))
        return
    if _is_array(value):
        words.append(_array(value))
        return
    if depth == 0 or id(value) in above:
        return
    above = above | {id(value)}
    for item in _inside(value):
        _describe(item, depth - 1, words, above)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        entries = list(value.items())[:_ITEMS]
        return [len(value), *(part for entry in entries for part in entry)]
    if isinstance(value, (list, tuple)):
        return [len(value), *value[:_ITEMS], *value[-_ITEMS:]]
    if isinstance(value, (set, frozenset)):
        return [len(value)]
    return [part for entry in getattr(value, "__dict__", {}).items() for part in entry]


def _is_array(value: Any) -> bool:
    kinds = [getattr(sys.modules.get(name), kind, None) for name, kind in (("numpy", "ndarray"), ("torch", "Tensor"))]
    return isinstance(value, tuple(kind for kind in kinds if kind is not None))


def _array(value: Any) -> str:
    if hasattr(value, "_version"):  # a tensor counts its own changes
        return f"{tuple(value.shape)} {value._version} {id(value)}"
    step = max(1, value.nbytes // _SAMPLED_BYTES)
    sample = value if step == 1 else value.reshape(-1)[::step] if value.flags.c_contiguous else value.flat[:4096]
    content = repr(sample[:8].tolist()) if value.dtype.hasobject else str(zlib.crc32(sample.tobytes()))
    return f"{value.shape} {value.dtype} {content}"
