"""Writes redirected in Python, for where mount namespaces are refused: the script sees its own changes, the real files
stay as they are. Everything here ends in the Landlock seal, which refuses what Python does not get to see: C++ writers
other than torch.save, programs the script starts, workers that are spawned rather than forked."""

from __future__ import annotations

import errno
import fcntl
import functools
import glob
import inspect
import io
import os
import pathlib
import shutil
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing import spawn
from types import ModuleType
from typing import Any

from hotlap.measure import landlock
from hotlap.measure.listing import Scan, ScannedEntry
from hotlap.measure.overlay import Entry, Overlay, refuse

_PATHS = (str, bytes, os.PathLike)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FLAGS = {"w": os.O_CREAT | os.O_TRUNC, "a": os.O_CREAT, "x": os.O_CREAT | os.O_EXCL, "+": os.O_RDWR, "r": 0}
_TOLD_NO_FOLLOW = ("lstat", "readlink", "lchown")
_READING = ("stat", "lstat", "access", "readlink", "statvfs", "chdir", "getxattr", "listxattr")
_CHANGING = ("truncate", "utime", "chmod", "chown", "lchown", "setxattr", "removexattr")
_UNTOUCHED = ("posix", "_io", "_sqlite3", "hotlap.measure.overlay")  # where the old ones are still needed
_TEMPORARY = ("TMPDIR", "TMP", "TEMP")
# Compilers are programs of their own, so their caches must lie where they may write: beside the scratch folder, for all
# trials of a tuning, so that not each of them compiles afresh.
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")


class Redirect:
    """The scratch folder takes what the script writes; `passing` folders stay the real ones."""

    def __init__(self, scratch: str, passing: Sequence[str] = ()) -> None:
        self._caches = os.path.join(os.path.dirname(os.path.realpath(scratch)), "caches")
        self._writable = [os.path.realpath(folder) for folder in (scratch, self._caches, *passing)]
        self.overlay = Overlay(scratch, self._writable[1:])
        self._temporary = os.path.join(self._writable[0], "tmp")

    def enter(self) -> bool:
        """Patch this process and seal it; never undone. False where it cannot be sealed."""
        os.makedirs(self._temporary, exist_ok=True)
        os.makedirs(self._caches, exist_ok=True)
        os.environ.update(dict.fromkeys(_TEMPORARY, self._temporary) | dict.fromkeys(_CACHES, self._caches))
        tempfile.tempdir = self._temporary
        if not landlock.seal(self._writable):
            return False
        replaced = {id(old): self._told(old, new) for old, new in self._patches()}
        for able in (os.supports_dir_fd, os.supports_follow_symlinks, os.supports_fd):
            able.update([replaced[id(old)] for old in able if id(old) in replaced])
        for names, name in references():
            if id(names[name]) in replaced:
                names[name] = replaced[id(names[name])]
        spawn.get_command_line = self._told(spawn.get_command_line, self._spawned)
        shutil._use_fd_functions = False  # type: ignore[attr-defined]  # paths, which can be redirected
        # Python 3.10 and 3.13 keep references in a class.
        keepers = (getattr(pathlib, "_NormalAccessor", None), getattr(glob, "_StringGlobber", None))
        for keeper in filter(None, keepers):
            for name, value in list(vars(keeper).items()):
                own = value.__func__ if isinstance(value, staticmethod) else value
                if id(own) in replaced:
                    setattr(keeper, name, staticmethod(replaced[id(own)]))
        return True

    def _patches(self) -> list[tuple[Callable[..., Any], Callable[..., Any]]]:
        """What is replaced, and by what, which is called with the old one first."""
        by_name: dict[str, Callable[..., Any]] = {
            **dict.fromkeys(_READING, self._read),
            **dict.fromkeys(_CHANGING, self._change),
            **dict.fromkeys(("fchmod", "fchown"), _by_descriptor),  # Landlock does not know of these
            **dict.fromkeys(("mkdir", "mkfifo", "mknod"), self._make),
            **dict.fromkeys(("unlink", "remove"), self._remove),
            **dict.fromkeys(("rename", "replace"), self._rename),
            "rmdir": self._remove_folder,
            "link": self._link,
            "symlink": self._symlink,
            "open": self._open,
            "listdir": self._list,
            "scandir": self._scan,
            "getcwd": self._here,
        }
        found: list[tuple[Callable[..., Any], Callable[..., Any]]]
        found = [(getattr(os, name), new) for name, new in by_name.items() if hasattr(os, name)]
        found += [(io.open, self._open_file), (sqlite3.connect, self._connect)]
        if (torch := sys.modules.get("torch")) is not None:
            found += [(torch.save, self._torch(torch.save, writes=True))]
            found += [(torch.load, self._torch(torch.load, writes=False))]
        return found

    def _spawned(self, old: Callable[..., Any], **kwargs: Any) -> list[str]:
        """Workers that are spawned begin as we did; the seal they inherit."""
        command = old(**kwargs)
        at, ours = command.index("-c") + 1, f"Redirect({self._writable[0]!r}, {self._writable[1:]!r})"
        command[at] = f"import torch; from hotlap.measure.redirect import Redirect; {ours}.enter(); {command[at]}"
        return command  # type: ignore[no-any-return]

    def _told(self, old: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
        """`new(old, ...)`, whose errors name the script's path and not ours."""

        @functools.wraps(old)
        def redirected(*args: Any, **kwargs: Any) -> Any:
            try:
                return new(old, *args, **kwargs)
            except OSError as error:
                if isinstance(error.filename, str):
                    error.filename = error.filename.removeprefix(self.overlay.files)
                raise

        return redirected

    def _read(self, old: Callable[..., Any], path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        follow = kwargs.get("follow_symlinks", True) and old.__name__ not in _TOLD_NO_FOLLOW
        virtual, entry = self.overlay.find(path, follow, kwargs.get("dir_fd"))
        if virtual is None:
            return old(path, *args, **kwargs)
        if entry is None:
            return False if old.__name__ == "access" else refuse(errno.ENOENT, virtual)
        kwargs.pop("dir_fd", None)
        return old(entry[0], *args, **kwargs)

    def _change(self, old: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, int):
            return _by_descriptor(old, path, *args, **kwargs)
        follow = kwargs.get("follow_symlinks", True) and old.__name__ not in _TOLD_NO_FOLLOW
        virtual = self.overlay.virtual(path, follow, kwargs.get("dir_fd"))
        if virtual is None:
            return old(path, *args, **kwargs)
        self.overlay.place(virtual)  # it must be there
        kwargs.pop("dir_fd", None)
        return old(self.overlay.own(virtual), *args, **kwargs)

    def _make(self, old: Callable[..., Any], path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
        virtual = self.overlay.virtual(path, False, dir_fd)
        if virtual is None:
            return old(path, *args, dir_fd=dir_fd, **kwargs)
        return old(self._new(virtual), *args, **kwargs)

    def _new(self, virtual: str) -> str:
        if self.overlay.entry(virtual) is not None:
            refuse(errno.EEXIST, virtual)
        return self.overlay.own(virtual)

    def _remove(self, old: Callable[..., Any], path: Any, *, dir_fd: int | None = None) -> None:
        virtual = self.overlay.virtual(path, False, dir_fd)
        old(path, dir_fd=dir_fd) if virtual is None else self.overlay.remove(virtual)

    def _remove_folder(self, old: Callable[..., Any], path: Any, *, dir_fd: int | None = None) -> None:
        virtual = self.overlay.virtual(path, False, dir_fd)
        old(path, dir_fd=dir_fd) if virtual is None else self.overlay.remove_folder(virtual)

    def _rename(
        self,
        old: Callable[..., Any],
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        source, target = self.overlay.virtual(src, False, src_dir_fd), self.overlay.virtual(dst, False, dst_dir_fd)
        if source is None and target is None:
            return old(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)  # type: ignore[no-any-return]
        if source is None or target is None:  # one is in our own folder: like another disk, and shutil.move copies
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fspath(src), None, os.fspath(dst))
        return self.overlay.rename(source, target)

    def _link(self, old: Callable[..., Any], src: Any, dst: Any, **kwargs: Any) -> None:
        source, target = (
            self.overlay.virtual(src, kwargs.get("follow_symlinks", True)),
            self.overlay.virtual(dst, False),
        )
        if source is not None:
            self.overlay.place(source)
        old(src if source is None else self.overlay.own(source), dst if target is None else self._new(target))

    def _symlink(self, old: Callable[..., Any], src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        virtual = self.overlay.virtual(dst, False, kwargs.pop("dir_fd", None))
        old(src, dst if virtual is None else self._new(virtual), *args, **kwargs)

    def _for_flags(self, virtual: str, found: Entry | None, flags: int) -> str:
        if found is None and not flags & os.O_CREAT:
            refuse(errno.ENOENT, virtual)
        if found is not None and not flags & _WRITES:
            return found[0]
        if found is not None and flags & os.O_EXCL:
            refuse(errno.EEXIST, virtual)
        if found is not None and stat.S_ISDIR(found[1].st_mode):
            refuse(errno.EISDIR, virtual)
        return self.overlay.own(virtual, keep=not flags & os.O_TRUNC)

    def _open(self, old: Callable[..., Any], path: Any, flags: int, *args: Any, dir_fd: int | None = None) -> Any:
        virtual, found = self.overlay.find(path, not flags & os.O_NOFOLLOW, dir_fd)
        if virtual is None:
            return old(path, flags, *args, dir_fd=dir_fd)
        return old(self._for_flags(virtual, found, flags), flags, *args)

    def _open_file(self, old: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        has_opener = len(args) > 5 or kwargs.get("opener") is not None
        is_path = not has_opener and isinstance(file, _PATHS)
        at, found = self.overlay.find(file) if is_path else (None, None)
        if at is None:
            return old(file, mode, *args, **kwargs)
        flags = functools.reduce(lambda known, letter: known | _FLAGS.get(letter, 0), mode, 0)
        return old(self._for_flags(at, found, flags), mode, *args, **kwargs)

    def _list(self, old: Callable[..., Any], path: Any = ".") -> Any:
        virtual = self.overlay.virtual("." if path is None else path)
        if virtual is None or self.overlay.is_plain(virtual):
            return old(path)
        names = self.overlay.names(virtual)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def _scan(self, old: Callable[..., Any], path: Any = ".") -> Any:
        given = "." if path is None else path
        virtual = self.overlay.virtual(given)
        if virtual is None or self.overlay.is_plain(virtual):
            return old(path)
        return Scan([ScannedEntry(given, name) for name in self._list(os.listdir, given)])

    def _here(self, old: Callable[..., Any]) -> str:
        return old().removeprefix(self.overlay.files) or "/"

    def _connect(self, old: Callable[..., Any], database: Any, *args: Any, **kwargs: Any) -> Any:
        text = os.fsdecode(database) if isinstance(database, _PATHS) else ":memory:"
        is_uri = bool(kwargs.get("uri")) and text.startswith("file:")
        path, mark, options = text.removeprefix("file:").partition("?") if is_uri else (text, "", "")
        at = None if path in ("", ":memory:") or "mode=memory" in options else self.overlay.virtual(path)
        if at is None:
            return old(database, *args, **kwargs)
        for beside in ("-wal", "-shm", "-journal"):
            if self.overlay.entry(at + beside) is not None:
                self.overlay.own(at + beside)
        place = self.overlay.own(at)
        return old(f"file:{place}{mark}{options}" if is_uri else place, *args, **kwargs)

    def _torch(self, old: Callable[..., Any], writes: bool) -> Callable[..., Any]:
        """Its C++ opens a path given as text; it is handed the place instead."""
        signature = inspect.signature(old)

        def new(old: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            file = bound.arguments["f"]
            at, found = self.overlay.find(file) if isinstance(file, str | os.PathLike) else (None, None)
            if at is not None:
                bound.arguments["f"] = self._for_flags(at, found, _FLAGS["w" if writes else "r"])
            return old(*bound.args, **bound.kwargs)

        return new


@functools.cache
def references() -> list[tuple[dict[str, Any], str]]:
    """Every module's names for functions of the system: `from os import rename` keeps a reference of its own. Asked
    once by the server, whose modules all trials start with."""
    theirs = {id(value) for module in (os, io, sqlite3) for value in vars(module).values() if callable(value)}
    torch = sys.modules.get("torch")
    theirs |= {id(torch.save), id(torch.load)} if torch else set()
    modules = [one for name, one in sys.modules.items() if name not in _UNTOUCHED and isinstance(one, ModuleType)]
    return [(vars(one), name) for one in modules for name, value in list(vars(one).items()) if id(value) in theirs]


def _by_descriptor(old: Callable[..., Any], fd: int, *args: Any, **kwargs: Any) -> Any:
    """A file opened for reading is the real one, and its mode could be changed."""
    if fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR):
        return old(fd, *args, **kwargs)  # it could only be opened where writing is allowed
    path = os.readlink(f"/proc/self/fd/{fd}")
    return refuse(errno.EACCES, path) if path.startswith("/") else old(fd, *args, **kwargs)
