"""Notebooks as one text: all code cells one after the other, so that names imported in one are known in the next."""

from __future__ import annotations

import ast
import bisect
import json
import re
import warnings
from dataclasses import dataclass

from hotlap.errors import HotlapError

SUFFIX = ".ipynb"
_MAGIC = re.compile(r"^\s*(%|!|\?|[\w.]+\?{1,2}\s*$)|^\s*[\w.,\s]+=\s*[%!]")
_CELL_MAGIC = re.compile(r"\A\s*%%(\w+)")
_PYTHON_CELLS = {"time", "timeit", "capture", "prun"}  # magics whose cell is still Python


@dataclass(frozen=True)
class Notebook:
    """`text` is plain Python; `first_lines[i]` is where the cell `numbers[i]` begins in it."""

    text: str
    first_lines: list[int]
    numbers: list[int]

    def place(self, line: int) -> tuple[int, int]:
        """The cell (counted from 1, all kinds of cell) and the line in it that a line of the text stands for."""
        index = bisect.bisect_right(self.first_lines, line) - 1
        return self.numbers[index], line - self.first_lines[index] + 1


def read_notebook(data: bytes, path: str, troubles: list[str]) -> Notebook:
    """The code of a notebook; a cell that is no Python is said and left blank."""
    try:
        book = json.loads(data.decode("utf-8-sig"))
        cells = [(cell["cell_type"], cell["source"]) for cell in book["cells"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HotlapError(f"{path}: not a notebook of version 4 ({type(error).__name__}: {error}).") from None
    pieces: list[str] = []
    firsts: list[int] = []
    numbers: list[int] = []
    line = 1
    for number, (kind, written) in enumerate(cells, 1):
        if kind != "code":
            continue
        text = _blanked("".join(written) if isinstance(written, list) else str(written))
        wrong = _wrong(text)
        if wrong is not None:
            troubles.append(f"{path}:cell {number}:line {wrong.lineno or 1}: not valid Python ({wrong.msg}).")
            text = "\n" * text.count("\n")
        firsts.append(line)
        numbers.append(number)
        pieces.append(text + "\n")
        line += text.count("\n") + 1
    return Notebook("".join(pieces), firsts or [1], numbers or [1])


def _blanked(text: str) -> str:
    """Magics and shell lines become `pass`, so that no block is left empty; lines stay where they are."""
    text = re.sub(r"\r\n?", "\n", text)
    if _wrong(text) is None:
        return text  # a line that begins with `%` may well continue the one above
    magic = _CELL_MAGIC.match(text)
    if magic and magic[1] not in _PYTHON_CELLS:
        return "\n" * text.count("\n")
    return "\n".join(_without_magic(line) for line in text.split("\n"))


def _without_magic(line: str) -> str:
    if not _MAGIC.match(line):
        return line
    return line[: len(line) - len(line.lstrip())] + "pass"


def _wrong(text: str) -> SyntaxError | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError) as error:
        return SyntaxError(str(error))
    return None
