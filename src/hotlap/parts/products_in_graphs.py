"""Convolutions of single pixels in graphs that `lean_images` went through, and norms beside them: each tells the other
what it would have to read again."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from hotlap.parts.graph_operations import (
    CONVOLUTION,
    Writer,
    cast,
    given,
    is_changed_after,
    operation,
    square,
    turns_nothing,
    value,
)
from hotlap.parts.joined_norm import joined_product
from hotlap.parts.summed_convolution import is_gain, is_gain_back, summed_convolution

PRODUCTS = (torch.conv2d, summed_convolution)
_OF = "weight"  # under which a sum's node knows what it was made for


def take_sums(norm: Node) -> None:
    """What a norm needs of its pixels is told by the product that makes them, where that is no slower for it."""
    made = norm.args[0]
    product = _product_of(made)
    if product is None or set(made.users) != {norm} or not is_gain(*product.sizes) or not _is_roomy(made):
        return
    writer = Writer(made)
    x, weight = (cast(writer, one, value(made).dtype) for one in (product.x, product.weight))
    if not value(x).is_contiguous(memory_format=torch.channels_last):
        return writer.erase()
    summed = writer.function(summed_convolution, x, weight)
    summed.meta[_OF] = product.weight
    y, *told = _parts(summed, range(3), (value(made), *summed.meta["example_value"][1:]))
    norm.args, norm.kwargs = (y, *norm.args[1:]), {**norm.kwargs, "sums": tuple(told)}
    norm.graph.erase_node(made)


def take_product(pair: Node) -> None:
    """A product that alone reads one of a pair becomes part of what makes them: what it gives back is added up there,
    and never written."""
    twins = {node.args[1]: node for node in pair.users}
    for place, other in ((0, 1), (1, 0)):
        read = twins.get(place)
        reader = next(iter(read.users), None) if read is not None and len(read.users) == 1 else None
        if reader is not None and is_product_of(reader, read) and _join(pair, read, twins.get(other), reader):
            return


def is_product_of(reader: Node, read: Node) -> bool:
    """Whether it may become part of what makes that."""
    product = _product_of(reader)
    return product is not None and product.x is read and is_gain_back(*product.sizes) and _is_roomy(read)


def _join(pair: Node, read: Node, twin: Node | None, reader: Node) -> bool:
    product, is_summed = _product_of(reader), reader.target is summed_convolution
    assert product is not None
    weight, own = product.weight, reader.meta["example_value"]
    values = own if is_summed else (own,)
    is_there = weight.op in ("placeholder", "get_attr") and not is_changed_after(pair, weight)
    if not is_there or values[0].dtype is not value(read).dtype or not turns_nothing(pair, reader):
        return False
    if value(weight).requires_grad and not value(read).requires_grad:  # what is added would need gradients, too
        return False
    x, added, *norms = pair.args
    weight = cast(Writer(pair), weight, value(read).dtype)
    joined = pair.graph.create_node("call_function", joined_product, (x, added, weight, *norms), dict(pair.kwargs))
    pair.append(joined)
    out, y, *told = _parts(joined, range(1 + len(values)), (value(read), *values))
    if twin is not None:
        twin.replace_all_uses_with(out)
    if is_summed:
        for part in list(reader.users):
            part.replace_all_uses_with((y, *told)[part.args[1]])
            part.graph.erase_node(part)
    reader.replace_all_uses_with(y)
    casted = [one for one in reader.all_input_nodes if operation(one) == "to" and is_summed]
    for node in (reader, *casted, read, twin, pair):
        if node is not None and not node.users:
            node.graph.erase_node(node)
    return True


class _Product(NamedTuple):
    """A convolution of single pixels, with nothing added and none left out."""

    x: Node
    weight: Node  # as the script has it

    @property
    def sizes(self) -> tuple[int, int]:
        """Of inputs and outputs."""
        outputs, inputs = value(self.weight).shape[:2]
        return inputs, outputs


def _product_of(node: Any) -> _Product | None:
    if not isinstance(node, Node) or node.target not in PRODUCTS:
        return None
    if node.target is summed_convolution:
        return _Product(node.args[0], node.meta[_OF])  # type: ignore[arg-type]
    x, weight, bias, stride, padding, _, groups = given(node, *CONVOLUTION)
    if value(weight) is None or bias is not None or groups != 1 or square(stride) != 1 or square(padding) != 0:
        return None
    return _Product(x, weight) if tuple(value(weight).shape[2:]) == (1, 1) else None


def _is_roomy(node: Node) -> bool:
    """Whether processors of its device have memory of their own for tiles of ours: 160 KiB, where smaller chips have
    99."""
    device = value(node).device
    if device.type != "cuda":
        return True
    major, minor = torch.cuda.get_device_capability(device)
    return major in (9, 10) or (major, minor) == (8, 0)


def _parts(node: Node, places: Iterable[int], values: Sequence[Any]) -> list[Node]:
    """What it gives, one after the other."""
    node.meta["example_value"] = tuple(values)
    made = [node.graph.call_function(operator.getitem, (node, place)) for place in places]
    for part, one in zip(reversed(made), reversed(values), strict=True):
        node.append(part)
        part.meta["example_value"] = one
    return made
