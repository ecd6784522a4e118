"""Attention written by hand, found in a graph that dynamo traced, becomes one call of torch's own.

    from hotlap.parts.attention_in_graphs import fuse_attention

    fused = fuse_attention(graph_module)  # in place; how many there were, and why others were left

What counts is what the graph does with its tensors, not how the script is written: a product of queries and keys that
nobody else reads, scaled, masked, through softmax and dropout, and a product with values. Masks stay tensors, so that
nothing rests on what they hold. Where sizes or types would be others afterwards, the graph stays as it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn.functional import scaled_dot_product_attention

from hotlap.parts.graph_operations import (
    Writer,
    after,
    argument,
    changes_its_input,
    is_changed_after,
    is_same,
    is_setting,
    operation,
    permutation,
    shares_memory,
    value,
)
from hotlap.parts.scores_in_graphs import Left, Scores, letters, scores_of

_ENTER, _EXIT = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast
_COPYING = ("contiguous", "reshape", "flatten")  # whatever the strides are
NO_DROPOUT = ("cpu",)  # where no fused kernel has it


@dataclass
class Fused:
    count: int = 0
    left: list[str] = field(default_factory=list)  # why


@dataclass
class _Weights:
    """What becomes of a softmax: through dropout to the product with values."""

    nodes: list[Node]
    product: Node
    dropout: float
    values: tuple[Node, list[int]]  # with the order of their dimensions that makes rows of them
    order: list[int]  # in which rows of the result are handed on


def fuse_attention(graph_module: GraphModule) -> Fused:
    graph, found = graph_module.graph, Fused()
    for node in list(graph.nodes):
        if operation(node) and changes_its_input(node):
            _read_result(node)
    for node in list(graph.nodes):
        try:
            if operation(node) == "softmax":
                found.count += _fuse(node)
            elif operation(node) == "multi_head_attention":
                found.count += _drop_weights(node)
        except Left as why:
            found.left.append(str(why))
    if found.count:
        graph_module.recompile()
    return found


def _fuse(softmax: Node) -> bool:
    weights = _weights(softmax)
    if weights is None:
        return False
    given = softmax.args[0] if softmax.args else softmax.kwargs.get("input")
    scores = scores_of(given, softmax)
    size = value(scores.product).shape
    if _last(softmax) not in (-1, len(size) - 1):
        raise Left("its softmax does not go along the keys")
    _check_between(scores.product, weights.product, {*scores.nodes, *weights.nodes})
    device = value(scores.product).device.type
    if weights.dropout and device in NO_DROPOUT:
        raise Left("on a CPU dropout rules the fused kernel out")
    writer = Writer(weights.product)
    try:
        made = _attend(writer, scores, weights)
        plain, ours = value(weights.product), value(made)
        if ours is None or ours.dtype is not plain.dtype or not is_same(ours.shape, plain.shape):
            raise Left("it would come out otherwise")
    except Left:
        writer.erase()
        raise
    except Exception as error:  # torch's own words about sizes and types
        writer.erase()
        raise Left(f"torch's own attention does not take it: {error}".splitlines()[0]) from error
    weights.product.replace_all_uses_with(made)
    for node in [*reversed(weights.nodes), *reversed(scores.nodes)]:
        if not node.users:
            softmax.graph.erase_node(node)
    return True


def _attend(writer: Writer, scores: Scores, weights: _Weights) -> Node:
    with _autocast_at(weights.product):
        query, key = (_laid_out(writer, *one) for one in (scores.query, scores.key))
        values = _laid_out(writer, *weights.values)
        rows = len(value(query).shape)
        if not is_same(value(values).shape[:-1], value(key).shape[:-1]):
            raise Left("its values are shared between keys or heads")
        if any(is_changed_after(scores.product, one) for one, _ in (scores.query, scores.key, weights.values)):
            raise Left("what it is made of is changed in place later")  # and kept for backward
        query, mask, scale = scores.apply(writer, query, value(weights.product).dtype)
        if rows == 3:
            query, key, values = (writer.method("unsqueeze", one, 0) for one in (query, key, values))
        options: dict[str, Any] = {"dropout_p": weights.dropout, "scale": scale}
        if mask is not None:
            options["attn_mask"] = mask
        made = writer.function(scaled_dot_product_attention, query, key, values, **options)
        if rows == 3:
            made = writer.method("squeeze", made, 0)
        made = _laid_out(writer, made, weights.order)
        if _is_changed_later(weights.product):  # the kernel keeps what it gave, for backward
            return writer.method("clone", made, memory_format=torch.contiguous_format)
        return made if _is_copied(weights.product) else writer.method("contiguous", made)


def _laid_out(writer: Writer, node: Node, order: list[int]) -> Node:
    return node if order == sorted(order) else writer.method("permute", node, order)


def _weights(softmax: Node) -> _Weights | None:
    """None where no product follows: then it is another softmax, of a classifier for instance."""
    node, nodes, dropout = softmax, [softmax], None
    axes = list(range(value(softmax).dim()))
    while True:
        users = list(node.users)
        if len(users) != 1:
            if any(operation(user) in ("matmul", "einsum", "dropout") for user in users):
                raise Left("its weights are used elsewhere as well")
            return None
        user = users[0]
        kind, nodes, turned = operation(user), [*nodes, user], permutation(user)
        if kind == "dropout" and dropout is None:
            dropout = _share_dropped(user)
        elif kind in ("matmul", "einsum"):
            return _Weights(nodes, user, dropout or 0.0, *_values(user, node, axes))
        elif turned is not None:
            axes = [axes[place] for place in turned]
        elif kind != "to" or changes_its_input(user) or user.args[0] is not node or not _is_real(user):
            return None
        node = user


def _is_real(node: Node) -> bool:
    return value(node) is not None and value(node).dtype.is_floating_point


def _values(product: Node, weights: Node, axes: list[int]) -> tuple[tuple[Node, list[int]], list[int]]:
    """What weights, whose axes are in that order, are multiplied with; and the order of the result."""
    (*names, made), operands = letters(product)
    if len(axes) < 2:
        raise Left("its weights are of one axis")
    place = operands.index(weights)
    *heads, query, key = (names[place][axes.index(axis)] for axis in range(len(axes)))
    values = names[1 - place]
    width = "".join({*values} - {*names[place]})
    if len(width) != 1 or {*values} != {*heads, key, width} or {*made} != {*heads, query, width}:
        raise Left("its product with values is of another kind")
    rows = [*heads, query, width]
    return (operands[1 - place], [values.index(one) for one in (*heads, key, width)]), [rows.index(one) for one in made]


def _share_dropped(node: Node) -> float:
    share, training = argument(node, "p"), argument(node, "training")
    share, training = 0.5 if share is None else share, True if training is None else training
    if not isinstance(share, (int, float)) or not isinstance(training, bool) or changes_its_input(node):
        raise Left("its dropout is of another kind")
    return float(share) if training else 0.0


def _last(softmax: Node) -> Any:
    found = argument(softmax, "dim")
    return softmax.args[1] if found is None and len(softmax.args) > 1 else found


def _check_between(first: Node, last: Node, own: set[Node]) -> None:
    """What was read at the first product must still be there at the last, gradients and autocast as they were."""
    node = first
    while node is not last:
        if node not in own and changes_its_input(node):
            raise Left("something is changed in place meanwhile")
        if is_setting(node):
            raise Left("gradients or autocast are turned on or off meanwhile")
        node = node.next


def _is_copied(product: Node) -> bool:
    """Whether what reads it asks for no strides: turned round and copied, as heads are put side by side."""
    node = product
    while len(node.users) == 1:
        node = next(iter(node.users))
        if node.op != "call_method":
            return False
        if node.target in _COPYING:
            return True
        if node.target not in ("transpose", "permute", "swapaxes", "movedim"):
            return False
    return False


def _is_changed_later(product: Node) -> bool:
    """Whether what comes out may be changed in place: here, or by whoever is given it."""
    same = {product}
    for node in after(product):
        read = same.intersection(node.all_input_nodes)
        if read and (node.op == "output" or changes_its_input(node)):
            return True
        if any(operation(node) == "to" or node.target in _COPYING or shares_memory(node, one) for one in read):
            same.add(node)
    return False


def _autocast_at(node: Node) -> Any:
    """What the graph has entered by itself until there."""
    from contextlib import ExitStack

    open_: dict[Node, Node] = {}
    for one in node.graph.nodes:
        if one is node:
            break
        if one.target is _ENTER:
            open_[one] = one
        elif one.target is _EXIT:
            open_.pop(one.args[0], None)
    stack = ExitStack()
    for one in open_:
        device, dtype, enabled, cache = one.args
        stack.enter_context(torch.amp.autocast_mode.autocast(device, dtype, enabled, cache))
    return stack


def _read_result(node: Node) -> None:
    """After `scores.masked_fill_(mask, low)`, what reads `scores` reads the result, which is the same tensor."""
    changed = node.args[0] if node.args else None
    if not isinstance(changed, Node):
        return
    for user in changed.users.keys() & set(after(node)):
        user.replace_input_with(changed, node)


def _drop_weights(node: Node) -> bool:
    """Torch's own module makes its weights to give them back, where it is not told that nobody wants them."""
    is_wanted = argument(node, "need_weights")
    if (
        is_wanted is False
        or argument(node, "is_causal")
        or (is_wanted is not None and "need_weights" not in node.kwargs)
    ):
        return False
    for user in node.users:
        if getattr(user.target, "__name__", "") != "getitem" or user.args[1] != 0:
            raise Left("its weights are used elsewhere as well")
    is_dropping = argument(node, "dropout_p") and argument(node, "training") is not False
    if is_dropping and value(node.args[0]).device.type in NO_DROPOUT:
        raise Left("on a CPU dropout rules the fused kernel out")
    node.kwargs = {**node.kwargs, "need_weights": False}
    return True
