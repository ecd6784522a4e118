"""`hotlap.applied`: a plan for a block of your own program, where there is no script to run: in a notebook, in a test,
in a program that trains among other things. Not called `applied.py`, since importing that would put the module in the
function's place."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hotlap import plan as plans
from hotlap.catalogue import find
from hotlap.errors import HotlapError
from hotlap.observe.attach import Attached
from hotlap.plan import Plan
from hotlap.technique import Choice

_in_force = threading.Lock()
_TRUTH = {"true": True, "false": False}


@contextmanager
def applied(plan: str | os.PathLike[str] | Iterable[str] | None = None) -> Iterator[Attached]:
    """Apply a plan, or techniques by name, to what is built inside the block, and undo all of it at its end.

        with hotlap.applied() as on:                                # the hotlap.toml beside the script, or here
        with hotlap.applied("runs/hotlap.toml"):                    # that one
        with hotlap.applied("fused-optimizer,channels-last"):       # these, as for `hotlap run --with`; a list will do
            train()

    `on.applied` and `on.withdrawn` say what took hold and what could not. Models, loaders and optimizers that were
    built before the block are not touched, so build inside it what is to be fast; afterwards a loader keeps the workers
    it was built with. Torch may be imported already. The block changes the whole process: one at a time, whichever
    thread enters it, and an image file is remembered whoever opens it."""
    choices = _choices(plan)
    if not _in_force.acquire(blocking=False):
        raise HotlapError("hotlap.applied is already in force: leave the outer block first, or name everything there")
    try:
        attached = Attached(choices)
        try:
            attached.patch.joints.roots.leave_alone(_modules())
            yield attached
        finally:
            attached.detach()
    finally:
        _in_force.release()


def named(names: str | Iterable[str], verbs: tuple[str, ...] = ("apply",)) -> list[Choice]:
    """Techniques by the names people know them by, each with settings where it is given some, as in
    `loader-workers:num_workers=8:prefetch_factor=4`, else at its defaults; each has one of the verbs."""
    given = names.split(",") if isinstance(names, str) else map(str, names)
    parts = [part.strip() for part in given if part.strip()]
    if isinstance(names, str) and not parts:
        raise HotlapError("no technique is named: `hotlap explain` lists them")
    choices: list[Choice] = []
    for before, part in zip(["", *parts], parts, strict=False):
        if "=" in part.partition(":")[0]:
            raise HotlapError(f"{part!r} is no technique: settings follow theirs, as in {before or 'NAME'}:{part}")
        choice = _named(part, verbs)
        if any(other.technique is choice.technique for other in choices):
            raise HotlapError(f"{choice.technique.id} is named twice: name it once, as NAME:setting=1:other=2")
        choices.append(choice)
    return choices


def _named(part: str, verbs: tuple[str, ...]) -> Choice:
    name, *settings = part.split(":")
    technique = find(name)
    if not set(verbs) & set(technique.verbs):
        raise HotlapError(f"{technique.id} cannot be applied to a running script: see `hotlap explain {technique.id}`")
    known = {**technique.default, **technique.more_settings}
    given: dict[str, int | float | str | bool] = {}
    for setting in settings:
        key, _, value = (word.strip() for word in setting.partition("="))
        given[key] = _read(value, type(known.get(key)))
    if why_not := technique.why_not(given):
        raise HotlapError(f"{part!r} is not understood: {why_not}")
    return Choice(technique, technique.named(given))


def _read(text: str, kind: type[Any]) -> int | float | str | bool:
    """As the kind that is wanted, where it is one: else the text, which is then seen not to fit."""
    if kind is bool:
        return _TRUTH.get(text.lower(), text)
    with contextlib.suppress(ValueError):
        return kind(text) if kind in (int, float) else text
    return text


def _choices(plan: str | os.PathLike[str] | Iterable[str] | None) -> list[Choice]:
    if plan is None:
        return _planned(_nearest())
    if isinstance(plan, os.PathLike) or (isinstance(plan, str) and (plan.endswith(".toml") or os.sep in plan)):
        return _planned(os.fspath(plan))
    return named(plan)


def _planned(path: str) -> list[Choice]:
    found = plans.read_file(path)
    if not found:
        raise HotlapError(f"there is no plan in {path}: `hotlap tune` makes one, or name techniques instead")
    return _ours(found, path).choices(find)


def _ours(found: list[Plan], path: str) -> Plan:
    """The running script's; another's is taken only where there is no choice to make."""
    running = os.path.basename(_running() or "")
    for plan in found:
        if plan.script == running:
            return plan
    if len(found) > 1:
        names = ", ".join(plan.script for plan in found)
        raise HotlapError(f"{path} holds plans for {names}, and none of them is running: name the techniques instead")
    return found[0]


def _nearest() -> str:
    beside = plans.path_for(_running() or plans.FILE)
    return beside if os.path.exists(beside) else os.path.abspath(plans.FILE)


def _running() -> str | None:
    """The script's file; a notebook or a prompt has none."""
    return getattr(sys.modules.get("__main__"), "__file__", None)


def _modules() -> list[Any]:
    """Every module there is by now."""
    torch = sys.modules.get("torch")
    return [] if torch is None else [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
