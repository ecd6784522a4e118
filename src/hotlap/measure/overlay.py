"""A writable view of the whole file system kept in one folder: what was written lies in `files/<absolute path>`, what
was deleted is marked in `gone/`. Both are on disk, so forked workers share the view.

Rule: whoever deletes a folder also marks all that really lies below it, so that one look at a path's own mark is
enough. What was written wins over a mark, so marks are never taken back. Nothing here may go through `os` or `open`:
in a trial those come here."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import posix
import shutil
import stat
from collections.abc import Sequence
from typing import Any, NoReturn

_SYSTEM = ("/proc", "/sys", "/dev")
_MOST_LINKS = 40
_open = io.open
Entry = tuple[str, os.stat_result]


class Overlay:
    """Paths here are `virtual`: absolute, as the script means them; a `place` is where the content really lies."""

    def __init__(self, scratch: str, passing: Sequence[str] = ()) -> None:
        scratch = os.path.realpath(scratch)
        self.files, self._gone = f"{scratch}/files", f"{scratch}/gone"
        self._passing = tuple(f"{os.path.realpath(folder)}/" for folder in (scratch, *passing))
        self._folders: dict[str, str] = {}  # where parents lead, links followed
        for folder in (self.files, self._gone):
            os.makedirs(folder, exist_ok=True)

    def virtual(self, path: Any, follow: bool = True, dir_fd: int | None = None) -> str | None:
        """The path without links, or None where the real one is meant: descriptors, devices, our own folders."""
        return self.find(path, follow, dir_fd)[0]

    def find(self, path: Any, follow: bool = True, dir_fd: int | None = None) -> tuple[str | None, Entry | None]:
        """The virtual path, and what is there."""
        text = "" if isinstance(path, int) else os.fsdecode(path)
        if not text:
            return None, None
        if not text.startswith("/"):
            base = posix.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else posix.getcwd()
            text = f"{base}/{text}"
        if text.startswith(self.files + "/"):  # told by a file object, or the working directory
            text = text[len(self.files) :]
        head, _, name = text.rpartition("/")
        if name in ("", ".", ".."):
            found = self._walk(text)
            entry = self.entry(found or "/")
        else:
            if head not in self._folders:
                self._folders[head] = self._walk(head)
            found = f"{self._folders[head]}/{name}"
            entry = self.entry(found)
            if follow and entry is not None and stat.S_ISLNK(entry[1].st_mode):
                found = self._walk(found)
                entry = self.entry(found or "/")
        slashed = f"{found}/"
        is_system = slashed.startswith(("/proc/", "/sys/", "/dev/")) and not slashed.startswith("/dev/shm/")
        if is_system or slashed.startswith(self._passing):
            return None, None
        return found or "/", entry

    def _walk(self, path: str, links: int = 0) -> str:
        current = ""
        for part in path.split("/"):
            if part in ("", "."):
                continue
            if part == "..":
                current = current.rpartition("/")[0]
                continue
            step = f"{current}/{part}"
            entry = None if step.startswith(_SYSTEM) else self.entry(step)
            if entry is not None and stat.S_ISLNK(entry[1].st_mode):
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = posix.readlink(entry[0])
                step = self._walk(target if target.startswith("/") else f"{current}/{target}", links + 1)
            current = step
        return current

    def entry(self, virtual: str) -> Entry | None:
        """The place and what it is; None where there is nothing, or no longer."""
        place = self.files + virtual
        if not posix.access(place, os.F_OK, follow_symlinks=False):
            if self._is_marked(virtual):
                return None
            place = virtual
        try:
            return place, posix.lstat(place)
        except OSError:
            return None

    def place(self, virtual: str) -> str:
        """Where to read it."""
        found = self.entry(virtual)
        return found[0] if found else refuse(errno.ENOENT, virtual)

    def names(self, virtual: str) -> list[str]:
        """What a folder holds."""
        place, what = self.entry(virtual) or refuse(errno.ENOENT, virtual)
        if not stat.S_ISDIR(what.st_mode):
            refuse(errno.ENOTDIR, virtual)
        here = posix.listdir(place)
        if place == virtual:
            written: list[str] = []
        else:
            written, here = here, posix.listdir(virtual) if stat.S_ISDIR(_mode(virtual)) else []
        inside = virtual.rstrip("/")
        return written + [n for n in here if n not in set(written) and not self._is_marked(f"{inside}/{n}")]

    def is_plain(self, virtual: str) -> bool:
        """Whether a folder is as it really is, so that the system can list it."""
        return not _mode(self.files + virtual) and not posix.listdir(self._gone)

    def own(self, virtual: str, keep: bool = True) -> str:
        """A place to write to. What is there is copied first; without `keep`, only its mode."""
        place, found = self.files + virtual, self.entry(virtual)
        if found is not None and found[0] == place:
            return place
        if found is None:
            self._make_parents(virtual, to_change=True)
            return place
        mode = found[1].st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            return virtual  # a pipe or a device is no file to protect
        self._make_parents(virtual)
        if stat.S_ISDIR(mode):
            self._make_folder(virtual, mode)
            return place
        new = f"{self._gone}/new-{os.getpid()}"
        if stat.S_ISLNK(mode):
            posix.symlink(posix.readlink(virtual), new)
        elif not posix.access(virtual, os.W_OK):
            refuse(errno.EACCES, virtual)
        else:
            _copy(virtual if keep else os.devnull, new, found[1])
        try:
            self._move(new, place)
        except FileExistsError:  # another process was first
            posix.unlink(new)
        return place

    def _make_parents(self, virtual: str, to_change: bool = False) -> None:
        parent = os.path.dirname(virtual)
        entry = self.entry(parent)
        if entry is None:
            refuse(errno.ENOENT, virtual)
        if not stat.S_ISDIR(entry[1].st_mode):
            refuse(errno.ENOTDIR, virtual)
        if to_change:
            self._check_change(virtual)
        if entry[0] == parent and parent != "/":
            self._make_parents(parent)
            self._make_folder(parent, entry[1].st_mode)

    def _check_change(self, virtual: str) -> None:
        """Whether the user might add or remove it in earnest."""
        parent = os.path.dirname(virtual)
        if _mode(parent) and not self._is_marked(parent) and not posix.access(parent, os.W_OK):
            refuse(errno.EACCES, virtual)

    def _make_folder(self, virtual: str, mode: int) -> None:
        try:
            posix.mkdir(self.files + virtual)
            posix.chmod(self.files + virtual, stat.S_IMODE(mode) | 0o700)
        except FileExistsError:
            pass

    def remove(self, virtual: str) -> None:
        """A file or a link."""
        place, what = self.entry(virtual) or refuse(errno.ENOENT, virtual)
        if stat.S_ISDIR(what.st_mode):
            refuse(errno.EISDIR, virtual)
        self._check_change(virtual)
        self._mark(virtual)
        if place != virtual:
            posix.unlink(place)
        self._folders.clear()

    def remove_folder(self, virtual: str) -> None:
        if self.names(virtual):
            refuse(errno.ENOTEMPTY, virtual)
        self._mark(virtual)
        if _mode(self.files + virtual):
            posix.rmdir(self.files + virtual)
        self._folders.clear()

    def rename(self, old: str, new: str) -> None:
        """Move a file, or a folder with all that is in it."""
        _, what = self.entry(old) or refuse(errno.ENOENT, old)
        there = self.entry(new)
        if old == new:
            return
        if there is not None and stat.S_ISDIR(there[1].st_mode):
            if not stat.S_ISDIR(what.st_mode):
                refuse(errno.EISDIR, new)
            self.remove_folder(new)
        elif there is not None and stat.S_ISDIR(what.st_mode):
            refuse(errno.ENOTDIR, new)
        self._own_all(old)
        self._make_parents(new, to_change=True)
        try:
            posix.rename(self.files + old, self.files + new)
        except OSError as error:
            if error.errno != errno.EXDEV or not stat.S_ISREG(what.st_mode):
                raise
            _copy(self.files + old, self.files + new, what)
            posix.unlink(self.files + old)
        self._mark_all(old)
        self._folders.clear()

    def _own_all(self, virtual: str) -> None:
        place = self.own(virtual)
        if stat.S_ISDIR(posix.lstat(place).st_mode):
            for name in self.names(virtual):
                self._own_all(f"{virtual}/{name}")

    def _move(self, new: str, place: str) -> None:
        """Never over what another process put there meanwhile."""
        try:
            posix.link(new, place, follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError:  # no hard links here, or none across folders
            if stat.S_ISLNK(_mode(new)):
                posix.symlink(posix.readlink(new), place)
            else:
                _copy(new, place, posix.lstat(new))
        posix.unlink(new)

    def _mark_all(self, virtual: str) -> None:
        self._mark(virtual)
        if stat.S_ISDIR(_mode(virtual)):
            for name in posix.listdir(virtual):
                self._mark_all(f"{virtual}/{name}")

    def _mark(self, virtual: str) -> None:
        posix.close(posix.open(self._marker(virtual), os.O_CREAT | os.O_WRONLY, 0o600))

    def _is_marked(self, virtual: str) -> bool:
        return posix.access(self._marker(virtual), os.F_OK)

    def _marker(self, virtual: str) -> str:
        return f"{self._gone}/{hashlib.blake2s(os.fsencode(virtual), digest_size=16).hexdigest()}"


def refuse(number: int, virtual: str) -> NoReturn:
    raise OSError(number, os.strerror(number), virtual)


def _mode(place: str) -> int:
    """0 where there is nothing."""
    try:
        return posix.lstat(place).st_mode
    except OSError:
        return 0


def _copy(source: str, target: str, like: os.stat_result) -> None:
    with _open(source, "rb") as read, _open(target, "wb") as write:
        shutil.copyfileobj(read, write, 1 << 20)
    posix.utime(target, ns=(like.st_atime_ns, like.st_mtime_ns))
    posix.chmod(target, stat.S_IMODE(like.st_mode))
