"""Python that nobody wrote for us through `check` and `fix`: every file of some folders (the standard library unless
others are named), or so many made-up variations of training code.

Nothing may crash. No rewrite may fail to parse, change at a second time, lose a comment or bring in another line
ending. Files are made to look like training code by an import at their end, so that none is passed over. Prints what
failed; exit code 1 when something did.

    python bench/fuzz.py [--every N] [FOLDER...]
    python bench/fuzz.py --variations N [--seed S]
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import random
import re
import sys
import sysconfig
import time
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import variations

from hotlap.catalogue import TECHNIQUES
from hotlap.errors import HotlapError
from hotlap.source.fix import rewritten
from hotlap.source.module import Source
from hotlap.source.parsing import decoded
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
    """What went wrong with one file."""
    try:
        with open(path, "rb") as file:
            text = decoded(file.read(), path)
    except HotlapError as refusal:
        yield from in_one_sentence(refusal)
        return
    yield from faults(text if "torch" in text else text + LOOP, path)


def in_one_sentence(refusal: HotlapError) -> Iterator[str]:
    """What is no Python must be refused in one sentence, and is fine."""
    if "\n" in str(refusal):
        yield f"refused in more than one sentence: {refusal}"


def faults(text: str, path: str = "made.py") -> Iterator[str]:
    """What went wrong with one text: every technique, unsafe and doubtful places included."""
    try:
        source = Source(text, path, Project())
    except HotlapError as refusal:
        yield from in_one_sentence(refusal)
        return
    for technique in (one for one in TECHNIQUES if "spot" in one.verbs):
        try:
            list(technique.spot(source))
        except Exception as error:
            yield f"{technique.id} crashed: {type(error).__name__}: {error}"
            return
    try:
        new = fixed(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(new)
        if fixed(Source(new, path, Project())) != new:
            yield "a second fix changed the first"
    except HotlapError:
        return  # said in one sentence by a technique that cannot write here
    except Exception as error:
        yield f"rewriting crashed: {type(error).__name__}: {error}"
        return
    lost = comments(text) - comments(new)
    if lost:
        yield f"comments were lost: {sorted(lost)}"
    if endings(new) - endings(text) and endings(text):
        yield f"line endings {endings(text)!r} became {endings(new)!r}"


def fixed(source: Source) -> str:
    return rewritten(source, [(one, None) for one in TECHNIQUES], unsafe=True, doubtful=True).text


def comments(text: str) -> Counter[str]:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text, newline="").readline))
    except (tokenize.TokenError, SyntaxError):  # stricter in places than Python itself
        return Counter()
    return Counter(token.string.rstrip() for token in tokens if token.type == tokenize.COMMENT)


def endings(text: str) -> set[str]:
    return set(re.findall(r"\r\n|\n|\r", text))


def made(number: int) -> str:
    """The variation of that number, always the same."""
    rng = random.Random(number)
    return variations.program(rng) if number % 2 else variations.mutated(rng, variations.fixtures())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("folders", nargs="*", default=[sysconfig.get_path("stdlib")])
    parser.add_argument("--every", type=int, default=1, help="only every so many files")
    parser.add_argument("--variations", type=int, default=0, help="so many made-up programs instead of files")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first variation")
    given = parser.parse_args()
    started, bad = time.perf_counter(), 0
    numbers = range(given.seed, given.seed + given.variations)
    paths = [] if numbers else list(python_files(given.folders))[:: given.every]
    tried = [(f"variation {one}", faults(made(one))) for one in numbers] or [(one, failures(one)) for one in paths]
    for name, found in tried:
        for failure in found:
            bad += 1
            print(f"{name}: {failure}", flush=True)
    print(f"{len(tried)} {'variations' if numbers else 'files'}, {bad} failures, {time.perf_counter() - started:.0f} s")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
