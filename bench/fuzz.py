"""Every Python file of some folders (the standard library unless others are named) through `check` and `fix`.

Nothing may crash, and no rewrite may fail to parse or change at a second time. Files are made to look like training
code by an import at their end, so that none is passed over. Prints what failed; exit code 1 when something did.

    python bench/fuzz.py [--every N] [FOLDER...]
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import sysconfig
import time
from collections.abc import Iterator

from hotlap.catalogue import TECHNIQUES
from hotlap.errors import HotlapError
from hotlap.source.fix import fix_source
from hotlap.source.module import Source, decoded
from hotlap.source.project import Project

LOOP = """
import torch
from torch.utils.data import DataLoader
for _fuzz in DataLoader(_fuzz):
    _fuzz(_fuzz).backward(); torch.optim.Adam(_fuzz).step()
"""


def python_files(folders: list[str]) -> Iterator[str]:
    for folder in folders:
        for place, _, names in sorted(os.walk(folder)):
            if "site-packages" in place[len(folder) :]:
                continue
            yield from (os.path.join(place, name) for name in sorted(names) if name.endswith(".py"))


def failures(path: str) -> Iterator[str]:
    """What went wrong with one file; a file that is no Python must be refused in one sentence, and is fine."""
    try:
        with open(path, "rb") as file:
            text = decoded(file.read(), path)
        source = Source(text if "torch" in text else text + LOOP, path, Project())
    except HotlapError as refusal:
        if "\n" in str(refusal):
            yield f"refused in more than one sentence: {refusal}"
        return
    for technique in (one for one in TECHNIQUES if "spot" in one.verbs):
        try:
            list(technique.spot(source))
        except Exception as error:
            yield f"{technique.id} crashed: {type(error).__name__}: {error}"
            return
    choices = [(one, None) for one in TECHNIQUES]
    try:
        new = fix_source(source, choices, unsafe=True)
        ast.parse(new)
        if fix_source(Source(new, path, Project()), choices, unsafe=True) != new:
            yield "a second fix changed the first"
    except HotlapError:
        return  # said in one sentence by a technique that cannot write here
    except Exception as error:
        yield f"rewriting crashed: {type(error).__name__}: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folders", nargs="*", default=[sysconfig.get_path("stdlib")])
    parser.add_argument("--every", type=int, default=1, help="only every so many files")
    given = parser.parse_args()
    started, count, bad = time.perf_counter(), 0, 0
    for path in list(python_files(given.folders))[:: given.every]:
        count += 1
        for failure in failures(path):
            bad += 1
            print(f"{path}: {failure}", flush=True)
    print(f"{count} files, {bad} failures, {time.perf_counter() - started:.0f} s")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
