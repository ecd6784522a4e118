"""Names that keep something alive, and the statement of the script that adds to one."""

from __future__ import annotations

import ast
import linecache
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from hotlap.observe.whose import is_users

_FILES = 50  # of the script's, to look through for a line
_ADDS = {"append", "appendleft", "extend", "extendleft", "insert", "add", "setdefault", "update", "add_", "lerp_"}
_REDUCES = {"item", "detach", "float", "tolist", "numpy"}


class Holder(NamedTuple):
    """A name that keeps something: `losses`, `self.history`, `log["loss"]`, and where its code is to be looked for."""

    path: str
    scope: str | int  # a class, by name; a function, by its first line; 0 for the module
    words: tuple[tuple[str, Any], ...]  # ("name", x), ("attr", x), ("key", x) or ("nth", number), outermost first

    def inner(self, kind: str, word: Any) -> Holder:
        return self._replace(words=(*self.words, (kind, word)))

    def __str__(self) -> str:
        forms = {"name": "{}", "attr": ".{}", "key": "[{!r}]", "nth": "[...]"}
        return "".join(forms[kind].format(word) for kind, word in self.words).replace("'", '"')


class Site(NamedTuple):
    """A statement that adds to a holder. The best compares greatest."""

    adds: bool  # rather than only makes it
    whole: bool  # adds the tensor itself, not a number out of it
    in_loop: bool
    before: int  # minus the line: the first of equals
    path: str
    text: str  # the holder as the script spells it
    word: str  # what is added, where that is a name

    @property
    def line(self) -> int:
        return -self.before


def adding_site(holders: list[Holder]) -> Site:
    """Where its own function or class adds to a holder, else its file, else any file of the script. A place where it
    is only made is the last resort."""
    found: list[Site] = []
    for holder in holders:
        tree = _tree(holder.path)
        scopes = [node for node in ast.walk(tree) if holder.scope in (_first_line(node), getattr(node, "name", None))]
        for scope in [*(scopes if holder.scope else ()), tree]:
            found += _sites(scope, holder)
            if any(site.adds for site in found):
                return max(found)
    attributes = [holder for holder in holders if holder.words[-1][0] == "attr"]
    modules = [vars(module) for module in sys.modules.copy().values() if type(module) is types.ModuleType]
    paths = {names.get("__file__") for names in modules if attributes}
    for path in sorted(path for path in paths if isinstance(path, str) and is_users(path))[:_FILES]:
        elsewhere = _sites(_tree(path), attributes[0]._replace(path=path))
        found += [site for site in elsewhere if site.adds]
    return max(found, default=Site(False, False, False, 0, "", str(holders[0]), ""))


def _tree(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _first_line(node: ast.AST) -> int:
    """As a code object counts: decorators belong to a function."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return -1
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _sites(node: ast.AST, holder: Holder, in_loop: bool = False) -> Iterator[Site]:
    in_loop = in_loop or isinstance(node, (ast.For, ast.AsyncFor, ast.While))
    line = getattr(node, "lineno", 0)
    targets: list[ast.expr] = []
    value: Any = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDS and node.args:
        targets, value = [node.func.value], node.args[-1]
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets, value = [node.target], node.value
    elif isinstance(node, ast.Assign):
        targets, value = [part for t in node.targets for part in getattr(t, "elts", [t])], node.value
    for target in targets if value is not None else ():
        rest = _beyond(target, holder)
        if rest is None:
            continue
        is_assigned = isinstance(node, (ast.Assign, ast.AnnAssign))
        inside = list(ast.walk(value))
        adds = not is_assigned or rest > 0 or any(_beyond(part, holder) is not None for part in inside)
        names = {getattr(part, "attr", getattr(part, "id", None)) for part in inside}
        last = value.right if isinstance(value, ast.BinOp) and is_assigned else value
        word = last.id if isinstance(last, ast.Name) else ""
        text = ast.unparse(target).replace("'", '"')
        yield Site(adds, not names & _REDUCES, in_loop, -line, holder.path, text, word)
    for child in ast.iter_child_nodes(node):
        yield from _sites(child, holder, in_loop)


def _beyond(node: ast.AST, holder: Holder) -> int | None:
    """How many subscripts an expression has beyond the holder, or None where it is another thing."""
    keys: list[Any] = []
    while True:
        if isinstance(node, ast.Subscript):
            keys.insert(0, node.slice)
            node = node.value
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("setdefault", "get") and node.args:
            keys.insert(0, node.args[0])
            node = node.func.value  # type: ignore[attr-defined]
        else:
            break
    words = list(holder.words)
    asked: list[tuple[str, Any]] = []
    while words[-1][0] in ("key", "nth"):
        asked.insert(0, words.pop())
    kind, name = words[-1]
    spelled = getattr(node, "id", None) if kind == "name" else None
    if isinstance(node, ast.Attribute) and (kind == "attr" or holder.scope == 0):
        spelled = node.attr
    if spelled != name or len(keys) < len(asked):
        return None
    for key, (how, word) in zip(keys, asked, strict=False):
        if how == "key" and isinstance(key, ast.Constant) and key.value != word:
            return None
    return len(keys) - len(asked)
