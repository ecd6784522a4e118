"""What is surely a NumPy array, and of which type its elements are."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotlap.source.module import Source

# These make a new array of float64 unless told otherwise; the random ones give a plain float without a size.
_DOUBLES = {f"numpy.{name}" for name in ("zeros", "ones", "empty", "linspace", "eye", "identity", "logspace")}
_SIZED = {f"numpy.random.{name}" for name in ("rand", "randn", "random_sample", "ranf")}
_DRAWN = {f"numpy.random.{name}" for name in ("random", "standard_normal")}
_SPREAD = {f"numpy.random.{name}" for name in ("uniform", "normal")}  # size is their third parameter
_NEW = {"array", "arange", "full", "concatenate", "stack", "vstack", "hstack", "tile", "repeat", "zeros_like"}
_NEW |= {"ones_like", "full_like", "empty_like", "genfromtxt", "loadtxt", "column_stack"}
_ARRAYS = _DOUBLES | {f"numpy.{name}" for name in _NEW}
_TYPES = {"float64": "float64", "double": "float64", "float": "float64", "float32": "float32", "single": "float32"}
_TYPES |= {"int64": "int64", "long": "int64", "int32": "int32", "float16": "float16", "uint8": "uint8"}
_FRESH_METHODS = {"astype", "copy", "flatten"}
_VIEWS = {"reshape", "ravel", "transpose", "squeeze", "swapaxes"}


def is_array(source: Source, node: ast.AST, hops: int = 0) -> bool:
    """Whether an expression is surely a NumPy array, not a list, a scalar or a tensor."""
    if hops > 4:
        return False
    if is_fresh(source, node, hops):
        return True
    if isinstance(node, ast.Name):
        values = [binding.value for binding in source.bindings(node)]
        return bool(values) and all(value is not None and is_array(source, value, hops + 1) for value in values)
    if isinstance(node, ast.Subscript):
        return _is_slice(node.slice) and is_array(source, node.value, hops + 1)
    if isinstance(node, ast.Attribute):
        return node.attr == "T" and is_array(source, node.value, hops + 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS:
        return is_array(source, node.func.value, hops + 1)
    return False


def is_fresh(source: Source, node: ast.AST, hops: int = 0) -> bool:
    """Whether an expression is surely an array that nothing else holds."""
    if isinstance(node, ast.BinOp):
        return is_array(source, node.left, hops + 1) or is_array(source, node.right, hops + 1)
    if not isinstance(node, ast.Call):
        return False
    name = source.name_of(node.func)
    if name in _ARRAYS:
        return not any(given.arg == "copy" for given in node.keywords)
    if name in _SIZED or name in _DRAWN or name in _SPREAD:
        return _is_sized(node, name)
    if isinstance(node.func, ast.Attribute) and node.func.attr in _FRESH_METHODS:
        is_copy = not any(given.arg == "copy" for given in node.keywords)
        return is_copy and is_array(source, node.func.value, hops + 1)
    return isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS and is_fresh(source, node.func.value, hops)


def element_type(source: Source, node: ast.AST, hops: int = 0) -> str | None:
    """The type of an array's elements ("float64"), where it is sure."""
    if hops > 4 or not is_array(source, node):
        return None
    if isinstance(node, ast.Name):
        types = {element_type(source, one.value, hops + 1) if one.value else None for one in source.bindings(node)}
        return types.pop() if len(types) == 1 else None
    if isinstance(node, ast.Subscript | ast.Attribute):
        return element_type(source, node.value, hops + 1)
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "astype":
        return _type(source, node.args[0]) if node.args else None
    given = next((one.value for one in node.keywords if one.arg == "dtype"), None)
    if given is not None:
        return _type(source, given)
    name = source.name_of(node.func)
    if name in _SIZED or name in _DRAWN or name in _SPREAD:
        return "float64"
    if name in _DOUBLES:
        most = 3 if name in ("numpy.linspace", "numpy.logspace", "numpy.eye") else 1  # a dtype may stand further on
        return "float64" if len(node.args) <= most else None
    if isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS | _FRESH_METHODS:
        return element_type(source, node.func.value, hops + 1)
    return None


def _type(source: Source, node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _TYPES.get(node.value)
    name = source.name_of(node) or ""
    return _TYPES.get(name.removeprefix("numpy.")) if name.startswith("numpy.") or name == "float" else None


def _is_sized(node: ast.Call, name: str) -> bool:
    by_name = any(given.arg == "size" for given in node.keywords)
    return by_name or (len(node.args) > 2 if name in _SPREAD else bool(node.args))


def _is_slice(index: ast.expr) -> bool:
    """An index that surely leaves an array: with a single number it could be one element."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    is_reversed = any(isinstance(part, ast.Slice) and isinstance(part.step, ast.UnaryOp) for part in parts)
    return any(isinstance(part, ast.Slice) for part in parts) and not is_reversed
