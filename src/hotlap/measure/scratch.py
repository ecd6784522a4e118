"""Temporary folders that carry the number of the process they belong to: what one that was killed outright could not
remove, a later tuning does."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

PREFIX = "hotlap-trials-"


def make() -> str:
    return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")


@contextmanager
def folder() -> Iterator[str]:
    path = make()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sweep() -> None:
    for path in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{PREFIX}*")):
        owner = os.path.basename(path)[len(PREFIX) :].split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(path, ignore_errors=True)
