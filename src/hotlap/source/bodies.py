"""What a function does itself, in the order of the text, and the small questions asked of its statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from hotlap.source.edits import Edit, can_wrap
from hotlap.source.loops import Function
from hotlap.source.module import Source
from hotlap.source.names import spelling
from hotlap.source.positions import first_line

Body = Function | ast.Module
_GUARD = ast.dump(ast.parse("__name__ == '__main__'", mode="eval").body)


def method(node: ast.AST | None) -> str | None:
    """`step` for `optimizer.step(...)`; None for what is no call of a method."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None


def receiver(call: ast.Call) -> ast.expr:
    """What a method is called on: `optimizer` of `optimizer.step()`."""
    return call.func.value if isinstance(call.func, ast.Attribute) else call.func


def body_of(source: Source, node: ast.AST) -> Body:
    """The function, or else the file, that a node runs in."""
    return source.enclosing(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or source.tree


def own_nodes(source: Source, above: ast.AST) -> Iterator[ast.AST]:
    """Everything below a node that runs with it: not what is inside functions and classes defined there."""
    for child in ast.iter_child_nodes(above):
        yield child
        if not isinstance(child, Function | ast.ClassDef | ast.Lambda):
            yield from own_nodes(source, child)


def own_calls(source: Source, above: ast.AST) -> list[ast.Call]:
    calls = [node for node in own_nodes(source, above) if isinstance(node, ast.Call)]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def is_main_guard(node: ast.AST) -> bool:
    """`if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and ast.dump(node.test) == _GUARD


def is_conditional(source: Source, node: ast.AST) -> bool:
    """Whether a node stands under an `if` of its own file: then somebody chose when it runs."""
    above = [one for one in source.ancestors(node) if isinstance(one, ast.If | ast.IfExp | ast.Try | ast.Match)]
    return not all(map(is_main_guard, above))


def within(source: Source, node: ast.AST, block: list[ast.stmt]) -> int | None:
    """Which statement of a block a node is, or lies in."""
    chain = [node, *source.ancestors(node)]
    return next((place for place, statement in enumerate(block) if statement in chain), None)


def remove_statement(source: Source, statement: ast.stmt) -> list[Edit]:
    """Takes a statement away with its line; `pass` stays where it shares that line or was alone in its block."""
    lines, (start, end) = source.lines, source.lines.span(statement)
    if not can_wrap(source, statement, statement) or len(source.block(statement)) == 1:
        return [Edit(start, end, "pass")]
    row, last = first_line(statement), lines.line_at(end)
    after = lines.start(last + 1) if last < len(lines) else len(source.text)
    return [Edit(lines.start(row), after, "")]


@lru_cache(maxsize=2)
def attributes(source: Source) -> dict[ast.ClassDef, dict[str, list[ast.expr]]]:
    """What each class of the file gives to `self.name`, by that name; read once, since large classes have thousands."""
    found: dict[ast.ClassDef, dict[str, list[ast.expr]]] = {}
    for node in source.names.parents:
        if isinstance(node, ast.Assign):
            for name in map(spelling, node.targets):
                owner = source.enclosing(node, ast.ClassDef) if name and name.startswith("self.") else None
                if owner is not None and name is not None:
                    found.setdefault(owner, {}).setdefault(name, []).append(node.value)
    return found


def same(one: ast.AST, other: ast.AST) -> bool:
    """Whether two expressions are written alike."""
    return ast.dump(one) == ast.dump(other)


def constant(node: object) -> object:
    """The value of a literal; the node itself where it is none."""
    return node.value if isinstance(node, ast.Constant) else node


def in_brackets(source: Source, node: ast.expr) -> str:
    """The text of an expression, bracketed unless it binds tighter than any operator."""
    text = source.segment(node)
    tight = ast.Name | ast.Attribute | ast.Constant | ast.Call | ast.Subscript
    return text if isinstance(node, tight) else f"({text})"
