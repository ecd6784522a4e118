"""What the compiler does slowly with images in channels_last, said otherwise in a graph that dynamo traced.

    from hotlap.parts.images_in_graphs import lean_images

    count = lean_images(graph_module)  # in place, before it is compiled; how many there were

The first convolution does not stride. Batch norm takes plain sums, and what is added and rectified after it with it;
convolutions of single pixels beside it tell it theirs. Overlapping windows give their gradients back in one kernel.
Where a network begins with all of these they are made at once. Each is the same mathematics; what would come out in
another size, type or layout stays as it is. Run operation by operation the graph would be slower than before: this is
for a compiler to fuse."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional

from hotlap.parts.counters_in_graphs import count_together
from hotlap.parts.graph_operations import (
    CONVOLUTION,
    Writer,
    between,
    cast,
    changes_its_input,
    given,
    is_same,
    operation,
    square,
    turns_nothing,
    value,
    writes_to,
)
from hotlap.parts.image_stem import convolve_blocks
from hotlap.parts.joined_norm import joined_batch_norm
from hotlap.parts.products_in_graphs import PRODUCTS, is_product_of, take_product, take_sums
from hotlap.parts.starts_in_graphs import can_be_twins, join_starts
from hotlap.parts.summed_norm import batch_norm
from hotlap.parts.weights_in_graphs import lower_together
from hotlap.parts.window_maxima import MOST, pooled

LOW = (torch.bfloat16, torch.float16)
_RELU = (functional.relu, torch.relu, torch.relu_)
_FROM_MEMORY = (*PRODUCTS, convolve_blocks, pooled)  # no compiler makes one with its input
_FEW_CHANNELS, _LONGEST_STRIDE = 4, 4


def lean_images(graph_module: GraphModule, devices: Sequence[str] = ("cuda",)) -> int:
    count = 0
    if any("increment_nesting" in getattr(node.target, "__name__", "") for node in graph_module.graph.nodes):
        return count  # of torch.func, which takes no functions like ours
    for node in list(graph_module.graph.nodes):
        change = _CHANGES.get(node.target) if node.op == "call_function" else None
        if change is not None and _is_of_images(node, devices):
            count += _changed(node, change)
    for target, take in ((batch_norm, take_sums), (batch_norm, _take_in), (joined_batch_norm, take_product)):
        for node in list(graph_module.graph.nodes):
            if node.target is target:
                take(node)
    join_starts(graph_module.graph)
    if count:
        count_together(graph_module.graph)
        lower_together(graph_module.graph)
        graph_module.recompile()
    return count


def _take_in(norm: Node) -> None:
    """Relu becomes part of it, where nothing else reads it, or what is added and then rectified."""
    reader = _only_reader(norm)
    if reader is None or not turns_nothing(norm, reader):
        return
    if _is_relu(reader):
        is_whole = all(one.target in _FROM_MEMORY for one in reader.users)
        norm.kwargs = {**norm.kwargs, "is_rectified": True, "is_whole": is_whole}
        reader.replace_all_uses_with(norm)
        norm.graph.erase_node(reader)
    elif operation(reader) == "add":
        _join(norm, reader, _only_reader(reader))


def _join(norm: Node, add: Node, relu: Node | None) -> None:
    x, *others = norm.args
    added = next((one for one in add.args if one is not norm), None)
    if relu is None or not _is_relu(relu) or len(add.args) != 2 or add.kwargs or not _is_alike(added, norm):
        return
    is_twofold = _is_plain_norm(added) and _only_reader(added) is add
    writes = changes_its_input(add) and add.args[0] is not norm and not is_twofold
    is_apart = not value(relu).is_contiguous(memory_format=torch.channels_last)
    if not _can_wait(norm, relu) or writes or is_apart:
        return
    is_twofold = is_twofold and _can_wait(added, relu)
    given = (x, added.args[0], *others, *added.args[1:]) if is_twofold else (x, added, *others)
    with add.graph.inserting_before(add):
        sums = [one.kwargs.get("sums") for one in (norm, *([added] if is_twofold else []))]
        pair = add.graph.call_function(joined_batch_norm, given, {"sums": sums} if any(sums) else {})
        first, second = (add.graph.call_function(operator.getitem, (pair, place)) for place in (0, 1))
    first.meta["example_value"] = second.meta["example_value"] = value(relu)
    pair.meta["example_value"] = (value(relu), value(relu))
    readers = sorted(relu.users, key=lambda one: not is_product_of(one, relu))  # one may become part of it
    for reader in readers[1:] if can_be_twins(relu) else ():
        reader.replace_input_with(relu, second)
    relu.replace_all_uses_with(first)
    for node in (relu, add, norm, *([added] if is_twofold else [])):
        node.graph.erase_node(node)


def _is_plain_norm(node: Node) -> bool:
    return node.target is batch_norm and "is_rectified" not in node.kwargs


def _can_wait(norm: Node, last: Node) -> bool:
    """Whether it is the same there: nobody else has to do with its pixels and its running statistics, nothing that it
    reads is written to before, and gradients are on or off as they were."""
    is_alone = all(set(one.users) == {norm} for one in norm.args[:3] if isinstance(one, Node))
    is_changed = any(writes_to(one, given) for one in between(norm, last) for given in norm.all_input_nodes)
    return is_alone and turns_nothing(norm, last) and not is_changed


def _only_reader(node: Node) -> Node | None:
    reader, *others = node.users or [None]
    return None if others else reader


def _is_relu(node: Node) -> bool:
    by_function = node.op == "call_function" and node.target in _RELU
    return by_function or (node.op == "call_method" and node.target in ("relu", "relu_"))


def _is_alike(one: Any, other: Node) -> bool:
    """Whether it is a tensor of the same size and type."""
    first, second = value(one), value(other)
    return first is not None and first.dtype is second.dtype and is_same(first.shape, second.shape)


def _changed(node: Node, change: Any) -> bool:
    writer, plain = Writer(node), value(node)
    try:
        made = change(writer, node)
    except Exception:  # torch's own, about sizes and types: it is a change that nobody needs
        made = None
    ours = value(made)
    if ours is None or ours.dtype is not plain.dtype or not is_same(ours.shape, plain.shape):
        writer.erase()
        return False
    made.meta["example_value"] = plain  # where others that the graph makes of it lie, too
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
    return True


def _is_of_images(node: Node, devices: Sequence[str]) -> bool:
    """Whether it makes some in channels_last, of images whose size is known."""
    made, given = value(node), value(node.args[0] if node.args else node.kwargs.get("input"))
    if made is None or given is None or made.dim() != 4 or given.dim() != 4:
        return False
    is_known = all(isinstance(size, int) for size in (*given.shape[1:], *made.shape[1:]))
    return is_known and made.device.type in devices and made.is_contiguous(memory_format=torch.channels_last)


def _convolution(writer: Writer, node: Node) -> Node | None:
    x, weight, bias, stride, padding, dilation, groups = given(node, *CONVOLUTION)
    kind, step, border = value(node).dtype, square(stride), square(padding)
    if kind not in LOW or value(weight) is None or step is None or border is None:
        return None
    if not isinstance(value(x).shape[0], int):  # torch pads no images whose number is a symbol: it would fix it
        return None
    _, channels, high, wide = value(weight).shape
    is_first = channels <= _FEW_CHANNELS and groups == 1 and square(dilation) == 1
    if not is_first or high != wide or not 1 < step <= min(high, _LONGEST_STRIDE):
        return None
    x, weight, bias = (None if one is None else cast(writer, one, kind) for one in (x, weight, bias))
    return writer.function(convolve_blocks, x, weight, bias, step, border)


def _norm(writer: Writer, node: Node) -> Node | None:
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    x, *statistics, training, momentum, eps = given(node, names, (None, None, False, 0.1, 1e-5))
    high, wide = value(x).shape[2:]
    are_floats = all(one is None or value(one).dtype is torch.float32 for one in statistics)
    is_plain = training is True and isinstance(momentum, float) and isinstance(eps, float)
    if value(node).dtype not in LOW or not is_plain or not are_floats or high * wide == 1:
        return None
    return writer.function(batch_norm, x, *statistics, momentum, eps)


def _pooling(writer: Writer, node: Node) -> Node | None:
    names = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    x, kernel, stride, padding, dilation, *others = given(node, names, (None, 0, 1, False, False))
    side, border = square(kernel), square(padding)
    step = side if stride is None or stride == [] else square(stride)
    is_plain = square(dilation) == 1 and not any(others)
    if side is None or step is None or border is None or not is_plain or not step < side <= MOST:
        return None
    is_apart = not value(x).is_contiguous(memory_format=torch.channels_last)
    if is_apart or not value(x).requires_grad or value(x).dtype not in (*LOW, torch.float32):
        return None
    if value(x).is_cuda and find_spec("triton") is None:
        return None
    return writer.function(pooled, x, side, step, border)


_CHANGES = {torch.conv2d: _convolution, functional.batch_norm: _norm, functional.max_pool2d: _pooling}
