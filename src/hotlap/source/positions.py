"""Lines, columns and character offsets of a text, counted as Python's own tokenizer counts them."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right

_LINE_END = re.compile(r"\r\n|\r|\n")


class Lines:
    """Where lines begin and end. `str.splitlines` would not do: it also breaks at form feeds and U+2028."""

    def __init__(self, text: str) -> None:
        self.text = text
        endings = list(_LINE_END.finditer(text))
        self._starts = [0, *(ending.end() for ending in endings)]
        self._ends = [*(ending.start() for ending in endings), len(text)]
        kinds = [ending.group() for ending in endings]
        self.newline = max(("\n", "\r\n", "\r"), key=kinds.count)

    def __len__(self) -> int:
        return len(self._starts)

    def start(self, line: int) -> int:
        return self._starts[line - 1]

    def end(self, line: int) -> int:
        """Where the line ends, before its line ending."""
        return self._ends[line - 1]

    def line(self, number: int) -> str:
        return self.text[self.start(number) : self.end(number)]

    def line_at(self, offset: int) -> int:
        return bisect_right(self._starts, offset)

    def offset(self, line: int, utf8_column: int) -> int:
        """`ast` counts columns in UTF-8 bytes; text is cut in characters."""
        text = self.line(line)
        if text.isascii():
            return self.start(line) + utf8_column
        return self.start(line) + len(text.encode()[:utf8_column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        place: ast.expr = node  # type: ignore[assignment]  # every node with a position has these four
        assert place.end_lineno is not None and place.end_col_offset is not None
        return (
            self.offset(place.lineno, place.col_offset),
            self.offset(place.end_lineno, place.end_col_offset),
        )

    def indentation(self, line: int) -> str:
        text = self.line(line)
        return text[: len(text) - len(text.lstrip(" \t\f"))]


def first_line(statement: ast.stmt) -> int:
    """A decorated definition begins at its first decorator."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])
