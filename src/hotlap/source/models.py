"""The networks of a file: what it calls them, and what they are built of."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from functools import lru_cache
from typing import TYPE_CHECKING

from hotlap.source.names import spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source


_MODULES = ("torch.nn.Module", "torch.nn.Sequential")
_MOVING = ("to", "cuda", "cpu", "float", "half", "double", "train", "eval")
_WRAPPING = ("torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel", "torch.compile")
FORWARDS = ("forward", "generate", "encode", "decode", "predict")  # methods that run a network, or a part of it


def run_by(call: ast.Call, models: Set[str]) -> str | None:
    """The model that a call runs, as the file writes it: `model` of `model(x)` and of `model.generate(x)`."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in FORWARDS:
        function = function.value
    name = spelling(function)
    return name if name in models else None


@lru_cache(maxsize=4)
def model_spellings(source: Source) -> frozenset[str]:
    """How the file writes its models: `model`, `self.net`, ..., by what it does with them."""
    found: set[str | None] = set()
    for call in source.method_calls("parameters", "named_parameters", "train", "eval"):
        assert isinstance(call.func, ast.Attribute)
        found.add(spelling(call.func.value))
    for name, mentions in source.names.named.items():
        if any(is_module(source, binding.value) for binding in source.bindings(mentions[0]) if binding.value):
            found.add(name)
    given = [one for one in source.names.parents if isinstance(one, ast.arg) and one.annotation is not None]
    found |= {one.arg for one in given if source.name_of(one.annotation) in _MODULES}  # type: ignore[arg-type]
    for target, origin in _handed_on(source):
        found |= {target} if origin in found else set()
    return frozenset(name for name in found if name not in (None, "self"))


def _handed_on(source: Source) -> Iterator[tuple[str, str]]:
    """`self.model = model.to(device)`: who is called like which other one, in the order of the text."""
    settings = [one for one in source.names.parents if isinstance(one, ast.Assign) and len(one.targets) == 1]
    for setting in sorted(settings, key=lambda one: one.lineno):
        target, origin = spelling(setting.targets[0]), spelling(_bare(source, setting.value))
        if target is not None and origin is not None:
            yield target, origin


def _bare(source: Source, value: ast.expr) -> ast.expr:
    """Without what moves or wraps it."""
    while isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in _MOVING:
            value = value.func.value
        elif source.name_of(value.func) in _WRAPPING and value.args:
            value = value.args[0]
        else:
            break
    return value


def is_module(source: Source, value: ast.AST) -> bool:
    """Whether an expression surely builds a network: a class of this file, a container, a torchvision model."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "cuda"):
        value = value.func.value
    if not isinstance(value, ast.Call):
        return False
    name = source.name_of(value.func) or ""
    if name == "torch.nn.Sequential" or name.startswith("torchvision.models."):
        return True
    return is_module_class(source, source.definition(value.func))


def is_module_class(source: Source, definition: ast.AST | None, depth: int = 0) -> bool:
    if not isinstance(definition, ast.ClassDef) or depth > 8:
        return False
    for parent in definition.bases:
        if source.name_of(parent) in _MODULES:
            return True
        if is_module_class(source, source.definition(parent), depth + 1):
            return True
    return False


def builds(source: Source, node: ast.AST | None, *layers: str, seen: frozenset[ast.AST] = frozenset()) -> bool:
    """Whether one of the layers (by qualified name) is built below a node, or by a class of this file built there."""
    if node is None or node in seen:
        return False
    functions = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
    if any(source.name_of(function) in layers for function in functions):
        return True
    inside = [source.definition(function) for function in functions]
    return any(builds(source, one, *layers, seen=seen | {node}) for one in inside)
