"""Remarks on sizes and structure, each with its figure: alignment, and the four rules of ShuffleNet V2 (Ma et al.,
2018): G1 equal widths, G2 few groups, G3 few fragments, G4 little element-wise work."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import median
from typing import Any

from hotlap.observe.look.counting import Tally

_SHARE_WORTH_A_NOTE = 0.01  # of the layers' time: below, no change of this layer can be felt
_MULTIPLE = 8  # 16 bytes of a 16-bit number: what matrix units and vector loads take at once
_SMALLEST_SIZE = 16  # colours, a handful of classes: padding them would cost more than it brings
_TRAFFIC_WORTH_A_NOTE = 1.25  # times that of equal widths; just above the 1:4 of an ordinary bottleneck
_MANY_GROUPS = 4  # from here on an input channel is used by less than a quarter of the output's
_ELEMENTWISE_SHARE = 0.25  # fusing all of it could bring at most this
_LAUNCH_SECONDS = 5e-6  # what one operation costs the host, roughly, on any machine of these years
_FEWEST_PIECES = 100  # a model of fewer is small, not fragmented
_FRAGMENTED_SHARE = 0.2  # of the step, spent on launching pieces that are shorter than their launch
_COPIES = {"copy_", "fill_", "zero_", "native_dropout", "native_dropout_backward", "bernoulli_"}


def notes(module: Any, tally: Tally, share: float) -> list[str]:
    """On one layer; `share` is its part of all layers' time."""
    found = []
    intensity = tally.flops / tally.moved_bytes if tally.moved_bytes else 0.0
    groups = _groups(module)
    if groups > 1 and groups == module.in_channels and module.out_channels % groups == 0:
        return [f"depthwise: {intensity:.1f} flops a byte"] if intensity else ["depthwise"]
    if share < _SHARE_WORTH_A_NOTE:
        return []
    for side, size in odd_sizes(module):
        found.append(f"{side} {size} is not a multiple of {_MULTIPLE} ({size + -size % _MULTIPLE} is)")
    for size in sorted(tally.head_sizes):
        if size % _MULTIPLE:
            found.append(f"head size {size} is not a multiple of {_MULTIPLE} ({size + -size % _MULTIPLE} is)")
    if groups >= _MANY_GROUPS and intensity:
        found.append(f"{groups} groups: {intensity:.1f} flops a byte")
    if groups == 1 and _is_pointwise(module) and tally.forward_flops:
        narrow, wide = sorted((module.in_channels, module.out_channels))
        traffic = unequal_traffic(narrow, wide, tally.forward_flops / (2 * narrow * wide))
        if traffic >= _TRAFFIC_WORTH_A_NOTE:
            found.append(
                f"{module.in_channels} in, {module.out_channels} out: {traffic:.1f} times the traffic of equal widths"
            )
    return found


def unequal_traffic(narrow: int, wide: int, positions: float) -> float:
    """Memory traffic of a 1x1 convolution against one of equal widths and the same flops (G1)."""
    equal = (narrow * wide) ** 0.5
    return (positions * (narrow + wide) + narrow * wide) / (2 * positions * equal + narrow * wide)


def remarks(seconds_by_operation: dict[str, float], pieces: Sequence[float], steps: int, step_seconds: float,
            on_device: bool) -> list[str]:  # fmt: skip
    """On the model as a whole. `pieces` are the kernels or outermost operations of all steps together."""
    found = []
    short = sum(seconds < _LAUNCH_SECONDS for seconds in pieces) / steps
    what = "kernels" if on_device else "operations"
    if len(pieces) / steps >= _FEWEST_PIECES and short * _LAUNCH_SECONDS >= _FRAGMENTED_SHARE * step_seconds:
        found.append(
            f"fragmented: {len(pieces) / steps:,.0f} {what} a step, half of them under {median(pieces) * 1e6:.1f} us;"
            f" {short:,.0f} are shorter than what launching them costs"
        )
    total = sum(seconds_by_operation.values())
    elementwise = sum(seconds for name, seconds in seconds_by_operation.items() if is_elementwise(name))
    if total and elementwise >= _ELEMENTWISE_SHARE * total:
        found.append(f"element-wise operations take {elementwise / total:.0%} of the layers' time")
    return found


@cache
def is_elementwise(name: str) -> bool:
    """By torch's own tags; copies and fills count too."""
    import torch

    space, _, short = name.partition("::")
    packet = getattr(torch.ops.aten, short, None) if space == "aten" else None
    if packet is None:
        return False
    return short in _COPIES or any(torch.Tag.pointwise in getattr(packet, o).tags for o in packet.overloads())


def _groups(module: Any) -> int:
    """0 for what is not a convolution."""
    return int(getattr(module, "groups", 0)) if _is_convolution(module) else 0


def _is_convolution(module: Any) -> bool:
    from torch.nn.modules.conv import _ConvNd

    return isinstance(module, _ConvNd)


def _is_pointwise(module: Any) -> bool:
    return all(size == 1 for size in module.kernel_size)


def odd_sizes(module: Any) -> list[tuple[str, int]]:
    """The sizes of a layer that do not fill whole pieces, as ("in" or "out", size)."""
    return [(side, size) for side, size in _sizes(module) if size >= _SMALLEST_SIZE and size % _MULTIPLE]


def _sizes(module: Any) -> list[tuple[str, int]]:
    """What the script chose, by its own names; sizes that come from the data are not its mistakes."""
    from torch import nn

    if isinstance(module, nn.Linear):
        return [("in", module.in_features), ("out", module.out_features)]
    if _is_convolution(module):
        return [("in", module.in_channels // module.groups), ("out", module.out_channels // module.groups)]
    return []
