"""What `hotlap fix --unsafe` writes into public repositories, held against the review in bench/labels/fixes.md.

The repositories are copied and fixed there. Every fixed file must parse, and start as it did before: with `--help`
where it reads its command line, else by an import; same exit code, same output. Each technique that writes into a file
must have been reviewed in that file, and the digest of all diffs says whether any line changed since the review.
Prints what is otherwise; exit code 1 when something is.

    python bench/fixes.py --public FOLDER [--diffs FILE]
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import sys
import tempfile
import warnings
from pathlib import Path

from hotlap.catalogue import TECHNIQUES
from hotlap.source.fix import fix_files, unified_diff
from hotlap.technique import Choice

LIST = Path(__file__).resolve().parent / "labels" / "fixes.md"
REPOSITORIES = ("Pytorch-UNet", "examples", "minGPT", "pytorch-cifar")
MOST_SECONDS = 60


def reviewed() -> tuple[set[tuple[str, str]], dict[str, str]]:
    """Each (file, technique) that was read and accepted, and the digest of each repository's diff at that time."""
    text = LIST.read_text()
    rows = re.findall(r"^\| ([^|]+?):\d+ \| ([a-z0-9-]+) \|[^|]+\| accept \|", text, re.MULTILINE)
    return set(rows), dict(re.findall(r"^\| `([^`]+)` \| `([0-9a-f]{16})` \|", text, re.MULTILINE))


def is_installed(technique: object) -> bool:
    package = getattr(getattr(technique, "needs", None), "package", None)
    return package != "einops"  # written only where it is installed: the review is of a machine without it


def ending(path: Path) -> tuple[int | None, str]:
    """How a file starts: the exit code, and what it said, in a process of its own."""
    with tempfile.TemporaryFile("w+") as said:
        process = multiprocessing.get_context("fork").Process(target=start, args=(path, said.fileno()))
        process.start()
        process.join(MOST_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        said.seek(0)
        return process.exitcode, re.sub(r"line \d+|0x[0-9a-f]+", "...", last_line(said.read()))


def last_line(text: str) -> str:
    """All of a help text; of an error only what it says, since a traceback quotes the lines that changed."""
    return text.rstrip().rsplit("\n", 1)[-1] if "Traceback" in text else text


def start(path: Path, handle: int) -> None:
    signal.alarm(MOST_SECONDS)
    for stream in (0, 1, 2):
        os.dup2(handle, stream)
    text = path.read_text()
    takes_options = "argparse" in text or "fire.Fire" in text
    os.chdir(path.parent)
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path.name), "--help"]
    warnings.simplefilter("ignore")
    runpy.run_path(path.name, run_name="__main__" if takes_options else "imported")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--public", type=Path, required=True, help="the folder with the repositories in it")
    parser.add_argument("--diffs", type=Path, help="also write all diffs to this file")
    given = parser.parse_args()
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401  # once, for all that start
    accepted, digests = reviewed()
    choices = [Choice(one, dict(one.default)) for one in TECHNIQUES if is_installed(one)]
    wrong: list[str] = []
    written: set[tuple[str, str]] = set()
    started = files = 0
    with tempfile.TemporaryDirectory(prefix="hotlap-fixes-") as place:
        for name in REPOSITORIES:
            before, after = (Path(place, kind, name) for kind in ("before", "after"))
            for copy in (before, after):
                shutil.copytree(given.public / name, copy, ignore=shutil.ignore_patterns(".git"))
            diffs = []
            for source, result in list(fix_files([str(after)], lambda _: choices, True, wrong)):
                if result.text == source.text:
                    continue
                files += 1
                path = Path(source.path).relative_to(after)
                written |= {(f"{name}/{path}", technique) for technique in result.techniques}
                diffs.append(unified_diff(source.text, result.text, f"{name}/{path}"))
                ast.parse(result.text)
                (after / path).write_text(result.text)
            for path in [Path(re.search(r"^\+\+\+ b/[^/]+/(.+)$", one, re.MULTILINE)[1]) for one in diffs]:  # type: ignore[index]
                old, new = ending(before / path), ending(after / path)
                started += new[0] == 0
                if (old[0], old[1].replace(str(before), "")) != (new[0], new[1].replace(str(after), "")):
                    wrong.append(f"{name}/{path} started with {old} before and with {new} after")
            text = "".join(diffs)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            print(f"{name}: {len(diffs)} files, digest {digest}", flush=True)
            if digests.get(name) != digest:
                wrong.append(f"{name}: the diff is not the one that was reviewed ({digests.get(name)}): read it again")
            if given.diffs:
                with given.diffs.open("a") as file:
                    file.write(text)
    wrong += [f"{path}: {technique} was written, and never reviewed" for path, technique in sorted(written - accepted)]
    wrong += [f"{path}: {technique} is no longer written" for path, technique in sorted(accepted - written)]
    print("\n".join([*wrong, f"{files} files fixed, all of them parse, {started} start; {len(wrong)} complaints"]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
