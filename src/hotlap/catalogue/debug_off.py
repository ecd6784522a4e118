"""Debugging tools off in production."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hotlap.source.bodies import constant, is_conditional
from hotlap.source.calls import ABSENT
from hotlap.source.edits import Edit, add_import, replace_node
from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run
    from hotlap.source.calls import Call
    from hotlap.source.loops import Loop
    from hotlap.source.module import Site, Source

SWITCH = ("torch.autograd.set_detect_anomaly", "torch.autograd.anomaly_mode.set_detect_anomaly")
BLOCK = ("torch.autograd.detect_anomaly", "torch.autograd.anomaly_mode.detect_anomaly")
PROFILERS = ("torch.autograd.profiler.profile", "torch.autograd.profiler.emit_nvtx", "torch.profiler.profile")
CHECKS = ("torch.autograd.gradcheck", "torch.autograd.gradgradcheck")
VARIABLE = "CUDA_LAUNCH_BLOCKING"


class DebugOff(Technique):
    """Anomaly mode, gradient checks, profilers and blocking launches no longer slow down every step.

    ## Why it is faster
    Anomaly mode takes a Python traceback at every operation of forward and looks for NaN after every operation of
    backward, on a GPU each time with a wait. A profiler keeps a record of each kernel for as long as it is on.
    `CUDA_LAUNCH_BLOCKING=1` makes the host wait for each kernel, so that nothing overlaps any more. `gradcheck` runs
    forward twice for every single input element. All four are for finding a mistake, not for training.

    ## When it does not help
    Where they are already off, or behind a flag: what stands under an `if` is somebody's choice and is not reported.
    A profiler with a schedule records only some steps and is left alone. Deterministic algorithms are no debugging
    tool: `torch.use_deterministic_algorithms` is never touched. Switch anomaly mode on again when a loss turns NaN: it
    names the operation. The fixes are marked unsafe, since a script may count on the error it raises.

    ## What changes numerically
    Nothing: none of these tools touches a number.

    ## Claims
    The lists say "turn debugging APIs off" and name `detect_anomaly`, `profiler.profile`, `emit_nvtx` and `gradcheck`.
    That is right as far as it goes, but gives no figure. `CUDA_LAUNCH_BLOCKING` belongs to it.
    """

    family = Family.COMPUTE
    aliases = ("detect_anomaly", "set_detect_anomaly", "gradcheck", "profiler", "emit_nvtx", "CUDA_LAUNCH_BLOCKING")

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def spot(self, source: Source) -> Iterator[Site]:
        for call in source.calls(*SWITCH, *BLOCK):
            is_on = call.name in BLOCK or constant(call.setting("mode", 0)) is True
            if is_on and not is_conditional(source, call.node):
                message = "anomaly mode looks for NaN after every operation; switch it on when a loss turns NaN"
                yield source.site(call.node, message, "unsafe")
        for value in _blocking(source):
            yield source.site(value, f"{VARIABLE} makes the host wait for each kernel", "unsafe")
        for call in source.calls(*PROFILERS):
            if _profiles_training(source, call):
                yield source.site(call.node, "the profiler records every step; give it a schedule or a flag")
        for call in source.calls(*CHECKS):
            if any(loop in source.ancestors(call.node) for loop in source.training_loops()):
                yield source.site(call.node, "gradcheck in the training loop; check once, before training")

    def seen(self, run: Run) -> bool | None:
        return not run.anomaly_mode if run.steps else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if not run.anomaly_mode:
            return CannotHelp("no step ran in anomaly mode")
        return [Try({}, run.share("forward", "backward"))]

    def apply(self, patch: Patch, setting: Setting) -> None:
        import torch

        switch = torch.set_anomaly_enabled
        was_on, checked = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

        def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> Any:
            return switch(False, check_nan)  # every way to switch it on, function or block, ends here

        patch.on_undo(lambda: switch(was_on, checked))
        patch.set(torch, "set_anomaly_enabled", set_anomaly_enabled)
        switch(False, checked)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source, node = site.source, site.node
        if isinstance(node, ast.Constant):
            yield from replace_node(source, node, '"0"' if isinstance(node.value, str) else "0")
            return
        assert isinstance(node, ast.Call)
        call = next(one for one in source.calls(*SWITCH, *BLOCK) if one.node is node)
        if call.name in SWITCH:
            mode = call.setting("mode", 0)
            assert isinstance(mode, ast.expr)
            yield from replace_node(source, mode, "False")
            return
        yield from replace_node(
            source, node, f"{source.names.spelled('torch') or 'torch'}.autograd.set_detect_anomaly(False)"
        )
        if source.names.spelled("torch") is None:
            yield from add_import(source, "import torch")


def _blocking(source: Source) -> Iterator[ast.expr]:
    """The "1" that `os.environ` gets for the variable, where nothing decides about it."""
    for node in source.names.parents:
        value: ast.expr | None = None
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
            place = node.targets[0]
            if source.name_of(place.value) == "os.environ" and constant(place.slice) == VARIABLE:
                value = node.value
        elif isinstance(node, ast.Call) and len(node.args) == 2 and constant(node.args[0]) == VARIABLE:
            sets = source.name_of(node.func) in ("os.environ.setdefault", "os.putenv")
            value = node.args[1] if sets else None
        if value is not None and str(constant(value)) == "1" and not is_conditional(source, node):
            yield value


def _profiles_training(source: Source, call: Call) -> bool:
    """Whether a profiler is on, without a flag or a schedule, round a training loop or in each of its steps."""
    if call.setting("schedule", 1) is not ABSENT and call.name == "torch.profiler.profile":
        return False
    if constant(call.setting("enabled", 0 if call.name != "torch.profiler.profile" else None)) not in (ABSENT, True):
        return False
    item = source.parent(call.node)
    block = source.parent(item) if isinstance(item, ast.withitem) else None
    if not isinstance(block, ast.With) or is_conditional(source, call.node):
        return False
    loops = source.training_loops()
    inside = [loop for loop in loops if block in source.ancestors(loop) or loop in source.ancestors(block)]
    # A loop that breaks off profiles a few steps and then stops: that is how it is meant.
    return any(not _breaks(source, loop) for loop in inside)


def _breaks(source: Source, loop: Loop) -> bool:
    around = (ast.For, ast.AsyncFor, ast.While)
    broken = [node for node in ast.walk(loop) if isinstance(node, ast.Break)]
    return any(source.enclosing(node, around) is loop for node in broken)
