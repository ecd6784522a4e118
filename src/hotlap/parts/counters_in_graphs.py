"""Counters that a graph moves on by one, such as those of batches that a norm has seen: all in one go."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Graph, Node

from hotlap.parts.graph_operations import shares_memory, value

_GIVEN = ("placeholder", "get_attr")


def count_together(graph: Graph) -> None:
    """A compiler makes one kernel of them, where it would start one for each."""
    given = [node for node in graph.nodes if node.op in _GIVEN]
    found = [node for node in graph.nodes if _is_counting(node) and _lies_alone(node.args[0], given)]
    kinds = {(value(node.args[0]).device, value(node.args[0]).dtype) for node in found}
    if len(found) < 2 or len(kinds) > 1:
        return
    with graph.inserting_before(found[0]):
        made = graph.call_function(torch._foreach_add_, ([node.args[0] for node in found], 1))
    made.meta["example_value"] = None
    for node in found:
        graph.erase_node(node)


def _is_counting(node: Node) -> bool:
    """Whether nobody in the graph reads what it counts, before or after."""
    if node.op != "call_method" or node.target != "add_" or node.users or node.kwargs or len(node.args) != 2:
        return False
    counter, by = node.args
    if not isinstance(counter, Node) or counter.op not in _GIVEN or value(counter) is None:
        return False
    is_alone = set(counter.users) == {node} and value(counter).dim() == 0 and not value(counter).is_floating_point()
    return is_alone and type(by) is int and by == 1


def _lies_alone(counter: Node, given: Sequence[Node]) -> bool:
    """Not as a part of what somebody may read in between."""
    return not any(shares_memory(counter, one) for one in given if one is not counter)
