"""What the scores of an attention are multiplied with, and what is added to them."""

from __future__ import annotations

import ast

from hotlap.source.bodies import in_brackets
from hotlap.source.module import Source
from hotlap.source.names import spelling
from hotlap.source.plain_numbers import is_number

Scale = tuple[ast.operator, ast.expr]  # times or divided by what


def is_bias(source: Source, node: ast.expr) -> bool:
    """Whether it is written as a mask that is added: a name, an attribute or a part of one. That it is not of booleans,
    which would count as one and nothing here, only shows where it is made."""
    whole = node.value if isinstance(node, ast.Subscript) else node
    if spelling(whole) is None or is_number(source, node):
        return False
    value = source.value_of(whole)
    made = ast.unparse(value) if value is not whole else ""
    return not isinstance(value, ast.Compare | ast.Constant) and not {"bool", "long", "int"} & set(_words(made))


def _words(text: str) -> list[str]:
    return "".join(one if one.isalnum() else " " for one in text).split()


def scale_argument(source: Source, scales: list[Scale], *factors: ast.expr) -> str | None:
    """What the fused kernel is to multiply with; None for its own default, one over the root of the last axis."""
    if len(scales) > 1:
        return None
    if not scales:
        return "1.0"
    operator, scale = scales[0]
    written = ast.unparse(scale)
    for tensor in factors:
        for width in (f"{ast.unparse(tensor)}.size(-1)", f"{ast.unparse(tensor)}.shape[-1]"):
            roots = {f"math.sqrt({width})", f"np.sqrt({width})", f"{width} ** 0.5", f"sqrt({width})"}
            inverse = {f"{one} / {root}" for one in ("1", "1.0") for root in roots} | {f"{width} ** -0.5"}
            if written in (roots if isinstance(operator, ast.Div) else inverse):
                return None
    text = in_brackets(source, scale)
    return source.segment(scale) if isinstance(operator, ast.Mult) else f"1.0 / {text}"
