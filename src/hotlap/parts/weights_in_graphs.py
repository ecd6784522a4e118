"""Weights of convolutions in a graph that `lean_images` went through, which autocast would lower one by one."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from hotlap.parts.graph_operations import changes_its_input, operation, turns_nothing, value, writes_to
from hotlap.parts.lowered_weights import lowered

_LOW = (torch.bfloat16, torch.float16)


def lower_together(graph: Graph) -> None:
    """Before the first of those that read them, where nothing is written to them and gradients are on or off for all
    that read them as they are there."""
    readers = list(_readers(graph))
    if not readers:
        return
    first, kind = readers[0][0], readers[0][2]
    writers = [node for node in graph.nodes if changes_its_input(node)]
    found: dict[Node, list[Node]] = {}
    for reader, weight, wanted in readers:
        is_changed = any(writes_to(one, weight) for one in writers)
        if wanted is kind and not is_changed and (reader is first or turns_nothing(first, reader)):
            found.setdefault(weight, []).append(reader)
    if len(found) < 2:
        return
    with graph.inserting_before(first):
        made = graph.call_function(lowered, (kind, *found))
        parts = [graph.call_function(operator.getitem, (made, place)) for place in range(len(found))]
    made.meta["example_value"] = tuple(torch.empty_like(value(weight), dtype=kind) for weight in found)
    for part, one, (weight, its) in zip(parts, made.meta["example_value"], found.items(), strict=True):
        part.meta["example_value"] = one
        for reader in its:
            if operation(reader) == "to":
                reader.replace_all_uses_with(part)
                graph.erase_node(reader)
            else:
                reader.replace_input_with(weight, part)


def _readers(graph: Graph) -> Iterator[tuple[Node, Node, Any]]:
    """Convolutions that autocast lowers a weight for, and those places where it is done already; with the weight, and
    to what."""
    for node in graph.nodes:
        is_cast = operation(node) == "to" and len(node.args) == 2 and node.args[1] in _LOW and not node.kwargs
        weight = node.args[0] if is_cast else _weight(node)
        if isinstance(weight, Node) and weight.op in ("placeholder", "get_attr") and value(weight) is not None:
            tensor, made = value(weight), value(node)
            is_trained = tensor.requires_grad and tensor.dtype is torch.float32 and tensor.dim() == 4
            if is_trained and isinstance(tensor, torch.nn.Parameter) and made is not None and made.dtype in _LOW:
                yield node, weight, made.dtype


def _weight(node: Node) -> Any:
    given = dict(zip(("input", "weight"), node.args, strict=False)) | node.kwargs
    return given.get("weight") if node.target is torch.conv2d else None
