"""What an expression is worth where a file says so: constants, defaults of options, attributes of classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotlap.source.names import Definition

if TYPE_CHECKING:
    from hotlap.source.module import Source

_MOST_HOPS = 6
_FLAGS: dict[Any, Any] = {"store_true": False, "store_false": True, "count": None}


@dataclass(frozen=True, eq=False)
class Known:
    """A plain value. `is_default`: an option's or a parameter's, which another may take the place of."""

    value: Any
    node: ast.AST  # where it is written
    is_default: bool = False


def known(source: Source, node: ast.AST, hops: int = 0) -> Known | None:
    """What an expression is worth; None for cannot tell."""
    if hops > _MOST_HOPS:
        return None
    if isinstance(node, ast.Constant):
        return Known(node.value, node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inside = known(source, node.operand, hops + 1)
        is_number = inside is not None and type(inside.value) in (int, float)
        return Known(-inside.value, node, inside.is_default) if inside is not None and is_number else None
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        return _converted(source, node, hops)
    if isinstance(node, ast.Name):
        return _of_name(source, node, hops)
    if isinstance(node, ast.Attribute):
        return _of_attribute(source, node, hops)
    return None


def _converted(source: Source, call: ast.Call, hops: int) -> Known | None:
    """`int(args.workers)`."""
    convert = {"int": int, "float": float, "bool": bool, "str": str}.get(source.name_of(call.func) or "")
    inside = known(source, call.args[0], hops + 1) if convert else None
    if convert is None or inside is None:
        return None
    try:
        return Known(convert(inside.value), inside.node, inside.is_default)
    except (TypeError, ValueError, OverflowError):
        return None


def _of_name(source: Source, node: ast.Name, hops: int) -> Known | None:
    found = source.names.lookup(node)
    if found is None or len(found[1]) != 1:
        return None
    scope, (binding,) = found
    if binding.value is not None:
        if any(_is_augmented(source, use) for use in source.uses(node)):
            return None
        found_value = known(source, binding.value, hops + 1)
        # `exec(open("overrides.py").read())` may set any name of the file.
        is_open = scope is source.names.module and any(source.calls("exec", "globals"))
        return _as_default(found_value) if is_open else found_value
    if isinstance(scope.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        default = _defaults(scope.node.args).get(node.id)
        return _as_default(known(source, default, hops + 1)) if default is not None else None
    return None


def _of_attribute(source: Source, node: ast.Attribute, hops: int) -> Known | None:
    if not isinstance(node.value, ast.Name):
        return None
    option = _option(source, node.value, node.attr)
    if option is not None:
        return _as_default(known(source, option, hops + 1))
    owner = _class_of(source, node.value)
    if owner is None:
        return None
    definition, built = owner
    if built is not None:
        given = next((one.value for one in built.keywords if one.arg == node.attr), None)
        if given is not None:
            return known(source, given, hops + 1)
        if built.args or any(one.arg is None for one in built.keywords):
            return None
    values = list(_assigned(source, definition, node.value.id, node.attr))
    return known(source, values[0], hops + 1) if len(values) == 1 else None


def _option(source: Source, owner: ast.Name, name: str) -> ast.expr | None:
    """The default of `--name`, where the owner surely or by its looks is what `parse_args` returned."""
    bindings = source.bindings(owner)
    parsed = [one.value for one in bindings if one.value is not None and _is_parsing(one.value)]
    is_parameter = bool(bindings) and all(one.value is None and one.definition is None for one in bindings)
    if len(parsed) != len(bindings) and not is_parameter:
        return None
    found = [call for call in source.method_calls("add_argument") if _destination(call) == name]
    if len(found) != 1:
        return None
    given = {one.arg: one.value for one in found[0].keywords}
    if "default" in given:
        return given["default"]
    action = given.get("action")
    if isinstance(action, ast.Constant) and action.value in _FLAGS:
        return ast.copy_location(ast.Constant(_FLAGS[action.value]), found[0])
    is_optional = all(isinstance(one, ast.Constant) and str(one.value).startswith("-") for one in found[0].args)
    return ast.copy_location(ast.Constant(None), found[0]) if is_optional and "required" not in given else None


def _is_parsing(value: ast.expr) -> bool:
    method = value.func.attr if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else ""
    return method in ("parse_args", "parse_known_args")


def _destination(call: ast.Call) -> str | None:
    for given in call.keywords:
        if given.arg == "dest":
            return str(given.value.value) if isinstance(given.value, ast.Constant) else None
    names = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    long = [name for name in names if name.startswith("--")] or names
    return long[0].lstrip("-").replace("-", "_") if long else None


def _class_of(source: Source, owner: ast.Name) -> tuple[ast.ClassDef, ast.Call | None] | None:
    """The class an object is of, with the call that built it; or the class itself, or that of `self`."""
    if owner.id == "self":
        around = source.enclosing(owner, ast.ClassDef)
        return (around, None) if around is not None else None
    itself = source.definition(owner)
    if isinstance(itself, ast.ClassDef):
        return itself, None
    built = source.value_of(owner)
    definition: Definition | None = source.definition(built.func) if isinstance(built, ast.Call) else None
    return (definition, built) if isinstance(definition, ast.ClassDef) and isinstance(built, ast.Call) else None


def _assigned(source: Source, definition: ast.ClassDef, owner: str, name: str) -> Iterator[ast.expr]:
    """Every value an attribute is given, in the class body, by its methods, or from outside through the owner."""
    for statement in definition.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
        value = getattr(statement, "value", None)
        if value is not None and any(isinstance(one, ast.Name) and one.id == name for one in targets):
            yield value
    for node in source.names.parents:
        is_write = isinstance(node, ast.Attribute) and node.attr == name and not isinstance(node.ctx, ast.Load)
        if is_write and isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            inside = node.value.id == "self" and definition in source.ancestors(node)
            if inside or (owner != "self" and node.value.id == owner):
                holder = source.parent(node)
                yield holder.value if isinstance(holder, ast.Assign) else node


def _defaults(given: ast.arguments) -> dict[str, ast.expr]:
    plain = [*given.posonlyargs, *given.args]
    last = plain[len(plain) - len(given.defaults) :]
    found = {one.arg: default for one, default in zip(last, given.defaults, strict=True)}
    named = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return found | {one.arg: default for one, default in named if default is not None}


def _is_augmented(source: Source, use: ast.Name) -> bool:
    holder = source.parent(use)
    return isinstance(holder, ast.AugAssign) and holder.target is use


def _as_default(found: Known | None) -> Known | None:
    return None if found is None else Known(found.value, found.node, True)
