"""Where a graph that `lean_images` went through begins with what `image_start` makes at once."""

from __future__ import annotations

import operator

from torch.fx import Graph, Node

from hotlap.parts.graph_operations import is_changed_after, value
from hotlap.parts.image_start import MOST, image_start
from hotlap.parts.image_stem import convolve_blocks
from hotlap.parts.summed_norm import batch_norm
from hotlap.parts.window_maxima import pooled


def join_starts(graph: Graph) -> int:
    """Makes one of a first convolution, norm, relu and pooling that hand on to each other alone."""
    return sum(_join(node) for node in list(graph.nodes) if node.target is pooled)


def _join(pool: Node) -> bool:
    norm, *window = pool.args
    convolution = norm.args[0] if isinstance(norm, Node) and norm.target is batch_norm else None
    if not isinstance(convolution, Node) or convolution.target is not convolve_blocks or window[0] > MOST:
        return False
    is_alone = set(norm.users) == {pool} and set(convolution.users) == {norm} and norm.kwargs.get("is_rectified")
    if not is_alone or _needs_gradient(convolution.args[0]):
        return False
    if any(is_changed_after(convolution, one) for one in convolution.all_input_nodes):  # it would come too late
        return False
    readers = list(pool.users)
    is_read_twice = len(readers) > 1 and not is_changed_after(pool, pool)  # torch refuses to change one of two
    with norm.graph.inserting_before(norm):  # its running statistics are moved on there
        made = norm.graph.call_function(image_start, (convolution.args, norm.args[1:], tuple(window), is_read_twice))
        outs = [norm.graph.call_function(operator.getitem, (made, place)) for place in range(1 + is_read_twice)]
    for out in outs:
        out.meta["example_value"] = value(pool)
    for reader in readers[1:]:
        reader.replace_input_with(pool, outs[-1])
    pool.replace_all_uses_with(outs[0])
    for node in (pool, norm, convolution):
        node.graph.erase_node(node)
    return True


def _needs_gradient(image: Node) -> bool:
    return any(value(one) is None or value(one).requires_grad for one in (image, *image.all_input_nodes))
