"""Who gets hold of a tensor: statements that only work with it, read it or look at its size, and those that may keep it
or change it where nobody sees."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from hotlap.source.bodies import method
from hotlap.source.names import spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source

# Methods of tensors, and functions of torch, that change nothing and go nowhere else.
WORK = {"abs", "all", "any", "argmax", "argmin", "bool", "clone", "detach", "double", "eq", "exp", "expand_as"}
WORK |= {"flatten", "float", "ge", "gt", "int", "le", "log_softmax", "long", "lt", "max", "mean", "min", "ne"}
WORK |= {"norm", "reshape", "round", "sigmoid", "softmax", "sqrt", "square", "squeeze", "std", "sum", "t"}
WORK |= {"topk", "unsqueeze", "var", "view", "view_as"}
WORK |= {"argsort", "bmm", "ceil", "clamp", "contiguous", "cumsum", "div", "floor", "isfinite", "isinf", "isnan"}
WORK |= {"log10", "log1p", "log2", "logsumexp", "matmul", "maximum", "minimum", "mm", "mul", "neg", "permute", "pow"}
WORK |= {"prod", "reciprocal", "relu", "rsqrt", "sign", "tanh", "transpose"}
# Those of them whose tensor may be the same one, or lie in the same memory.
_SHARING = {"bool", "detach", "double", "expand_as", "flatten", "float", "int", "long", "reshape", "squeeze", "t"}
_SHARING |= {"contiguous", "permute", "transpose", "unsqueeze", "view", "view_as"}
READING = {"item", "tolist"}  # methods that give plain numbers, once the device has come so far
SIZES = {"size", "numel", "dim"}
OF_PYTHON = {"float", "int", "len"}
_LOOKING = {*OF_PYTHON, "print"}
VIEWS = {"T", "data"}


def handed_on(source: Source, statement: ast.AST, names: set[str]) -> set[str]:
    """The names, of those given, under which somebody else gets hold of a tensor."""
    handed: set[str] = set()
    for node in ast.walk(statement):
        name, above = spelling(node), source.parent(node)
        if name in names and not _is_only_read(source, node):
            handed.add(str(name))
        if isinstance(node, ast.Name) and (not isinstance(above, ast.Attribute) or _is_called(source, above)):
            handed |= {one for one in names if one.startswith(f"{node.id}.")}  # `self.loss`, by a method of self
    return handed


def _is_only_read(source: Source, node: ast.AST) -> bool:
    """Whether nobody gets hold of a tensor where it is mentioned, nor of a view of it."""
    above = source.parent(node)
    if isinstance(above, ast.Attribute) and _is_called(source, above):
        if above.attr not in _SHARING:
            return above.attr in WORK | READING | SIZES
        return _is_only_read(source, source.parent(above) or above)
    if isinstance(above, ast.Attribute):
        return above.attr == "shape" or (above.attr in VIEWS and _is_only_read(source, above))
    if isinstance(above, ast.Subscript):
        return _is_only_read(source, above)
    if isinstance(above, ast.Call):
        name = source.name_of(above.func) or ""
        is_work = (name.removeprefix("torch.") if name.startswith("torch.") else method(above)) in WORK - _SHARING
        return name in _LOOKING or is_work or method(above) in ("expand_as", "view_as")
    is_added = isinstance(above, ast.AugAssign) and node is above.value
    return is_added or isinstance(above, ast.BinOp | ast.Compare | ast.FormattedValue)


def _is_called(source: Source, attribute: ast.Attribute) -> bool:
    call = source.parent(attribute)
    return isinstance(call, ast.Call) and call.func is attribute
