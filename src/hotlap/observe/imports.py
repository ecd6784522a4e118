"""Act when the script imports a module, not before: a framework is touched only if the script touches it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def on_import(name: str, action: Callable[[], object]) -> Callable[[], None]:
    """Run `action` right after module `name` has been imported (at once if it already is). Returns the cancel."""
    if name in sys.modules:
        action()
        return lambda: None
    finder = _After(name, action)
    sys.meta_path.insert(0, finder)
    return finder.cancel


class _After:
    """A finder that finds one module by the others' help and slips an action behind its loading."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self.name, self.action = name, action
        self.is_searching = False

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name or self.is_searching:
            return None
        self.is_searching = True  # so that the search below does not find us again
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.is_searching = False
        if spec is None or spec.loader is None:
            return spec
        loader, load = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            self.is_searching = True  # cv2 imports a second module by its own name while it is loaded
            try:
                load(module)
            finally:
                self.is_searching = False
            if self in sys.meta_path:  # until now: being looked for (`find_spec`) is not being imported
                self.cancel()
                self.action()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def cancel(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
