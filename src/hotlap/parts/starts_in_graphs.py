"""Where a graph that `lean_images` went through begins with what `image_start` makes at once."""

from __future__ import annotations

import operator

from torch._ops import HigherOrderOperator
from torch.fx import Graph, Node

from hotlap.parts.graph_operations import is_changed_after, shares_memory, turns_nothing, value
from hotlap.parts.image_start import MOST, image_start
from hotlap.parts.image_stem import convolve_blocks
from hotlap.parts.summed_norm import batch_norm
from hotlap.parts.window_maxima import pooled


def join_starts(graph: Graph) -> None:
    """Makes one of a first convolution, norm, relu and pooling that hand on to each other alone."""
    for node in list(graph.nodes):
        if node.target is pooled:
            _join(node)


def _join(pool: Node) -> None:
    norm, *window = pool.args
    convolution = norm.args[0] if isinstance(norm, Node) and norm.target is batch_norm else None
    if not isinstance(convolution, Node) or convolution.target is not convolve_blocks or window[0] > MOST:
        return
    is_alone = set(norm.users) == {pool} and set(convolution.users) == {norm} and norm.kwargs.get("is_rectified")
    if not is_alone or _needs_gradient(convolution.args[0]) or not turns_nothing(convolution, pool):
        return
    if any(is_changed_after(convolution, one) for one in convolution.all_input_nodes):  # it would come too late
        return
    readers = list(pool.users)
    is_read_twice = len(readers) > 1 and can_be_twins(pool)
    with norm.graph.inserting_before(norm):  # its running statistics are moved on there
        made = norm.graph.call_function(image_start, (convolution.args, norm.args[1:], tuple(window), is_read_twice))
        outs = [norm.graph.call_function(operator.getitem, (made, place)) for place in range(1 + is_read_twice)]
    for out in outs:
        out.meta["example_value"] = value(pool)
    made.meta["example_value"] = (value(pool),) * len(outs)
    for reader in readers[1:]:
        reader.replace_input_with(pool, outs[-1])
    pool.replace_all_uses_with(outs[0])
    for node in (pool, norm, convolution):
        node.graph.erase_node(node)


def can_be_twins(node: Node) -> bool:
    """Whether its readers may be given two tensors that lie in one place. Not if one is written to, which torch
    refuses, or may be outside of the graph, which autograd would not notice; nor if somebody asks for its gradient."""
    if any("example_value" not in one.meta or isinstance(one.target, HigherOrderOperator) for one in node.users):
        return False  # a hook
    is_given_out = any(shares_memory(node, one) for one in node.graph.output_node().all_input_nodes)
    return not is_given_out and not is_changed_after(node, node)


def _needs_gradient(image: Node) -> bool:
    return any(value(one) is None or value(one).requires_grad for one in (image, *image.all_input_nodes))
