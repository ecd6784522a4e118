"""What a function's code names: globals, attributes, and what its closure holds."""

from __future__ import annotations

import dis
import functools
import sysconfig
import weakref
from collections.abc import Mapping
from types import CodeType
from typing import Any

_STANDARD = sysconfig.get_path("stdlib")


def globals_of(function: Any) -> frozenset[str]:
    code = getattr(function, "__code__", None)
    return _read(code)[0] if code is not None else frozenset()


def names_of(function: Any) -> frozenset[str]:
    """The attributes it names, of whatever object."""
    code = getattr(function, "__code__", None)
    return _read(code)[1] if code is not None else frozenset()


def stored(code: CodeType) -> set[str]:
    return {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_ATTR"}


@functools.lru_cache(maxsize=1024)
def _read(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals and the attributes that code names."""
    names, attributes = set[str](), set[str]()
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"):
            names.add(one.argval)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR"):
            attributes.add(one.argval)
    if names & {"getattr", "hasattr", "attrgetter"} or "attrgetter" in attributes:
        attributes |= {one for one in code.co_consts if isinstance(one, str) and one.isidentifier()}
    for inner in (_read(one) for one in code.co_consts if isinstance(one, CodeType)):
        names, attributes = names | inner[0], attributes | inner[1]
    return frozenset(names), frozenset(attributes)


class Closure:
    """What a function's closure and its defaults hold, by name and when it is asked. The function is not kept."""

    def __init__(self, function: Any) -> None:
        self._function = weakref.ref(function)

    def __getitem__(self, name: str) -> Any:
        return self.now()[name]

    def now(self) -> dict[str, Any]:
        function: Any = self._function()
        if function is None:
            return {}
        code, given = function.__code__, function.__defaults__ or ()
        by_position = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
        found = dict(zip(by_position, given, strict=True)) | (function.__kwdefaults__ or {})
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not set yet, or not any more
                continue
        return found


def is_scripts(names: Mapping[str, Any]) -> bool:
    """Whether these are the names of the script's own code: what is installed does the same in every step, and so does
    this package, also where it is not installed."""
    module, file = str(names.get("__name__")), names.get("__file__")
    if module == "__main__" or module.startswith("hotlap.") or not isinstance(file, str):
        return module == "__main__"
    parts = file.replace("\\", "/").split("/")
    return not {"site-packages", "dist-packages"} & set(parts) and not file.startswith(_STANDARD)
