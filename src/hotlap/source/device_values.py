"""What a step computes on the device: the outputs of its models, its loss, and what is made of them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from hotlap.source.models import model_spellings
from hotlap.source.names import spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source

READS = ("item", "tolist", "cpu", "numpy")  # methods that bring a tensor's values to the host
_ON_HOST = {*READS, "size", "numel", "shape", "dim", "ndim", "dtype", "device", "data_ptr"}
_OF_TENSORS = {"argmax", "argmin", "detach", "mean", "norm", "sigmoid", "softmax", "sum"}  # a model's output is one


class DeviceValues:
    """The names that hold results of a model in one loop or function, as certain as source can be."""

    def __init__(self, source: Source, place: ast.AST) -> None:
        self.source = source
        self.models = model_spellings(source)
        self.derived: set[str] = set()  # by whatever function: a tensor if a tensor's method is called on it
        self.tensors: set[str] = set()  # surely tensors
        for node in ast.walk(place):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
                losses = [one.id for one in ast.walk(node.func.value) if isinstance(one, ast.Name)]
                if isinstance(node.func.value, ast.Name):
                    self.tensors.update(losses)
                self.derived.update(losses)
        kinds = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For
        statements = [node for node in ast.walk(place) if isinstance(node, kinds)]
        for statement in sorted(statements, key=lambda one: one.lineno):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
            value = statement.iter if isinstance(statement, ast.For) else statement.value
            if value is not None and self.is_derived(value):
                self.derived |= names
                if len(names) == 1 and self.is_tensor(value):
                    self.tensors |= names

    def is_derived(self, node: ast.AST) -> bool:
        """Whether an expression is made of a model's results that were not brought to the host on the way."""
        if isinstance(node, ast.Attribute) and node.attr in _ON_HOST:
            return False
        if isinstance(node, ast.Call) and spelling(node.func) in self.models:
            return True
        if isinstance(node, ast.Name):
            return node.id in self.derived
        return any(map(self.is_derived, ast.iter_child_nodes(node)))

    def is_tensor(self, node: ast.AST) -> bool:
        """Whether an expression is surely a tensor made of a model's results."""
        if isinstance(node, ast.Name):
            return node.id in self.tensors
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
