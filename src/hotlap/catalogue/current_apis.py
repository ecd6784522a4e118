"""Today's names for yesterday's speed APIs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hotlap.source.bodies import constant, in_brackets
from hotlap.source.calls import ABSENT, UNSURE, Call
from hotlap.source.edits import Edit, add_import, replace_node
from hotlap.source.names import spelling
from hotlap.technique import Family, Parity, Setting, Technique

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.module import Fix, Site, Source

# Old name -> device that the new one wants as its first argument, and the first parameter the old one had.
AMP = {
    "torch.cuda.amp.autocast": ("cuda", "enabled"),
    "torch.cuda.amp.autocast_mode.autocast": ("cuda", "enabled"),
    "torch.cpu.amp.autocast": ("cpu", "enabled"),
    "torch.cuda.amp.GradScaler": ("cuda", ""),
    "torch.cuda.amp.grad_scaler.GradScaler": ("cuda", ""),
    "torch.cpu.amp.GradScaler": ("cpu", ""),
}
RENAMED = ("torch.nn.utils.clip_grad_norm", "torch.nn.utils.clip_grad.clip_grad_norm")
VARIABLES = ("torch.autograd.Variable", "torch.autograd.variable.Variable")
SCRIPTED = ("torch.jit.script", "torch.jit.trace")
REPORTED = {
    "apex.amp.initialize": "apex.amp is no longer kept up; torch.autocast and torch.amp.GradScaler replace it",
    "torch.cuda.amp.custom_fwd": 'deprecated: torch.amp.custom_fwd(device_type="cuda")',
    "torch.cuda.amp.custom_bwd": 'deprecated: torch.amp.custom_bwd(device_type="cuda")',
    "torch.backends.cuda.sdp_kernel": "deprecated: torch.nn.attention.sdpa_kernel",
}
LOSSES = re.compile(r"torch\.nn\.(\w+Loss\w*|functional\.(\w+_loss|\w*cross_entropy\w*|kl_div|\w+_with_logits))$")


class CurrentApis(Technique):
    """Scripts written for an older torch run again, without warnings, on the calls that are kept fast today.

    ## Why it is faster
    By itself it mostly is not: the old names of mixed precision and clipping lead to the same code. What is gained is
    that the script runs at all (`loss.data[0]`, `volatile=True` and Apex are gone or without effect), and that the next
    release does not break it. TorchScript is the exception: it is deprecated and fuses less than `torch.compile`.

    ## When it does not help
    A script that must also run on a torch older than 2.4 needs the old names. What was compiled with TorchScript to be
    saved and loaded elsewhere is left alone. `F.sigmoid` and `F.tanh`, which old lists call deprecated, no longer are,
    and are not reported. What cannot be replaced one for one is reported and not rewritten.

    ## What changes numerically
    Nothing for renamed calls and for `reduction=`. `Variable(x)` also cut x from its graph, so its fix, and the one of
    `.data[0]`, are marked unsafe. Apex and TorchScript, when replaced by hand, round otherwise.

    ## Claims
    The lists recommend Apex's `amp.initialize(model, optimizer, opt_level="O1")` and `@torch.jit.script` on chains of
    point-wise operations. Both were right at the time. Autocast is part of torch since 1.6, `torch.jit.script` warns
    that it is deprecated, and `torch.compile` now does what it was recommended for.
    """

    family = Family.COMPUTE
    aliases = ("torch.cuda.amp", "clip_grad_norm", "torch.jit.script", "apex.amp", "Variable", "deprecated")

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def spot(self, source: Source) -> Iterator[Site]:
        yield from _old_amp(source)
        for call in source.calls(*RENAMED):
            fix: Fix = "safe" if isinstance(call.node.func, ast.Attribute) else None
            yield source.site(call.node, "clip_grad_norm is deprecated; clip_grad_norm_ clips in place", fix)
        for call in source.calls(*VARIABLES):
            yield _old_variable(source, call)
        for node in source.names.parents:
            if _reads_first(node):
                yield source.site(node, "a loss has no first element since torch 0.4; .item() reads it", "unsafe")
        for node in source.names.call_nodes if source.mentions("size_average", "reduce") else ():
            call = Call(node, source.name_of(node.func) or "", source)
            if LOSSES.match(call.name) and _asks_old_way(call):
                fix = "safe" if _reduction(call) else None
                yield source.site(node, "size_average and reduce are deprecated; reduction= says it", fix)
        for call in source.calls(*REPORTED):
            yield source.site(call.node, REPORTED[call.name])
        if not source.mentions("save", "save_to_buffer", "freeze", "export"):
            for node in _scripted(source):
                yield source.site(node, "torch.jit is deprecated; torch.compile fuses more")

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source, node = site.source, site.node
        if isinstance(node, ast.Subscript):  # loss.data[0]
            assert isinstance(node.value, ast.Attribute)
            return replace_node(source, node, f"{source.segment(node.value.value)}.item()")
        assert isinstance(node, ast.Call)
        call = Call(node, source.name_of(node.func) or "", source)
        if call.name in AMP:
            return _new_amp(source, call)
        if call.name in RENAMED:
            return replace_node(source, node.func, f"{source.segment(node.func)}_")
        if call.name in VARIABLES:
            return replace_node(source, node, in_brackets(source, node.args[0]))
        return _new_reduction(source, call)


def _old_amp(source: Source) -> Iterator[Site]:
    for call in source.calls(*AMP):
        device, name = AMP[call.name][0], call.name.rpartition(".")[2]
        fix: Fix = "safe" if _takes_device(call) else None
        yield source.site(call.node, f'deprecated: torch.amp.{name}("{device}")', fix)


def _takes_device(call: Call) -> bool:
    """Whether the device can be put in front: autocast's other parameters stand in another order now."""
    is_plain = not any(isinstance(one, ast.Starred) for one in call.node.args)
    return is_plain and (len(call.node.args) <= 1 or not AMP[call.name][1])


def _new_amp(source: Source, call: Call) -> Iterator[Edit]:
    device, first = AMP[call.name]
    given = [*call.node.args, *call.node.keywords]
    added = f'"{device}"' + (", " if given else "") + (f"{first}=" if first and call.node.args else "")
    opening = source.text.index("(", source.lines.span(call.node.func)[1]) + 1
    start = min((source.lines.span(one)[0] for one in given), default=opening)
    place = opening if source.text[opening:start].strip() else start  # a bracket may stand before the first one
    yield Edit(place, place, added)
    imported = _import_of(source, call)
    if imported is not None:
        start = source.text.index(imported.module or "", source.lines.span(imported)[0])
        yield Edit(start, start + len(imported.module or ""), "torch.amp")
        return
    torch = source.names.spelled("torch")
    yield from replace_node(source, call.node.func, f"{torch or 'torch'}.amp.{call.name.rpartition('.')[2]}")
    if torch is None:
        yield from add_import(source, "import torch")


def _import_of(source: Source, call: Call) -> ast.ImportFrom | None:
    """The import a bare name came by, where it brings only what torch.amp has as well and all its calls are mended."""
    if not isinstance(call.node.func, ast.Name):
        return None
    for node in source.names.parents:
        if isinstance(node, ast.ImportFrom) and f"{node.module}.{node.names[0].name}" in AMP:
            names = {one.asname or one.name for one in node.names}
            is_whole = all(f"{node.module}.{one.name}" in AMP for one in node.names)
            used = [one for one in source.calls(*AMP) if spelling(one.node.func) in names]
            if call.node.func.id in names and is_whole and all(_takes_device(one) for one in used):
                return node
    return None


def _old_variable(source: Source, call: Call) -> Site:
    if call.setting("volatile", 2) is not ABSENT:
        return source.site(call.node, "volatile has no effect since torch 0.4; use torch.no_grad()")
    only = len(call.node.args) == 1 and not call.node.keywords and not isinstance(call.node.args[0], ast.Starred)
    message = "a Variable is a plain tensor since torch 0.4"
    return source.site(call.node, message, "unsafe" if only else None)


def _reads_first(node: ast.AST) -> bool:
    """`loss.data[0]`, which raises for the scalar that a loss is."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load) or constant(node.slice) != 0:
        return False
    value = node.value
    if not isinstance(value, ast.Attribute) or value.attr != "data":
        return False
    return "loss" in (spelling(value.value) or "").rpartition(".")[2].lower().split("_")


def _asks_old_way(call: Call) -> bool:
    return any(one.arg in ("size_average", "reduce") for one in call.node.keywords)


def _reduction(call: Call) -> str | None:
    """What the two old switches together mean today; None when they are no literals."""
    average, reduce = (constant(call.setting(name)) for name in ("size_average", "reduce"))
    known = (ABSENT, None, True, False)
    if call.setting("reduction") is not ABSENT or UNSURE in (average, reduce):
        return None
    if not any(average is one for one in known) or not any(reduce is one for one in known):
        return None
    return "none" if reduce is False else "sum" if average is False else "mean"


def _new_reduction(source: Source, call: Call) -> Iterator[Edit]:
    old = [one for one in call.node.keywords if one.arg in ("size_average", "reduce")]
    yield from replace_node(source, old[0], f'reduction="{_reduction(call)}"')
    for other in old[1:]:
        start, end = source.lines.span(other)
        comma = source.text.rindex(",", 0, start)
        yield Edit(comma, end, "")


def _scripted(source: Source) -> Iterator[ast.AST]:
    for call in source.calls(*SCRIPTED):
        yield call.node
    for node in source.names.parents:
        if isinstance(node, ast.FunctionDef):
            yield from (one for one in node.decorator_list if source.name_of(one) in SCRIPTED)
