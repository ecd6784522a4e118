"""The state of a data set, as far as it can be compared cheaply: a copy of it in a worker does not see it change."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import types
import zlib
from itertools import islice
from typing import Any

from hotlap.observe.globals_read import globals_read
from hotlap.parts.code_names import globals_of

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_OPAQUE = (type, types.ModuleType, types.BuiltinFunctionType)
_DEPTH, _ITEMS, _NODES = 5, 32, 2000
_IDENTITIES = 1 << 16  # items of a list
_SAMPLED_BYTES = 1 << 20
_SAMPLED_ON_DISK = 256  # elements
_LIBRARIES = {*sys.stdlib_module_names, "torch"} - {"__main__"}


def dataset_state(dataset: Any) -> int:
    """A number that changes when an attribute, a transform, its setting, a small array inside the data set, a global
    that the script's own code reads for a sample, or the dtype in which torch makes one does."""
    torch = sys.modules.get("torch")
    words = [str(torch.get_default_dtype())] if torch is not None else []
    _describe(dataset, _DEPTH, words, set())
    elsewhere: list[str] = []
    for value in globals_read(dataset):
        _describe(value, _DEPTH - 2, elsewhere, set())
    return zlib.crc32("\0".join(words + elsewhere).encode("utf-8", "surrogatepass"))


def _describe(value: Any, depth: int, words: list[str], above: set[int]) -> None:
    words.append(type(value).__name__)
    if len(words) > _NODES:
        return
    if isinstance(value, _OPAQUE):
        words.append(getattr(value, "__qualname__", ""))
        return
    if isinstance(value, _PLAIN):
        words.append(repr(value) if not isinstance(value, (str, bytes)) else str(hash(value)))
        return
    if isinstance(value, os.PathLike):  # a Path fills in its own attributes as it is asked for them
        words.append(os.fsdecode(os.fspath(value)))
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
        entries = list(islice(value.items(), _ITEMS))
        identities = _identities(list(islice(value.values(), _ITEMS, _IDENTITIES)))
        return [len(value), identities, *(part for entry in entries for part in entry)]
    if isinstance(value, (list, tuple)):
        # Between its ends only what lies there is looked at: something else put in an item's place is seen.
        identities = _identities(value[_ITEMS : _IDENTITIES - _ITEMS])
        return [len(value), identities, *value[:_ITEMS], *value[-_ITEMS:]]
    if isinstance(value, (set, frozenset)):
        return [len(value)]
    if isinstance(value, types.FunctionType):
        return _inside_function(value)
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, ctypes._SimpleCData):  # as of multiprocessing.Value
        return [value.value]
    if isinstance(value, ctypes.Array):
        return [zlib.crc32(memoryview(value).cast("B"))]
    return _inside_object(value)


def _identities(items: Any) -> int:
    """What lies there; where those are lists or dicts, also what lies in them."""
    within = [one if type(one) is list else one.values() for one in items if type(one) in (list, dict)]
    return hash((*map(id, items), *(id(part) for one in within for part in islice(one, _ITEMS))))


def _inside_function(function: types.FunctionType) -> list[Any]:
    """What it was made of: one made anew from the same text, with the same values, is the same."""
    code = function.__code__
    held = [_content(cell) for cell in function.__closure__ or ()]
    read = [function.__globals__.get(name) for name in sorted(globals_of(function))]
    plain = [value for value in read if isinstance(value, (*_PLAIN, list, dict)) or _is_array(value)]
    constants = [value for value in code.co_consts if isinstance(value, _PLAIN)]
    return [code.co_code, constants, code.co_names, function.__defaults__, function.__kwdefaults__, held, plain]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet given
        return None


def _inside_object(value: Any) -> list[Any]:
    """Its own attributes, and the plain ones of its classes."""
    held = list(getattr(value, "__dict__", {}).items())
    for kind in type(value).__mro__:
        if kind.__module__.partition(".")[0] not in _LIBRARIES:  # their attributes may be filled in late
            held += [(name, one) for name, one in vars(kind).items() if isinstance(one, _PLAIN) and name[:2] != "__"]
            slots = [name for name, one in vars(kind).items() if isinstance(one, types.MemberDescriptorType)]
            held += [(name, getattr(value, name, None)) for name in slots]
    return [part for entry in held for part in entry]


def _is_array(value: Any) -> bool:
    kinds = [getattr(sys.modules.get(name), kind, None) for name, kind in (("numpy", "ndarray"), ("torch", "Tensor"))]
    return isinstance(value, tuple(kind for kind in kinds if kind is not None))


def _array(value: Any) -> str:
    if hasattr(value, "is_inference"):  # a tensor counts its own changes, unless it is never to be trained with
        return f"{tuple(value.shape)} {0 if value.is_inference() else value._version} {id(value)}"
    step = max(1, value.nbytes // _SAMPLED_BYTES)
    if _is_mapped(value):  # every element looked at may be a read from disk
        step = max(1, value.size // _SAMPLED_ON_DISK)
    sample = value if step == 1 else value.reshape(-1)[::step] if value.flags.c_contiguous else value.flat[:4096]
    content = repr(sample[:8].tolist()) if value.dtype.hasobject else str(zlib.crc32(sample.tobytes()))
    return f"{value.shape} {value.dtype} {content}"


def _is_mapped(array: Any) -> bool:
    while array is not None and not isinstance(array, mmap.mmap):
        array = getattr(array, "base", None)
    return array is not None
