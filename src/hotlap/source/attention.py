"""Attention written by hand: softmax(query @ key^T * scale + mask) @ value, over any number of statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from hotlap.source.axis_counts import axis_count
from hotlap.source.bodies import attributes, in_brackets, method, own_nodes, receiver
from hotlap.source.module import Source
from hotlap.source.moving import Piece, can_move, is_changed_in_place, is_read_elsewhere, is_viewed, may_change
from hotlap.source.names import spelling
from hotlap.source.plain_numbers import is_number
from hotlap.source.products import contracts_last, is_bmm, is_einsum, product_of
from hotlap.source.score_terms import Scale, is_bias
from hotlap.source.written_attributes import written_elsewhere

# How many axes there must be for two to be the last; 0: any.
_AXES: dict[tuple[str, ...], int] = {("-1", "-2"): 0, ("1", "2"): 3, ("2", "3"): 4}
_FUNCTION = "torch.nn.functional.softmax"


@dataclass(eq=False)
class Attention:
    """One attention. `doubts` says why it cannot be written otherwise without looking; empty when it can."""

    softmax: ast.Call
    query: ast.expr
    key: ast.expr
    value: ast.expr
    product: ast.expr  # weights @ value
    statements: list[ast.stmt]  # those that only make the weights, in order
    pieces: list[Piece]  # all that the call is to be given, and where it was read
    scales: list[Scale] = field(default_factory=list)
    mask: str | None = None
    filled: ast.expr | None = None  # where scores are filled, if that is how they are masked
    dropout: str | None = None
    axes: int | None = None  # of its query, where that is seen
    doubts: list[str] = field(default_factory=list)


def hand_written_attention(source: Source) -> Iterator[Attention]:
    for node in source.names.call_nodes:
        taken = _softmax_of(source, node)
        found = _Reader(source, node).read(*taken) if taken is not None else None
        if found is not None:
            yield found


def is_certain(source: Source, found: Attention) -> bool:
    """Whether it can be written as one call: all in one block, nothing it reads changed on the way."""
    block = source.block(source.statement(found.product))
    if found.doubts or len(found.scales) > 1 or not all(one in block for one in found.statements):
        return False
    later = [piece for piece, _ in found.pieces if piece not in (found.query, found.key)]  # than their product was
    if any(may_change(source, node) for piece in later for node in ast.walk(piece)):
        return False
    are_numbers = all(is_number(source, scale) for _, scale in found.scales)
    is_moved = are_numbers and can_move(source, found.pieces, found.statements, found.product)
    if not is_moved or is_changed_in_place(source, found.product):
        return False
    return is_bmm(source, found.product) or not is_viewed(source, found.product)  # three axes are laid out as ever


def _softmax_of(source: Source, call: ast.Call) -> tuple[ast.expr, list[str]] | None:
    """What a softmax over the last axis is taken of, and all that is said of how; None for any other call."""
    name, built = source.name_of(call.func), _built(source, call.func)
    said, given = call, list(call.args)
    if name in (_FUNCTION, "torch.softmax") and given:
        scores = given.pop(0)
    elif built is not None and source.name_of(built.func) == "torch.nn.Softmax":
        if len(given) != 1 or call.keywords:
            return None
        said, scores, given = built, given[0], list(built.args)
    elif name is None and method(call) == "softmax":
        scores = receiver(call)
    else:
        return None
    dims = [*(one.value for one in said.keywords if one.arg == "dim"), *given[:1]]
    others = [*(one.arg or "**" for one in said.keywords if one.arg != "dim"), *map(ast.unparse, given[1:])]
    how = [*map(ast.unparse, dims), *others]
    return (scores, how) if dims and how[0] in ("-1", "3") else None


def _built(source: Source, node: ast.expr) -> ast.Call | None:
    """The call that made `self.name` in the class around, where there is just one; or the node, called at once."""
    if isinstance(node, ast.Call):
        return node
    name = spelling(node) or ""
    owner = source.enclosing(node, ast.ClassDef) if name.startswith("self.") else None
    values = attributes(source).get(owner, {}).get(name, []) if owner is not None else []
    return values[0] if len(values) == 1 and isinstance(values[0], ast.Call) else None


class _Reader:
    """Follows the weights from the softmax back to the product they come from, and on to the one they go into."""

    def __init__(self, source: Source, softmax: ast.Call) -> None:
        self.source, self.softmax = source, softmax
        self.statement = source.statement(softmax)
        self.block = source.block(self.statement)
        self.made: list[ast.stmt] = []
        self.pieces: list[Piece] = []
        self.scales: list[Scale] = []
        self.mask: str | None = None
        self.filled: ast.expr | None = None
        self.dropout: str | None = None
        self.doubts: list[str] = []

    def read(self, scores: ast.expr, how: list[str]) -> Attention | None:
        factors = self._back(scores, self.statement)
        forth = self._forth(self.softmax)
        if factors is None or forth is None:
            return None
        product, value = forth
        self._doubt_layer(self.softmax.func)
        if how not in (["-1"], ["3"]):
            self.doubts.append("its softmax is of another type")
        if how[0] == "3" and any(self._axes(one) != 4 for one in factors):
            self.doubts.append("its axes are counted from the front")
        made = sorted(set(self.made), key=lambda one: one.lineno)
        if is_read_elsewhere(self.source, made, product):  # the fused kernel never shows them
            return None
        self.pieces.append((value, self.source.statement(product)))
        masks = self.mask, self.filled
        parts = self.softmax, *factors, value, product, made, self.pieces
        return Attention(*parts, self.scales, *masks, self.dropout, self._axes(factors[0]), self.doubts)

    def _back(self, node: ast.expr, at: ast.stmt, hops: int = 0) -> tuple[ast.expr, ast.expr] | None:
        """Query and key, through scaling and masking."""
        if hops > 12:
            return None
        if isinstance(node, ast.Name):
            return self._back_through_name(node.id, at, hops)
        pair = product_of(self.source, node)
        if pair is not None and is_einsum(self.source, node):
            self.doubts.append("its axes are named in an einsum")
            return pair if contracts_last(node) else None
        if pair is not None:
            self._doubt_options(node)
            return self._with_key(*pair, at, is_bmm(self.source, node))
        if isinstance(node, ast.BinOp):
            return self._back_through(node.left, node.op, node.right, at, hops)
        if method(node) in ("masked_fill", "masked_fill_") and isinstance(node, ast.Call) and len(node.args) == 2:
            self._masked(node.args[0], node.args[1], at)
            if node.keywords:
                self.doubts.append("its mask has options")
            return self._back(receiver(node), at, hops + 1)
        return None

    def _back_through_name(self, name: str, at: ast.stmt, hops: int) -> tuple[ast.expr, ast.expr] | None:
        for statement in reversed(self.block[: self.block.index(at)]):
            if isinstance(statement, ast.Assign) and [spelling(one) for one in statement.targets] == [name]:
                self.made.append(statement)
                return self._back(statement.value, statement, hops + 1)
            if isinstance(statement, ast.AugAssign) and spelling(statement.target) == name:
                self.made.append(statement)
                before = ast.Name(name, ast.Load())
                return self._back_through(before, statement.op, statement.value, statement, hops)
            if any(isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store)
                   for one in ast.walk(statement)):  # fmt: skip
                self.doubts.append("it is changed under a condition")
                self.made.append(statement)
        return None

    def _back_through(
        self, left: ast.expr, operator: ast.operator, right: ast.expr, at: ast.stmt, hops: int
    ) -> tuple[ast.expr, ast.expr] | None:
        if isinstance(operator, ast.Mult | ast.Div):
            self.scales.append((operator, right))
        elif isinstance(operator, ast.Add):
            self._added(right)
        else:
            return None
        self.pieces.append((right, at))
        return self._back(left, at, hops + 1)

    def _added(self, bias: ast.expr) -> None:
        if self.mask is not None:
            self.doubts.append("it has two masks")
        if self.scales:
            self.doubts.append("it is scaled after its mask was added")
        if not is_bias(self.source, bias):
            self.doubts.append("what is added may be no mask")
        self.mask = self.source.segment(bias)

    def _masked(self, condition: ast.expr, value: ast.expr, at: ast.stmt) -> None:
        if self.mask is not None:
            self.doubts.append("it has two masks")
        self.filled = condition
        self.pieces.append((condition, at))
        is_endless = ast.unparse(value).lower() in ("float('-inf')", "-torch.inf", "-math.inf", "-float('inf')")
        if not is_endless:
            self.doubts.append("it masks with a finite number")
        is_equation = isinstance(condition, ast.Compare) and [type(one) for one in condition.ops] == [ast.Eq]
        if isinstance(condition, ast.Compare) and is_equation and ast.unparse(condition.comparators[0]) == "0":
            self.mask = f"{in_brackets(self.source, condition.left)} != 0"
        else:
            self.mask = f"~{in_brackets(self.source, condition)}"

    def _with_key(
        self, query: ast.expr, turned: ast.expr, at: ast.stmt, by_bmm: bool
    ) -> tuple[ast.expr, ast.expr] | None:
        if isinstance(turned, ast.Name):  # k = k.transpose(-2, -1) a line above
            value = self.source.value_of(turned)
            self.doubts.append("its key is turned elsewhere")
            turned = value if isinstance(value, ast.expr) else turned
        if isinstance(turned, ast.Attribute) and turned.attr == "mT":
            key = turned.value
        elif isinstance(turned, ast.Call) and method(turned) in ("transpose", "permute"):
            key = receiver(turned)
            axes = tuple(ast.unparse(one) for one in turned.args)
            if method(turned) == "permute":
                needed = 0 if axes in (("0", "1", "3", "2"), ("0", "2", "1")) else None
            else:
                needed = _AXES.get(tuple(sorted(axes)))
            if needed is None or turned.keywords:
                return None
            if needed and needed != (3 if by_bmm else axis_count(self.source, key, at)):
                self.doubts.append("its axes are counted from the front")
        else:
            return None
        self.pieces += [(query, at), (key, at)]
        return query, key

    def _axes(self, tensor: ast.expr) -> int | None:
        """Of a query or a key, as it is where they are multiplied."""
        at = next((at for piece, at in self.pieces if piece is tensor), None)
        return axis_count(self.source, tensor, at) if at is not None else None

    def _doubt_layer(self, layer: ast.expr) -> None:
        owner = self.source.enclosing(layer, ast.ClassDef) if (spelling(layer) or "").startswith("self.") else None
        name = layer.attr if isinstance(layer, ast.Attribute) else ""
        if owner is not None and any(written_elsewhere(self.source, owner, name)):
            self.doubts.append("one of its layers is replaced or has a hook")

    def _doubt_options(self, product: ast.AST) -> None:
        if isinstance(product, ast.Call) and product.keywords:
            self.doubts.append("its product has options")

    def _forth(self, node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
        """The product of weights and value, through dropout and assignments."""
        for _ in range(8):
            above = self.source.parent(node)
            pair = product_of(self.source, above)
            if isinstance(above, ast.expr) and pair is not None and pair[0] is node:
                self._doubt_options(above)
                return above, pair[1]
            if isinstance(above, ast.Call) and above.args[:1] == [node] and self._drops(above):
                node = above
                continue
            if not isinstance(above, ast.Assign) or len(above.targets) != 1 or above not in self.block:
                return None
            self.made.append(above)
            following = self._next_read(above)
            if following is None:
                return None
            node = following
        return None

    def _next_read(self, made: ast.Assign) -> ast.expr | None:
        name = spelling(made.targets[0])
        for statement in self.block[self.block.index(made) + 1 :]:
            reads = [one for one in own_nodes(self.source, statement) if isinstance(one, ast.Name) and one.id == name]
            loads = [one for one in reads if isinstance(one.ctx, ast.Load)]
            if reads:
                return loads[0] if len(loads) == 1 else None
        return None

    def _drops(self, call: ast.Call) -> bool:
        before = self.dropout
        built = _built(self.source, call.func)
        written = self.source.segment(call.func)
        if self.source.name_of(call.func) == "torch.nn.functional.dropout":
            given = {one.arg: one.value for one in call.keywords}
            given |= dict(zip(("p", "training", "inplace"), call.args[1:], strict=False))
            if not set(given) <= {"p", "training", "inplace"}:
                self.doubts.append("its dropout has other options")
            self.pieces += [(given[name], self.source.statement(call)) for name in ("p", "training") if name in given]
            p, training = given.get("p"), given.get("training")
            self.dropout = self.source.segment(p) if p is not None else "0.5"
            if training is not None:
                share = in_brackets(self.source, p) if p is not None else "0.5"
                self.dropout = f"{share} if {in_brackets(self.source, training)} else 0.0"
        elif built is not None and self.source.name_of(built.func) == "torch.nn.Dropout":
            self.pieces.append((call.func, self.source.statement(call)))
            self._doubt_layer(call.func)
            self.dropout = f"{written}.p if {written}.training else 0.0"
            if len(call.args) + len(call.keywords) != 1:
                self.doubts.append("its dropout has other options")
        elif "drop" in written.rpartition(".")[2].lower():
            self.doubts.append("its dropout is made elsewhere")
        else:
            return False
        if before is not None:
            self.doubts.append("it has two dropouts")
        return True
