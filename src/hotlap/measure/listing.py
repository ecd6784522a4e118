"""What os.scandir gives, for a folder that lies in two places."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any


class ScannedEntry:
    """As os.DirEntry; asks again each time."""

    def __init__(self, folder: Any, name: Any) -> None:
        self.name, self.path = name, os.path.join(folder, name)

    def __fspath__(self) -> Any:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return os.lstat(self.path).st_ino

    def is_symlink(self) -> bool:
        return os.path.islink(self.path)

    def is_junction(self) -> bool:
        """Asked by `shutil.rmtree` since Python 3.12; only Windows has any."""
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path) and (follow_symlinks or not self.is_symlink())


class Scan:
    def __init__(self, entries: list[ScannedEntry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[ScannedEntry]:
        return self._entries

    def __next__(self) -> ScannedEntry:
        return next(self._entries)

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...
