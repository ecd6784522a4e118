"""Running the user's script as `python` would: argv, `__main__`, sys.path, exit code, signals, tracebacks."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

from hotlap.errors import HotlapError

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Stopped(BaseException):
    """Raised into a script that has trained enough; not an Exception, so that `except Exception` lets it pass."""


@dataclass(frozen=True)
class Target:
    """What to run: a path, or with `is_module` a dotted name as for `python -m`."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def __str__(self) -> str:
        return f"-m {self.name}" if self.is_module else self.name

    @property
    def command(self) -> list[str]:
        """As one would hand it to python."""
        return [*(["-m"] if self.is_module else []), self.name, *self.arguments]

    @property
    def path(self) -> str:
        """The file that becomes `__main__`."""
        return _spec(self.name).origin or self.name if self.is_module else os.path.abspath(self.name)

    @property
    def folder(self) -> str:
        """Where its own modules lie."""
        return os.getcwd() if self.is_module else os.path.dirname(os.path.realpath(self.path))

    def check(self) -> None:
        """Raise one sentence if this cannot be run at all. Nothing of the script is executed."""
        _compiled(self)


def _spec(name: str) -> ModuleSpec:
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError):
        spec = None
    finally:
        sys.path.remove(folder)
    if spec is None or not spec.origin:
        raise HotlapError(f"there is no module {name} to run from {folder}: check the name, or give the script's path")
    return spec


Compiler = Callable[[bytes, str], CodeType]


def _as_written(data: bytes, path: str) -> CodeType:
    return compile(data, path, "exec", dont_inherit=True)


def _compiled(target: Target, compiler: Compiler = _as_written) -> CodeType:
    path = target.path
    if os.path.isdir(path):
        raise HotlapError(f"{target.name} is a folder: name the training script inside it")
    if not os.path.exists(path):
        raise HotlapError(f"there is no file {target.name} here: check the path")
    if path.endswith(".ipynb"):
        raise HotlapError(
            f"{target.name} is a notebook: save it as a script (jupyter nbconvert --to script), or put"
            " `with hotlap.applied(...)` round its training"
        )
    try:
        with io.open_code(path) as file:
            text = file.read()
        if not text.strip():
            raise HotlapError(f"{target.name} is empty: name the script that trains")
        return compiler(text, path)
    except SyntaxError as error:
        if error.lineno is None:
            raise HotlapError(
                f"{target.name} cannot be read as Python ({error.msg}): name the script that trains"
            ) from None
        raise HotlapError(
            f"{target.name} line {error.lineno} is not valid Python ({error.msg}): mend it, then run hotlap again"
        ) from None
    except ValueError as error:
        raise HotlapError(f"{target.name} cannot be read as Python ({error}): name the script that trains") from None
    except OSError as error:
        raise HotlapError(f"{target.name} cannot be read ({error.strerror}): check its permissions") from None


def execute(target: Target, compiler: Compiler = _as_written) -> None:
    """Run the target as `__main__` in this process, to its end. SystemExit passes through; an uncaught error is shown
    with the user's frames only and then leaves the way python lets it leave."""
    code = _compiled(target, compiler)
    main = _main_module(target)
    sys.argv = [target.path if target.is_module else target.name, *target.arguments]
    sys.path[0] = target.folder
    ours = sys.modules["__main__"]  # kept alive: dropping a module clears its globals
    sys.modules["__main__"] = main
    try:
        exec(code, vars(main))
    except (SystemExit, Stopped):
        raise
    except BaseException as error:
        _clean(error, set())
        sys.excepthook(type(error), error, error.__traceback__)
        sys.excepthook = _already_shown
        raise  # python still decides how to leave: 1, or death by SIGINT
    finally:
        vars(main).setdefault("__hotlap_previous_main__", ours)


def _main_module(target: Target) -> ModuleType:
    main = ModuleType("__main__")
    names: dict[str, Any] = {"__builtins__": builtins, "__file__": target.path, "__cached__": None}
    if target.is_module:
        spec = _spec(target.name)
        names |= {"__spec__": spec, "__package__": spec.parent, "__loader__": spec.loader}
    else:
        names |= {"__spec__": None, "__package__": None, "__loader__": SourceFileLoader("__main__", target.path)}
    vars(main).update(names)
    return main


def _clean(error: BaseException | None, done: set[int]) -> None:
    """Take hotlap's frames out of an error's traceback, and of those it came from."""
    if error is None or id(error) in done:
        return
    done.add(id(error))
    error.__traceback__ = _without_ours(error.__traceback__)
    _clean(error.__cause__, done)
    _clean(error.__context__, done)


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    kept = []
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if not path.startswith(_OURS + os.sep):
            kept.append(traceback)
        traceback = traceback.tb_next
    rest: TracebackType | None = None
    for entry in reversed(kept):
        rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest


def _already_shown(*_: Any) -> None:
    """Python calls the hook once more when the error leaves our own main; it has been shown."""
