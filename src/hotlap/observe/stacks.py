"""What a thread is making a batch with, told from where it stands.

Only code objects and offsets are looked at, never the values in a frame: to read those from another thread would keep
the script's tensors alive, and be unsafe while the frame runs."""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from hotlap.observe.whose import is_users

Place = tuple[CodeType, int]  # a function's code, and the offset of the instruction it stands at
Label = tuple[str, str, int]  # what is being done, and the path and line of the script's own code it belongs to

READ, DECODE, COLLATE, OWN = "read", "decode", "collate", "own code"

_FRAMES = 200  # how deep a stack is followed
_HELD = 400  # how many of the things a data set holds are looked at
_LIBRARIES = (  # part of a file's path, functions in it (none named: all), what they do
    ("/PIL/ImageFile.py", ("load",), DECODE),
    ("/PIL/Image.py", ("open",), READ),
    ("/torchvision/io/", ("read_file",), READ),
    ("/torchvision/io/", (), DECODE),
    ("/torchaudio/", ("load",), DECODE),
    ("/torchcodec/", (), DECODE),
    ("/turbojpeg.py", (), DECODE),
    ("/tifffile/", (), DECODE),
    ("/soundfile.py", (), DECODE),
    ("/pathlib", ("read_bytes", "read_text", "open"), READ),
    ("/h5py/", (), READ),
    ("/zarr/", (), READ),
    ("/fsspec/", (), READ),
    ("/pyarrow/", (), READ),
    ("/pandas/io/", (), READ),
    ("/safetensors/", (), READ),
    ("/torch/serialization.py", (), READ),
    ("/numpy/lib/npyio.py", (), READ),
    ("/numpy/lib/_npyio_impl.py", (), READ),
    ("/numpy/lib/format.py", (), READ),
    ("/numpy/lib/_format_impl.py", (), READ),
    ("/numpy/core/memmap.py", (), READ),
    ("/numpy/_core/memmap.py", (), READ),
    *((f"/{name}", (), READ) for name in ("gzip.py", "bz2.py", "lzma.py", "zipfile.py", "zipfile/", "tarfile.py")),
    *((f"/{name}", (), READ) for name in ("pickle.py", "socket.py", "ssl.py", "http/client.py")),
)
_TRANSFORMS = ("/torchvision/transforms/", "/albumentations/", "/kornia/", "/monai/transforms/")
_GENERIC = re.compile(r"Compose|Transform|BasicTransform|StandardTransform|Module|\w*Sequential|_\w+")
_CONTAINER = re.compile(r"Compose|StandardTransform|\w*Sequential")
_IS_TRANSFORM = re.compile(r"transform|aug|preproc|tfm", re.IGNORECASE)
_DECODES = re.compile(r"im(read|decode)\w*|decode_(image|jpeg|png|gif|webp|avif|heic|video)s?|read_(image|video)")
_DECODERS = ("simplejpeg", "jpeg4py", "turbojpeg", "pillow_heif")
_READS = re.compile(r"open|p?read(v|into|lines?|_\w+)?|fromfile|memmap|loadtxt|genfromtxt|h5py\.File|txn\.get")
_LOADS = re.compile(r"(np|numpy|torch|pickle|joblib|json|yaml|h5py|dill|msgpack)\.loads?")


def stack_below(frame: Any, wrapper: CodeType) -> list[Place]:
    """Where a thread stands, innermost first, down to a call of `wrapper`; nothing if it is not below one."""
    places: list[Place] = []
    while frame is not None and len(places) < _FRAMES:
        if frame.f_code is wrapper:
            return places
        places.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return []


class Labels:
    """Names for the stacks of one data set, from the transforms it holds. `collate` is the code that stands round
    its collate function, which may itself have none."""

    def __init__(self, collate: CodeType | None = None) -> None:
        self._collate = collate
        self._transforms: dict[CodeType, str] = {}

    def learn(self, dataset: Any) -> None:
        """Again with each epoch: a script may change its transforms between two."""
        for code, name in _transforms(dataset):
            known = self._transforms.setdefault(code, name)
            if known != name:
                self._transforms[code] = ""  # a base class's, which tells nothing

    def label(self, stack: list[Place]) -> Label:
        own = next((place for place in stack if is_users(place[0].co_filename)), None)
        path, line = (own[0].co_filename, _line(*own)) if own else ("", 0)
        return self._what(stack, own), path, line

    def _what(self, stack: list[Place], own: Place | None) -> str:
        codes = [code for code, _ in stack]
        if self._collate in codes:
            return COLLATE
        found = _named(_called(*stack[0]))  # a call of what is not Python stands in the innermost frame
        for place in stack if not found else ():
            found = _library(place[0]) or (_named(_called(*place)) if place is own else "")
            if found:
                break
        return found or self._transform(codes) or OWN

    def _transform(self, codes: list[CodeType]) -> str:
        """The outermost transform: what it consists of is its own affair."""
        generic = ""
        for code in reversed(codes):
            if self._transforms.get(code):
                return self._transforms[code]
            if any(part in code.co_filename for part in _TRANSFORMS) and not is_users(code.co_filename):
                name = getattr(code, "co_qualname", code.co_name).split(".")[0]
                if not _GENERIC.fullmatch(name) and "/albumentations/core/" not in code.co_filename:
                    return str(name)
                if not _CONTAINER.fullmatch(name):
                    generic = generic or name
        return generic


# one frame -----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _library(code: CodeType) -> str:
    for part, functions, what in () if is_users(code.co_filename) else _LIBRARIES:
        if part in code.co_filename and (not functions or code.co_name in functions):
            return what
    return ""


@functools.lru_cache(maxsize=4096)
def _line(code: CodeType, offset: int) -> int:
    return next((line for start, end, line in code.co_lines() if start <= offset < end and line), code.co_firstlineno)


@functools.lru_cache(maxsize=4096)
def _called(code: CodeType, offset: int) -> tuple[str, ...]:
    """The dotted name of what is being called at this instruction. Before Python 3.11 only the line is known, which
    may call several things."""
    line = _line(code, offset)
    span = next(islice(code.co_positions(), offset // 2, None), None) if hasattr(code, "co_positions") else None
    if span is None or None in span:
        return tuple(re.findall(r"([\w.]+)\s*\(", linecache.getline(code.co_filename, line)))
    first, last, start, end = (one or 0 for one in span)
    lines = [text.encode() for text in linecache.getlines(code.co_filename)[first - 1 : last]]
    if not lines:
        return ()
    lines[-1] = lines[-1][:end]  # the end first: it may be the same line
    lines[0] = lines[0][start:]
    try:
        call = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except (SyntaxError, ValueError):
        return ()
    return (_dotted(call.func),) if isinstance(call, ast.Call) else ()


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _named(called: tuple[str, ...]) -> str:
    found = {_by_name(name) for name in called}
    return DECODE if DECODE in found else READ if READ in found else ""


def _by_name(dotted: str) -> str:
    root, last = dotted.split(".")[0], dotted.rpartition(".")[2]
    if _DECODES.fullmatch(last) or root in _DECODERS:
        return DECODE
    return READ if _READS.fullmatch(last) or _READS.fullmatch(dotted) or _LOADS.fullmatch(dotted) else ""


# what a data set holds -----------------------------------------------------------------------------------------------


def _codes(function: Any) -> Iterator[CodeType]:
    """The code that runs when this is called."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        kind = type(function)
        function = getattr(kind, "__call__", None)  # noqa: B004 - what it is, not whether it is there
        if getattr(function, "__module__", "").startswith("torch."):
            function = getattr(kind, "forward", None)  # a module's own part
    function = _innermost(function)
    if isinstance(function, FunctionType):
        yield function.__code__


def _innermost(function: Any) -> Any:
    """Without decorators, whose code is the same for everything they decorate."""
    while isinstance(function, FunctionType) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _transforms(dataset: Any) -> Iterator[tuple[CodeType, str]]:
    """The code of each callable thing the data set holds, itself or in data sets and containers inside it, and what
    it is called."""
    seen = {id(dataset)}
    queue = [(name, value) for name, value in _attributes(dataset)]
    while queue and len(seen) < _HELD:
        name, value = queue.pop(0)
        if id(value) in seen or isinstance(value, (type, ModuleType, str, bytes, int, float)):
            continue
        seen.add(id(value))
        if isinstance(value, (list, tuple, dict)):
            if len(value) <= 64:
                queue += [(name, one) for one in (value.values() if isinstance(value, dict) else value)]
        elif isinstance(value, (FunctionType, MethodType, functools.partial)):
            if _IS_TRANSFORM.search(name):
                yield from ((code, code.co_name) for code in _codes(value))
        elif _is_dataset(value):
            queue += _attributes(value)
        elif callable(value):
            yield from _methods(type(value))
            queue += [("transforms", inner) for _, inner in _attributes(value)]


def _attributes(thing: Any) -> list[tuple[str, Any]]:
    held = getattr(thing, "__dict__", None)
    return list(held.items()) if isinstance(held, dict) else []


def _is_dataset(thing: Any) -> bool:
    from torch.utils.data import Dataset

    return isinstance(thing, Dataset) or hasattr(type(thing), "__getitem__")


def _methods(kind: type) -> Iterable[tuple[CodeType, str]]:
    if _CONTAINER.fullmatch(kind.__name__):
        return
    for owner in kind.__mro__:
        if owner.__module__.split(".")[0] in ("builtins", "torch"):
            continue
        for method in vars(owner).values():
            function = _innermost(getattr(method, "__func__", method))
            if isinstance(function, FunctionType):
                yield function.__code__, kind.__name__
