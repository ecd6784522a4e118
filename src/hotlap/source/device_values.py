"""What a step has on the device: batches moved there, outputs of its models, its loss, and what is made of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hotlap.source.bodies import method, receiver
from hotlap.source.models import model_spellings, run_by
from hotlap.source.names import spelling
from hotlap.source.transfers import is_device_move

if TYPE_CHECKING:
    from hotlap.source.module import Source

RANDOM = tuple(f"torch.{name}" for name in ("rand", "randn", "randint", "randperm"))
READS = ("item", "tolist", "cpu", "numpy")  # methods that bring a tensor's values to the host
_ON_HOST = {*READS, "size", "numel", "shape", "dim", "ndim", "dtype", "device", "data_ptr"}
_OF_TENSORS = {"argmax", "argmin", "detach", "mean", "norm", "sigmoid", "softmax", "sum"}  # a model's output is one


class DeviceValues:
    """The names that hold moved batches or results of a model in one loop or function, as certain as source can be."""

    def __init__(self, source: Source, place: ast.AST) -> None:
        self.source = source
        self.models = model_spellings(source)
        self.derived: set[str] = set()  # by whatever function: a tensor if a tensor's method is called on it
        self.tensors: set[str] = set()  # surely tensors
        kinds = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For
        statements = [node for node in ast.walk(place) if isinstance(node, kinds)]
        assigned = {name for one in statements if not isinstance(one, ast.For) for name in _stored(one)}
        for node in ast.walk(place):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
                losses = assigned.intersection(self._losses(node.func.value))
                self.derived |= losses
                self.tensors |= losses if isinstance(node.func.value, ast.Name) else set()
        self.moved: dict[str, int] = {}  # from which line on
        for statement in sorted(statements, key=lambda one: one.lineno):
            if isinstance(statement, ast.Assign):
                self._note_moves(statement.targets[0], statement.value)
            names = _stored(statement)
            value = statement.iter if isinstance(statement, ast.For) else statement.value
            if value is not None and self.is_derived(value):
                self.derived |= names
                if len(names) == 1 and self.is_tensor(value):
                    self.tensors |= names

    def _losses(self, node: ast.AST) -> Iterator[str]:
        """The names a loss is made of; what a model is given there is none of them."""
        if isinstance(node, ast.Name):
            yield node.id
        elif not isinstance(node, ast.Call) or run_by(node, self.models) is None:
            for child in ast.iter_child_nodes(node):
                yield from self._losses(child)

    def is_derived(self, node: ast.AST) -> bool:
        """Whether an expression is made of a model's results that were not brought to the host on the way."""
        if isinstance(node, ast.Attribute) and node.attr in _ON_HOST:
            return False
        if isinstance(node, ast.Call) and run_by(node, self.models):
            return True
        if isinstance(node, ast.Name):
            return node.id in self.derived or self._is_moved(node)
        return any(map(self.is_derived, ast.iter_child_nodes(node)))

    def is_tensor(self, node: ast.AST) -> bool:
        """Whether an expression is surely a tensor made of a model's results."""
        if isinstance(node, ast.Name):
            return node.id in self.tensors or self._is_moved(node)
        if isinstance(node, ast.BinOp):
            return self.is_tensor(node.left) or self.is_tensor(node.right)
        if isinstance(node, ast.UnaryOp):
            return not isinstance(node.op, ast.Not) and self.is_tensor(node.operand)
        if isinstance(node, ast.Compare):
            is_value = all(not isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops)
            return is_value and any(map(self.is_tensor, [node.left, *node.comparators]))
        if isinstance(node, ast.Call):
            name = self.source.name_of(node.func) or ""
            if name.startswith("torch."):
                return any(map(self.is_tensor, node.args))
            if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_TENSORS:
                return self.is_derived(node.func.value)
            if isinstance(node.func, ast.Attribute) and node.func.attr not in _ON_HOST:
                return self.is_tensor(node.func.value)
        return False

    def _note_moves(self, target: ast.expr, value: ast.expr) -> None:
        """`x = x.to(device)`, also several at once."""
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, part in zip(target.elts, value.elts, strict=True):
                self._note_moves(one, part)
        elif isinstance(target, ast.Name) and target.id not in self.models and isinstance(value, ast.Call):
            is_move = method(value) in ("to", "cuda") and is_device_move(self.source, value)
            if is_move and spelling(receiver(value)) not in self.models:
                self.moved.setdefault(target.id, value.lineno)

    def _is_moved(self, name: ast.Name) -> bool:
        return name.lineno > self.moved.get(name.id, name.lineno)


def _stored(statement: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For) -> set[str]:
    """The names in the targets of a statement: also those that only an element or an attribute of is set."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}


def draws_on_the_host(source: Source, call: ast.Call) -> bool:
    """`torch.randn(2)`, unless it is told of a device, or the whole script is."""
    if source.name_of(call.func) not in RANDOM or any(one.arg in ("device", None) for one in call.keywords):
        return False
    return not source.mentions("set_default_device", "set_default_tensor_type")
