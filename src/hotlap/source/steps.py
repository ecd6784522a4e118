"""A training step written as straight-line code: forward, loss, backward, update, one after the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from dataclasses import dataclass

from hotlap.source.bodies import body_of, method, receiver
from hotlap.source.edits import can_wrap
from hotlap.source.loops import Function, Loop
from hotlap.source.models import model_spellings
from hotlap.source.module import Source
from hotlap.source.names import spelling

_PLAIN = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Assert


@dataclass(frozen=True, eq=False)
class Step:
    """The parts of one step, all in one function. `first` to `last` are whole statements of one block."""

    loop: Loop
    holder: Function | ast.Module  # the function, or the file, that the step stands in
    first: ast.stmt  # calls the model
    last: ast.stmt  # the last one before backward
    model_call: ast.Call
    backward: ast.Call
    update: ast.Call  # optimizer.step()
    clip: ast.stmt | None  # gradient clipping, when there is any


def straight_steps(source: Source) -> Iterator[Step]:
    """The steps of a file that are surely understood; a loop with two backward passes or closures is not."""
    models = model_spellings(source)
    for loop in source.training_loops():
        step = _step(source, loop, models)
        if step is not None:
            yield step


def _step(source: Source, loop: Loop, models: Set[str]) -> Step | None:
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    if not any(method(call) == "backward" for call in calls):
        # The loop only calls the function that does the step.
        inside = [source.definition(call.func) for call in calls]
        bodies = [one for one in inside if isinstance(one, Function) and _has_backward(one)]
        if len(bodies) != 1:
            return None
        calls = [node for node in ast.walk(bodies[0]) if isinstance(node, ast.Call)]
    backwards = [call for call in calls if method(call) == "backward"]
    updates = [call for call in calls if method(call) == "step" and _is_optimizer(source, receiver(call))]
    if len(backwards) != 1 or len(updates) != 1 or updates[0].args or updates[0].keywords:
        return None
    backward, update = backwards[0], updates[0]
    holder = body_of(source, backward)
    if body_of(source, update) is not holder or not isinstance(source.parent(update), ast.Expr):
        return None
    ending = source.parent(backward)
    if not isinstance(ending, ast.Expr):
        return None
    forwards = [call for call in calls if spelling(call.func) in models]
    region = _region(source, ending, forwards)
    if region is None:
        return None
    clips = [call for call in calls if method(call) in ("clip_grad_norm_", "clip_grad_value_")]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id.startswith("clip_grad_")]
    clip = source.statement((clips + named)[0]) if clips or named else None
    return Step(loop, holder, region[0], region[-1], forwards[0], backward, update, clip)


def _region(source: Source, ending: ast.Expr, forwards: list[ast.Call]) -> list[ast.stmt] | None:
    """The statements from the first that calls a model to the one that makes the loss, when all are plain."""
    block = source.block(ending)
    before = block[: next(index for index, statement in enumerate(block) if statement is ending)]
    touched = {source.statement(call) for call in forwards}
    while before and before[0] not in touched:
        before = before[1:]
    assert isinstance(ending.value, ast.Call)
    loss = {spelling(node) for node in ast.walk(receiver(ending.value))} - {None}
    makes_loss = [bool(loss & _assigned(statement)) for statement in before]
    while before and any(makes_loss) and not makes_loss[len(before) - 1] and before[-1] not in touched:
        before = before[:-1]  # metrics, prints, zero_grad: no part of the forward pass
    if not before or not all(isinstance(statement, _PLAIN) for statement in before):
        return None
    if not touched <= set(before) or not can_wrap(source, before[0], before[-1]):
        return None
    return before


def _assigned(statement: ast.stmt) -> set[str | None]:
    stores = [node for node in ast.walk(statement) if isinstance(getattr(node, "ctx", None), ast.Store)]
    return {spelling(node) for node in stores}


def _is_optimizer(source: Source, node: ast.AST) -> bool:
    """Schedulers have `step` as well; what is zeroed, built by torch.optim or called so is an optimizer."""
    written = spelling(node)
    if written is None:
        return False
    built = source.value_of(node)
    made_by = source.name_of(built.func) if isinstance(built, ast.Call) else None
    if made_by is not None:
        return made_by.startswith("torch.optim.") and not made_by.startswith("torch.optim.lr_scheduler.")
    zeroed = {spelling(receiver(call)) for call in source.method_calls("zero_grad")}
    return written in zeroed or "optim" in written.rpartition(".")[2].lower()


def _has_backward(function: Function) -> bool:
    return any(method(node) == "backward" for node in ast.walk(function))
