"""What a name in a file stands for: every binding of every scope, collected in one pass over the tree."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

# Where torch itself defines what it publishes one level up: both spellings mean the same object.
_HOMES = re.compile(
    r"^(torch\.optim)\.(?!lr_scheduler|swa_utils)[a-z_0-9]+\.(?=[A-Z])"
    r"|^(torch\.utils\.data)\.(?:dataset|dataloader|sampler|distributed)\.(?=[A-Z])"
    r"|^(torch\.nn)\.modules\.(?:[a-z_0-9]+\.)?(?=[A-Z])"
)


@dataclass(frozen=True, eq=False)
class Binding:
    """One way a name gets its meaning: an import, a value, a definition, or (all None) something else."""

    qualified: str | None = None
    value: ast.expr | None = None
    definition: Definition | None = None

    @property
    def is_none(self) -> bool:
        return isinstance(self.value, ast.Constant) and self.value.value is None


@dataclass(eq=False)
class Scope:
    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    declared_global: set[str] = field(default_factory=set)
    declared_nonlocal: set[str] = field(default_factory=set)

    def bind(self, name: str, binding: Binding) -> None:
        scope: Scope = self
        if name in scope.declared_global:
            while scope.parent is not None:
                scope = scope.parent
        elif name in scope.declared_nonlocal and scope.parent is not None:
            scope = scope.parent
            while name not in scope.bindings and scope.parent is not None:
                scope = scope.parent
        scope.bindings.setdefault(name, []).append(binding)


class Names:
    """The scopes of one file and the questions asked of them."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope(tree, None)
        self.scopes = [self.module]
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scope_of: dict[ast.Name, Scope] = {}
        self.named: dict[str, list[ast.Name]] = {}
        self.call_nodes: list[ast.Call] = []
        self.star_modules: set[str] = set()
        self._known: dict[tuple[Scope, str], str | None] = {}
        self._bound: set[ast.Name] = set()
        # A stack instead of recursion: generated files nest deeper than Python's own limit.
        stack: list[tuple[ast.AST, Scope]] = [(tree, self.module)]
        while stack:
            node, scope = stack.pop()
            children = list(self._enter(node, scope))
            for child, _ in children:
                self.parents[child] = node
            stack.extend(reversed(children))

    def lookup(self, node: ast.Name) -> tuple[Scope, list[Binding]] | None:
        """The scope a name belongs to and all that is bound to it there."""
        scope: Scope | None = self.scope_of.get(node, self.module)
        innermost = True
        while scope is not None:
            if node.id in scope.declared_global:
                scope = self.module
            if node.id in scope.bindings and (innermost or not isinstance(scope.node, ast.ClassDef)):
                return scope, scope.bindings[node.id]
            scope, innermost = scope.parent, False
        return None

    def name_of(self, node: ast.AST, depth: int = 0) -> str | None:
        """The dotted name through any import or alias; builtins under their own name; None when unsure."""
        if isinstance(node, ast.Attribute):
            owner = self.name_of(node.value, depth)
            return _published(f"{owner}.{node.attr}") if owner else None
        if not isinstance(node, ast.Name) or depth > 8:
            return None
        found = self.lookup(node)
        if found is None:
            is_builtin = hasattr(builtins, node.id)
            if not self.star_modules:
                return node.id if is_builtin else None
            # A name that nothing else gives can only come from the one `import *`; a builtin may be hidden by it.
            is_sure = len(self.star_modules) == 1 and not is_builtin
            return _published(".".join((*self.star_modules, node.id))) if is_sure else None
        scope, bindings = found
        if (scope, node.id) not in self._known:
            # `torch = None` in an `except ImportError` does not make the import above it doubtful.
            meanings = {self._meaning(binding, depth) for binding in bindings if not binding.is_none}
            self._known[scope, node.id] = meanings.pop() if len(meanings) == 1 else None
        return self._known[scope, node.id]

    def spelled(self, qualified: str) -> str | None:
        """The name by which the whole file knows an import, where no inner scope uses that name otherwise."""
        for name, bindings in self.module.bindings.items():
            is_it = all(binding.qualified == qualified for binding in bindings)
            if is_it and not any(name in scope.bindings for scope in self.scopes[1:]):
                return name
        return None

    def _meaning(self, binding: Binding, depth: int) -> str | None:
        if binding.qualified is not None:
            return _published(binding.qualified)
        if isinstance(binding.value, ast.Name | ast.Attribute):
            return self.name_of(binding.value, depth + 1)
        return None

    def _enter(self, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
        """Notes what a node binds and yields its children, each with the scope it is evaluated in."""
        if isinstance(node, ast.Name):
            self.scope_of[node] = scope
            self.named.setdefault(node.id, []).append(node)
            if not isinstance(node.ctx, ast.Load) and node not in self._bound:
                scope.bind(node.id, Binding())
        elif isinstance(node, ast.Call):
            self.call_nodes.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope.bind(node.name, Binding(definition=node))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._bind_import(node, scope)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind_target(target, node.value, scope)
        elif isinstance(node, ast.AnnAssign):
            if node.value is None and isinstance(node.target, ast.Name):
                self._bound.add(node.target)  # `x: int` alone binds nothing
            elif node.value is not None:
                self._bind_target(node.target, node.value, scope)
        elif isinstance(node, ast.NamedExpr):
            holder = scope
            while isinstance(holder.node, Comprehension) and holder.parent is not None:
                holder = holder.parent
            self._bind_target(node.target, node.value, holder)
        elif isinstance(node, ast.Global):
            scope.declared_global.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            scope.declared_nonlocal.update(node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            scope.bind(node.name, Binding())
        elif isinstance(node, ast.MatchMapping) and node.rest:
            scope.bind(node.rest, Binding())
        return self._children(node, scope)

    def _children(self, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
        inner = scope
        if isinstance(node, Definition | ast.Lambda | Comprehension):
            inner = Scope(node, scope)
            self.scopes.append(inner)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            given = node.args
            for arg in [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]:
                if arg is not None:
                    inner.bind(arg.arg, Binding())
        for name, value in ast.iter_fields(node):
            if name in ("ctx", "op", "ops"):  # shared by all nodes, and a third of all there is
                continue
            within = inner if name in ("body", "elt", "key", "value", "generators") else scope
            if name == "iter" and isinstance(node, ast.comprehension) and self._is_first(node) and scope.parent:
                within = scope.parent
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.AST):
                    yield child, within

    def _is_first(self, generator: ast.comprehension) -> bool:
        """The first iterable of a comprehension is evaluated outside of it."""
        holder = self.parents[generator]
        return isinstance(holder, Comprehension) and holder.generators[0] is generator

    def _bind_target(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            self._bound.add(target)
            scope.bind(target.id, Binding(value=value))
        elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
            together = [*target.elts, *value.elts]
            if len(target.elts) == len(value.elts) and not any(isinstance(one, ast.Starred) for one in together):
                for inside, part in zip(target.elts, value.elts, strict=True):
                    self._bind_target(inside, part, scope)

    def _bind_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                first = alias.name.partition(".")[0]
                scope.bind(alias.asname or first, Binding(qualified=alias.name if alias.asname else first))
            elif alias.name == "*":
                self.star_modules.add("." * node.level + (node.module or ""))
            else:
                module = "." * node.level + (node.module or "")
                dot = "" if module.endswith(".") else "."
                scope.bind(alias.asname or alias.name, Binding(qualified=f"{module}{dot}{alias.name}"))


def _published(name: str) -> str:
    if not name.startswith("torch."):
        return name
    return _HOMES.sub(lambda match: f"{match.group(match.lastindex or 0)}.", name)


def spelling(node: ast.AST) -> str | None:
    """A plain chain of names as it is written: `self.model`; None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = spelling(node.value)
        return f"{owner}.{node.attr}" if owner else None
    return None
