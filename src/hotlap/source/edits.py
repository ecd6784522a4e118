"""Builders of edits: each takes nodes of a parsed file and returns the spans of text to replace.

Only the characters named by the edits change, so comments, formatting and line endings stay as they were.
"""

from __future__ import annotations

import ast
import io
import tokenize
from typing import TYPE_CHECKING

from hotlap.source.calls import Call
from hotlap.source.positions import first_line
from hotlap.source.spans import Edit, OverlappingEdits, apply_edits, line_map

if TYPE_CHECKING:
    from hotlap.source.module import Source

__all__ = [
    "Edit",
    "OverlappingEdits",
    "add_import",
    "apply_edits",
    "can_wrap",
    "indentation_unit",
    "insert_after",
    "insert_argument",
    "insert_before",
    "line_map",
    "move_before",
    "replace_argument",
    "replace_node",
    "wrap_statements",
]


def replace_node(source: Source, node: ast.AST, text: str) -> list[Edit]:
    """Puts other text in the place of a node. Parentheses round it stay."""
    return [Edit(*source.lines.span(node), text)]


def replace_argument(call: Call, keyword: str, text: str, position: int | None = None) -> list[Edit]:
    """Puts another value in the place of one that is surely given, be it in the call or in its `**kwargs`."""
    given = call.setting(keyword, position)
    if not isinstance(given, ast.expr):
        raise ValueError(f"{keyword} is not surely given to {call.name}")
    return replace_node(call.source, given, text)


def insert_argument(call: Call | ast.Call, *arguments: str, source: Source | None = None) -> list[Edit]:
    """Adds arguments at the end of a call, on lines of their own where that is how the call is written."""
    node, source = (call.node, call.source) if isinstance(call, Call) else (call, source)
    assert source is not None, "a bare node needs its source"
    lines, text = source.lines, source.text
    _, end = lines.span(node)
    given = [*node.args, *node.keywords]
    if not given:
        opening = _after_brackets(text, lines.span(node.func)[1], end)[0]
        return [Edit(opening, opening, ", ".join(arguments))]
    last = max(given, key=lambda argument: lines.span(argument)[1])
    start, last_end = lines.span(last)
    if isinstance(last, ast.GeneratorExp) and last_end == end:
        # The call's own brackets are the generator's: give it a pair of its own.
        return [Edit(start + 1, start + 1, "("), Edit(end - 1, end - 1, ")" + "".join(f", {one}" for one in arguments))]
    last_end, comma = _after_brackets(text, last_end, end - 1)
    row = lines.line_at(start)
    before = text[lines.start(row) : start]
    stands_alone = not before.strip(" \t\f(") and row > lines.line_at(lines.span(node.func)[1])
    if not stands_alone:
        return [Edit(last_end, last_end, "".join(f", {one}" for one in arguments))]
    indent = lines.newline + lines.indentation(row)
    added = f",{indent}".join(["", *arguments])[1:]
    line_end = lines.end(lines.line_at(comma if comma is not None else last_end))
    if comma is not None:
        place = line_end if line_end < end else comma + 1
        return [Edit(place, place, f"{added},")]
    if line_end >= end or line_end == last_end:  # the bracket closes here, or nothing more stands on the line
        return [Edit(last_end, last_end, f",{added}")]
    return [Edit(last_end, last_end, ","), Edit(line_end, line_end, added)]  # a comment stands between the two


def _after_brackets(text: str, start: int, end: int) -> tuple[int, int | None]:
    """From the end of an expression: where the brackets round it close (or a call's open), and the comma after it."""
    closed, comma = start, None
    place = start
    while place < end:
        character = text[place]
        if character == "#":
            while place < end and text[place] not in "\r\n":
                place += 1
            continue
        if character == "(":
            return place + 1, None
        if character == ")":
            closed = place + 1
        elif character == ",":
            comma = place
        place += 1
    return closed, comma


def insert_before(source: Source, statement: ast.stmt, text: str) -> list[Edit]:
    """Adds statements before one, at its indentation; on the same line where it shares its line."""
    lines, row = source.lines, first_line(statement)
    start = lines.offset(statement.lineno, statement.col_offset)
    if row == statement.lineno and text_before(source, statement).strip():
        return [Edit(start, start, f"{text}; ")]
    indent = lines.indentation(row)
    added = "".join(f"{indent}{line}{lines.newline}" for line in text.split("\n"))
    return [Edit(lines.start(row), lines.start(row), added)]


def insert_after(source: Source, statement: ast.stmt, text: str) -> list[Edit]:
    """Adds statements after one, at its indentation; on the same line where it shares its line."""
    lines, end = source.lines, source.lines.span(statement)[1]
    row_end = lines.end(lines.line_at(end))
    rest = source.text[end:row_end].lstrip()
    if rest.startswith(";") or text_before(source, statement).strip():
        return [Edit(end, end, f"; {text}")]
    indent = lines.newline + lines.indentation(first_line(statement))
    return [Edit(row_end, row_end, "".join(indent + line for line in text.split("\n")))]


def move_before(source: Source, moved: list[ast.stmt], place: ast.stmt) -> list[Edit]:
    """Puts statements, each on lines of its own, before an earlier one of the same block."""
    lines, start = source.lines, source.lines.start(first_line(place))
    edits = []
    for one in moved:
        row, last = first_line(one), lines.line_at(lines.span(one)[1])
        begin, end = lines.start(row), lines.start(last + 1) if last < len(lines) else len(source.text)
        text = source.text[begin:end]
        edits.append(Edit(start, start, text if text.endswith(("\n", "\r")) else text + lines.newline, stood_at=row))
        edits.append(Edit(begin, end, ""))
    return edits


def text_before(source: Source, statement: ast.stmt) -> str:
    start = source.lines.offset(statement.lineno, statement.col_offset)
    before = source.text[source.lines.start(statement.lineno) : start]
    return "" if getattr(statement, "decorator_list", None) else before


def can_wrap(source: Source, first: ast.stmt, last: ast.stmt) -> bool:
    """Whether statements stand on lines of their own, so that they can be indented."""
    lines, end = source.lines, source.lines.span(last)[1]
    rest = source.text[end : lines.end(lines.line_at(end))].strip()
    return not text_before(source, first).strip() and (not rest or rest.startswith("#"))


def wrap_statements(source: Source, first: ast.stmt, last: ast.stmt, header: str) -> list[Edit]:
    """Puts `header` (as `with x:`) above the statements of one block and indents them below it."""
    if not can_wrap(source, first, last):
        raise ValueError("statements that share a line cannot be indented")
    lines, row = source.lines, first_line(first)
    indent, unit = lines.indentation(row), indentation_unit(source, first)
    edits = [Edit(lines.start(row), lines.start(row), f"{indent}{header}{lines.newline}")]
    inside_strings = _rows_inside_strings(source)
    for line in range(row, lines.line_at(lines.span(last)[1]) + 1):
        content = lines.line(line)
        if content.strip() and line not in inside_strings:
            place = lines.start(line) + (len(indent) if content.startswith(indent) else 0)
            edits.append(Edit(place, place, unit))
    return edits


def indentation_unit(source: Source, statement: ast.stmt) -> str:
    """One step of indentation as this block has it, else as the file has it, else four spaces."""
    indent = source.lines.indentation(first_line(statement))
    above = source.enclosing(statement, ast.stmt)
    if above is not None:
        outer = source.lines.indentation(first_line(above))
        if len(outer) < len(indent):
            return indent[len(outer) :]
    for node in ast.walk(source.tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.stmt) and isinstance(body, list) and body and isinstance(body[0], ast.stmt):
            inner = source.lines.indentation(first_line(body[0]))
            outer = source.lines.indentation(first_line(node))
            if inner.startswith(outer) and inner != outer and body[0].lineno > node.lineno:
                return inner[len(outer) :]
    return "    "


def _rows_inside_strings(source: Source) -> set[int]:
    """Lines that begin inside a string: spaces put there would change the string."""
    rows: set[int] = set()
    opened: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(source.text, newline="").readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            rows.update(range(token.start[0] + 1, token.end[0] + 1))
        elif kind in ("FSTRING_START", "TSTRING_START"):
            opened.append(token.start[0])
        elif kind in ("FSTRING_END", "TSTRING_END"):
            rows.update(range(opened.pop() + 1, token.end[0] + 1))
    return rows


def add_import(source: Source, statement: str) -> list[Edit]:
    """Adds an import below the first imports of the file: what of it is not there already."""
    wanted = ast.parse(statement).body[0]
    assert isinstance(wanted, ast.Import | ast.ImportFrom)
    body, lines = source.tree.body, source.lines
    missing = _imports(wanted).difference(*map(_imports, body))
    if not missing:
        return []
    if isinstance(wanted, ast.ImportFrom):
        names = [one for one in wanted.names if any(one.name == name for _, name, _ in missing)]
        statement = ast.unparse(ast.ImportFrom(wanted.module, names, wanted.level))
    place = 0 if ast.get_docstring(source.tree, clean=False) is None else 1
    while place < len(body) and isinstance(body[place], ast.Import | ast.ImportFrom):
        place += 1
    if place == 0:
        start = lines.start(first_line(body[0])) if body else len(source.text)
        return [Edit(start, start, f"{statement}{lines.newline}{lines.newline}", imports=frozenset(missing))]
    after = body[place - 1]
    row_end = lines.end(lines.line_at(lines.span(after)[1]))
    gap = lines.newline if isinstance(after, ast.Import | ast.ImportFrom) else lines.newline * 2
    if isinstance(after, ast.ImportFrom) and after.module == "__future__":
        gap = lines.newline * 2
    return [Edit(row_end, row_end, f"{gap}{statement}", imports=frozenset(missing))]


def _imports(statement: ast.stmt) -> set[tuple[str, str, str]]:
    """What an import statement binds, as (module, name, bound to)."""
    if isinstance(statement, ast.Import):
        # `import torch.nn` binds `torch` as well as `import torch` does.
        whole = {(one.name, "", one.asname or one.name) for one in statement.names}
        roots = {one.name.partition(".")[0] for one in statement.names if not one.asname}
        return whole | {(root, "", root) for root in roots}
    if isinstance(statement, ast.ImportFrom):
        module = "." * statement.level + (statement.module or "")
        return {(module, one.name, one.asname or one.name) for one in statement.names}
    return set()
