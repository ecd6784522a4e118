"""One file of source, read and parsed once: its text, its tree, and the questions techniques ask of it."""

from __future__ import annotations

import ast
import io
import os
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

from hotlap.errors import HotlapError
from hotlap.source import callers, gates, loops, values
from hotlap.source.calls import Call
from hotlap.source.names import Binding, Definition, Names
from hotlap.source.parsing import decoded, parsed
from hotlap.source.positions import Lines
from hotlap.source.project import Defined, Project

if TYPE_CHECKING:
    from hotlap.source.gates import Often
    from hotlap.source.loops import Function, Loop
    from hotlap.source.values import Known

Fix = Literal["safe", "unsafe"] | None
Severity = Literal["speed", "memory", "correctness"]
Kind = TypeVar("Kind", bound=ast.AST)

# The nodes that hold an identifier as plain text, and where.
_IDENTIFYING: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Attribute: ("attr",),
    ast.keyword: ("arg",),
    ast.arg: ("arg",),
    ast.alias: ("name", "asname"),
    ast.ImportFrom: ("module",),
    ast.FunctionDef: ("name",),
    ast.AsyncFunctionDef: ("name",),
    ast.ClassDef: ("name",),
}
_IGNORE = re.compile(r"#\s*hotlap:\s*ignore\b(?:\s*\[([^\]]*)\])?")


@dataclass(frozen=True, eq=False)
class Site:
    """A place in source that lacks a technique. Line and column count from 1. `doubtful`: likely, but not sure, and
    withheld unless asked for. `severity`: what it costs; `correctness` where the training itself suffers."""

    source: Source
    node: ast.AST
    line: int
    column: int
    message: str
    fix: Fix
    doubtful: bool = False
    severity: Severity = "speed"


class Source:
    """A Python file. Its text is never changed: edits are made beside it and applied to a copy."""

    def __init__(self, text: str, path: str | os.PathLike[str] = "<text>", project: Project | None = None) -> None:
        self.text = text.removeprefix("\ufeff")
        self.path = os.fspath(path)
        self._project = project
        self.tree = parsed(self.text, self.path)
        self.lines = Lines(self.text)

    @classmethod
    def read(cls, path: str | os.PathLike[str], project: Project | None = None) -> Source:
        """Reads a file in the encoding it declares, line endings as they are."""
        path = os.fspath(path)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise HotlapError(f"{path} cannot be read: {error.strerror or error}.") from error
        return cls(decoded(data, path), path, project)

    @property
    def project(self) -> Project | None:
        """The files beside this one; none for a text that is no file."""
        if self._project is None and os.path.isfile(self.path):
            self._project = Project()
        return self._project

    # Names and calls

    @cached_property
    def names(self) -> Names:
        return Names(self.tree)

    def name_of(self, node: ast.AST) -> str | None:
        """The qualified dotted name of an expression, through any import or alias; None when unsure or shadowed."""
        return self.names.name_of(node)

    def calls(self, *qualified_names: str) -> Iterator[Call]:
        """Calls of the named functions, in the order of the text."""
        wanted = [call for name in qualified_names for call in self._calls.get(name, ())]
        return iter(sorted(wanted, key=lambda call: (call.node.lineno, call.node.col_offset)))

    def method_calls(self, *methods: str) -> Iterator[ast.Call]:
        """Calls `x.method(...)` by the method's name alone, whatever `x` is."""
        return (
            node for node in self.names.call_nodes if isinstance(node.func, ast.Attribute) and node.func.attr in methods
        )

    def definition(self, node: ast.AST) -> Definition | None:
        """The class or function of this file that a name, or `self.method`, surely stands for."""
        if isinstance(node, ast.Name):
            bindings = self.bindings(node)
            return bindings[0].definition if len(bindings) == 1 else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            owner = self.enclosing(node, ast.ClassDef)
            methods = [one for one in owner.body if isinstance(one, ast.FunctionDef)] if owner else []
            return next((method for method in methods if method.name == node.attr), None)
        return None

    def resolve(self, node: ast.AST, hops: int = 0) -> Defined | None:
        """As `definition`, also in the other files of the project and for methods of objects built in this file."""
        own = self.definition(node)
        if own is not None:
            return Defined(self, own)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            built = self.value_of(node.value)
            kind = self.resolve(built.func, hops + 1) if isinstance(built, ast.Call) and hops < 4 else None
            if kind is not None and isinstance(kind.node, ast.ClassDef):
                methods = [one for one in kind.node.body if isinstance(one, ast.FunctionDef) and one.name == node.attr]
                return Defined(kind.source, methods[0]) if len(methods) == 1 else None
        name = self.name_of(node)
        return self.project.find(self, name) if name and self.project is not None else None

    def callers(self, function: Function) -> list[tuple[Source, ast.Call]]:
        """The calls of a function or method: here, in the files beside it and one folder above; see callers.py."""
        if function not in self._callers:
            self._callers[function] = callers.callers(self, function)
        return self._callers[function]

    @cached_property
    def calls_by_function(self) -> dict[ast.AST, list[ast.Call]]:
        return callers.calls_by_function(self)

    def known(self, node: ast.AST) -> Known | None:
        """The plain value of an expression, through names, options' defaults and class attributes: see values.py."""
        return values.known(self, node)

    def bindings(self, node: ast.Name) -> list[Binding]:
        found = self.names.lookup(node)
        return found[1] if found else []

    def value_of(self, node: ast.AST) -> ast.AST:
        """The expression a name was given, where it was given just one; the node itself otherwise."""
        bindings = self.bindings(node) if isinstance(node, ast.Name) else []
        return bindings[0].value or node if len(bindings) == 1 else node

    def uses(self, node: ast.Name) -> list[ast.Name]:
        """Every mention of the same variable, in the order of the text."""
        found = self.names.lookup(node)
        mentions = self.names.named.get(node.id, [])
        return [one for one in mentions if found and (other := self.names.lookup(one)) and other[0] is found[0]]

    def mentions(self, *identifiers: str) -> bool:
        """Whether any of the identifiers occurs in code (not in comments or strings) in any role."""
        return not self._identifiers.isdisjoint(identifiers)

    # The tree

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self.names.parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        above = self.parent(node)
        while above is not None:
            yield above
            above = self.parent(above)

    def enclosing(self, node: ast.AST, kinds: type[Kind] | tuple[type[Kind], ...]) -> Kind | None:
        """The nearest ancestor of one of the kinds."""
        return next((above for above in self.ancestors(node) if isinstance(above, kinds)), None)

    def function_of(self, node: ast.AST) -> Function | None:
        """The function a node stands in."""
        found = self.enclosing(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        return found if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) else None

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement a node is, or lies in."""
        found = node if isinstance(node, ast.stmt) else self.enclosing(node, ast.stmt)
        assert found is not None, "only the module itself lies in no statement"
        return found

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that a statement stands in."""
        for _, value in ast.iter_fields(self.parent(statement) or self.tree):
            if isinstance(value, list) and any(one is statement for one in value):
                return value
        return [statement]

    # Loops: see loops.py

    def training_loops(self) -> list[Loop]:
        return self._training_loops

    def evaluation_loops(self) -> list[Loop]:
        return loops.evaluation_loops(self)

    def training_loop_of(self, node: ast.AST) -> tuple[Source, Loop] | None:
        """The training loop a node runs in, here or in a file that calls its function."""
        return loops.training_loop_of(self, node)

    def under_no_grad(self, node: ast.AST) -> bool:
        return loops.under_no_grad(self, node)

    def how_often(self, node: ast.AST, place: Loop | Function) -> Often:
        """Whether a node in a loop or function runs every time or behind a gate as `if i % n == 0`: see gates.py."""
        return gates.how_often(self, node, place)

    # Text

    def segment(self, node: ast.AST) -> str:
        """The text of a node, exactly."""
        start, end = self.lines.span(node)
        return self.text[start:end]

    def site(
        self, node: ast.AST, message: str, fix: Fix = None, doubtful: bool = False, severity: Severity = "speed"
    ) -> Site:
        start, _ = self.lines.span(node)
        line = self.lines.line_at(start)
        return Site(self, node, line, start - self.lines.start(line) + 1, message, fix, doubtful, severity)

    def is_ignored(self, line: int, technique_id: str) -> bool:
        """Whether a comment on the line silences the technique: `# hotlap: ignore` or `# hotlap: ignore[a, b]`."""
        if line not in self._ignores:
            return False
        listed = self._ignores[line]
        return listed is None or technique_id.lower().replace("_", "-") in listed

    @cached_property
    def _calls(self) -> dict[str, list[Call]]:
        found: dict[str, list[Call]] = {}
        for node in self.names.call_nodes:
            name = self.name_of(node.func)
            if name is not None:
                found.setdefault(name, []).append(Call(node, name, self))
        return found

    @cached_property
    def _callers(self) -> dict[Function, list[tuple[Source, ast.Call]]]:
        return {}

    @cached_property
    def _training_loops(self) -> list[Loop]:
        return loops.training_loops(self)

    @cached_property
    def _identifiers(self) -> set[str]:
        found = set(self.names.named)
        for node in self.names.parents:
            for role in _IDENTIFYING.get(type(node), ()):
                found.update((getattr(node, role) or "").split("."))
        return found

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        """Every comment with where it starts."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text, newline="").readline)
        found = [token for token in tokens if token.type == tokenize.COMMENT]
        return [(self.lines.start(token.start[0]) + token.start[1], token.string) for token in found]

    @cached_property
    def _ignores(self) -> dict[int, set[str] | None]:
        found: dict[int, set[str] | None] = {}
        for start, text in self.comments if "hotlap" in self.text else ():
            match = _IGNORE.search(text)
            if match:
                listed = match.group(1)
                names = {name.strip().lower().replace("_", "-") for name in (listed or "").split(",")}
                found[self.lines.line_at(start)] = None if listed is None else names
        return found
