"""Attention written by hand: softmax(query @ key^T * scale + mask) @ value, over any number of statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from hotlap.source.bodies import attributes, body_of, in_brackets, method, own_nodes, receiver, same
from hotlap.source.module import Source
from hotlap.source.names import spelling

_PRODUCTS = ("torch.matmul", "torch.bmm")
_LAST = {(-2, -1), (-1, -2), (2, 3), (3, 2), (1, 2), (2, 1)}
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
    scales: list[tuple[ast.operator, ast.expr]] = field(default_factory=list)
    mask: str | None = None
    filled: ast.expr | None = None  # where scores are filled, if that is how they are masked
    dropout: str | None = None
    doubts: list[str] = field(default_factory=list)


def hand_written_attention(source: Source) -> Iterator[Attention]:
    for node in source.names.call_nodes:
        scores = _scores_of(source, node)
        found = _Reader(source, node).read(scores) if scores is not None else None
        if found is not None:
            yield found


def _scores_of(source: Source, call: ast.Call) -> ast.expr | None:
    """What a softmax over the last axis is taken of; None for any other call."""
    name = source.name_of(call.func)
    dims = [one.value for one in call.keywords if one.arg == "dim"]
    if name in (_FUNCTION, "torch.softmax") and call.args:
        return call.args[0] if _is_last([*dims, *call.args[1:2]]) else None
    built = _built(source, call.func)
    if built is not None and source.name_of(built.func) == "torch.nn.Softmax" and len(call.args) == 1:
        given = [*(one.value for one in built.keywords if one.arg == "dim"), *built.args[:1]]
        return call.args[0] if _is_last(given) else None
    if name is None and method(call) == "softmax":
        return receiver(call) if _is_last([*dims, *call.args[:1]]) else None
    return None


def _is_last(dims: list[ast.expr]) -> bool:
    return bool(dims) and ast.unparse(dims[0]) in ("-1", "3")


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
        self.scales: list[tuple[ast.operator, ast.expr]] = []
        self.mask: str | None = None
        self.filled: ast.expr | None = None
        self.dropout: str | None = None
        self.doubts: list[str] = []

    def read(self, scores: ast.expr) -> Attention | None:
        factors = self._back(scores, self.statement)
        forth = self._forth(self.softmax)
        if factors is None or forth is None:
            return None
        product, value = forth
        made = sorted(set(self.made), key=lambda one: one.lineno)
        if self._is_needed(made, product):
            return None
        masks = self.mask, self.filled
        return Attention(self.softmax, *factors, value, product, made, self.scales, *masks, self.dropout, self.doubts)

    def _back(self, node: ast.expr, at: ast.stmt, hops: int = 0) -> tuple[ast.expr, ast.expr] | None:
        """Query and key, through scaling and masking."""
        if hops > 12:
            return None
        if isinstance(node, ast.Name):
            return self._back_through_name(node.id, at, hops)
        pair = _product(self.source, node)
        if pair is not None and _is_einsum(self.source, node):
            self.doubts.append("its axes are named in an einsum")
            return pair if _contracts_last(node) else None
        if pair is not None:
            return self._with_key(*pair, at)
        if isinstance(node, ast.BinOp):
            return self._back_through(node.left, node.op, node.right, at, hops)
        if method(node) in ("masked_fill", "masked_fill_") and isinstance(node, ast.Call) and len(node.args) == 2:
            self._masked(*node.args)
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
            if self.mask is not None:
                self.doubts.append("it has two masks")
            self.mask = self.source.segment(right)
        else:
            return None
        return self._back(left, at, hops + 1)

    def _masked(self, condition: ast.expr, value: ast.expr) -> None:
        if self.mask is not None:
            self.doubts.append("it has two masks")
        self.filled = condition
        is_endless = ast.unparse(value).lower() in ("float('-inf')", "-torch.inf", "-math.inf", "-float('inf')")
        if not is_endless:
            self.doubts.append("it masks with a finite number")
        is_equation = isinstance(condition, ast.Compare) and isinstance(condition.ops[0], ast.Eq)
        if isinstance(condition, ast.Compare) and is_equation and ast.unparse(condition.comparators[-1]) == "0":
            self.mask = f"{self.source.segment(condition.left)} != 0"
        else:
            self.mask = f"~{in_brackets(self.source, condition)}"

    def _with_key(self, query: ast.expr, turned: ast.expr, at: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
        if isinstance(turned, ast.Name):  # k = k.transpose(-2, -1) a line above
            value = self.source.value_of(turned)
            self.doubts.append("its key is turned elsewhere")
            turned = value if isinstance(value, ast.expr) else turned
        if isinstance(turned, ast.Attribute) and turned.attr == "mT":
            return query, turned.value
        if method(turned) == "transpose" and isinstance(turned, ast.Call) and len(turned.args) == 2:
            axes = tuple(ast.unparse(one) for one in turned.args)
            if axes in {(str(one), str(other)) for one, other in _LAST}:
                return query, receiver(turned)
        if method(turned) == "permute" and isinstance(turned, ast.Call):
            swapped = tuple(ast.unparse(one) for one in turned.args) in (("0", "1", "3", "2"), ("0", "2", "1"))
            return (query, receiver(turned)) if swapped else None
        return None

    def _forth(self, node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
        """The product of weights and value, through dropout and assignments."""
        for _ in range(8):
            above = self.source.parent(node)
            pair = _product(self.source, above)
            if isinstance(above, ast.expr) and pair is not None and pair[0] is node:
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
        if self.source.name_of(call.func) == "torch.nn.functional.dropout":
            given = {one.arg: self.source.segment(one.value) for one in call.keywords}
            names = ("p", "training")
            given |= {name: self.source.segment(one) for name, one in zip(names, call.args[1:], strict=False)}
            self.dropout = f"{given.get('p', '0.5')} if {given.get('training', 'True')} else 0.0"
            return True
        built = _built(self.source, call.func)
        written = self.source.segment(call.func)
        if built is not None and self.source.name_of(built.func) == "torch.nn.Dropout":
            self.dropout = f"{written}.p if {written}.training else 0.0"
            return True
        is_dropout = "drop" in written.rpartition(".")[2].lower()
        if is_dropout:
            self.doubts.append("its dropout is made elsewhere")
        return is_dropout

    def _is_needed(self, made: list[ast.stmt], product: ast.expr) -> bool:
        """Whether the weights, or the scores, are used for anything else: the fused kernel never shows them."""
        last = self.source.statement(product)
        names = {spelling(one.targets[0]) for one in made if isinstance(one, ast.Assign)} - {None}
        body = body_of(self.source, product)
        mentions = [one for one in own_nodes(self.source, body) if isinstance(one, ast.Name) and one.id in names]
        stored: set[str] = {one.id for one in mentions if isinstance(one.ctx, ast.Store) and last in
                            self.source.ancestors(one)}  # fmt: skip
        for one in sorted(mentions, key=lambda one: (one.lineno, one.col_offset)):
            statement = self.source.statement(one)
            if one.lineno < min([two.lineno for two in [*made, last]]) or statement in made or statement is last:
                continue
            if isinstance(one.ctx, ast.Store):
                stored.add(one.id)
            elif one.id not in stored:
                return True
        return False


def _product(source: Source, node: ast.AST | None) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if isinstance(node, ast.Call) and source.name_of(node.func) in _PRODUCTS and len(node.args) == 2:
        return node.args[0], node.args[1]
    if isinstance(node, ast.Call) and method(node) in ("matmul", "bmm") and len(node.args) == 1:
        return (receiver(node), node.args[0]) if source.name_of(node.func) is None else None
    if _is_einsum(source, node) and isinstance(node, ast.Call):
        return node.args[1], node.args[2]
    return None


def _is_einsum(source: Source, node: ast.AST | None) -> bool:
    is_named = isinstance(node, ast.Call) and source.name_of(node.func) == "torch.einsum"
    return is_named and isinstance(node, ast.Call) and len(node.args) == 3 and isinstance(node.args[0], ast.Constant)


def _contracts_last(node: ast.expr) -> bool:
    """Whether an einsum multiplies rows with rows: `bid,bjd->bij`."""
    assert isinstance(node, ast.Call) and isinstance(node.args[0], ast.Constant)
    taken, _, made = str(node.args[0].value).replace(" ", "").partition("->")
    one, _, other = taken.partition(",")
    return bool(one and other) and one[-1] == other[-1] and one[-1] not in made


def scale_argument(source: Source, found: Attention) -> str | None:
    """What the fused kernel is to multiply with; None for its own default, one over the root of the last axis."""
    if len(found.scales) > 1:
        return None
    if not found.scales:
        return "1.0"
    operator, scale = found.scales[0]
    written = ast.unparse(scale)
    for tensor in (found.query, found.key):
        for width in (f"{ast.unparse(tensor)}.size(-1)", f"{ast.unparse(tensor)}.shape[-1]"):
            roots = {f"math.sqrt({width})", f"np.sqrt({width})", f"{width} ** 0.5", f"sqrt({width})"}
            inverse = {f"{one} / {root}" for one in ("1", "1.0") for root in roots} | {f"{width} ** -0.5"}
            if written in (roots if isinstance(operator, ast.Div) else inverse):
                return None
    text = in_brackets(source, scale)
    return source.segment(scale) if isinstance(operator, ast.Mult) else f"1.0 / {text}"


def is_certain(source: Source, found: Attention) -> bool:
    """Whether it can be written as one call: all in one block, nothing it reads changed on the way."""
    last = source.statement(found.product)
    block = source.block(last)
    if found.doubts or len(found.scales) > 1 or not all(one in block for one in [*found.statements, last]):
        return False
    if any("torch." in ast.unparse(scale) for _, scale in found.scales):  # a tensor, where a number is wanted
        return False
    first = block.index(found.statements[0]) if found.statements else block.index(last)
    read = {spelling(one) for part in (found.query, found.key, found.value) for one in ast.walk(part)}
    changed = [node for one in block[first : block.index(last)] for node in ast.walk(one)]
    stored = {node.id for node in changed if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return not stored & read and not any(same(found.product, one) for one in found.statements)
