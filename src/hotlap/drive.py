"""`hotlap run`: the user's own process, with the chosen techniques in it and two lines of ours on stderr."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

from hotlap.errors import say
from hotlap.observe.attach import NO_GPU, Attached, lacks_gpu
from hotlap.observe.launch import Target, execute
from hotlap.source.in_memory import InMemory, in_source, rewrite_in_memory


class Pulse:
    """The lightest watch there is: one hook that counts updates and reads the clock. Beside techniques it also sees
    whether anything was built that they take hold of."""

    def __init__(self, patch: Any, is_alone: bool = True) -> None:
        self._updates: dict[int, int] = {}
        self._first = self._last = 0.0
        self._roots, self._has_built = patch.joints.roots, False
        patch.at(patch.joints.weights_updated, self._weights_updated)
        for joint in () if is_alone else (patch.joints.loader_built, patch.joints.optimizer_built):
            patch.at(joint, self._built, depth=-1)

    @property
    def has_met_training(self) -> bool:
        """Whether a loader, an optimizer or a model was there by now: before that, no technique has done anything."""
        return self._has_built or bool(self._roots.found)

    def _built(self, proceed: Any, one: Any, bound: Any) -> None:
        self._has_built = True
        proceed(one, bound)

    def _weights_updated(self, optimizer: Any) -> None:
        self._last = time.perf_counter()
        key = id(optimizer)
        if key in self._updates:
            self._updates[key] += 1
        else:
            self._updates[key] = 1
            self._first = self._first or self._last

    def __str__(self) -> str:
        updates = max(self._updates.values(), default=0)  # two optimizers that take turns make one step
        if updates < 2:
            return "1 update" if updates else "no optimizer made an update in this process"
        apart_ms = 1e3 * (self._last - self._first) / (updates - 1)
        return f"{updates} updates, {apart_ms:.1f} ms apart on average, tests included"


def drive(target: Target, choices: Sequence[Any], words: str, quiet: bool, rewrites: bool = True) -> None:
    """Run the target to its end in this process; its exit code and errors are its own. A technique that cannot be
    applied to a running script is written into its modules in memory, unless that is not wanted."""
    written = in_source(choices)
    choices = [one for one in choices if rewrites or one not in written]
    with_ = ", ".join(map(str, choices)) or "nothing applied"
    _say(quiet, f"{with_}{f' ({words})' if words else ''}")
    attaching = [one for one in choices if one not in written]
    attached = Attached(attaching, functools.partial(Pulse, is_alone=not attaching))
    memory = rewrite_in_memory(written, target.folder, attached.patch.on_undo) if rewrites and written else None
    try:
        execute(target, memory.code) if memory else execute(target)
    except Exception as error:
        lacks_a_package = isinstance(error, ImportError)
        rewritten = memory.written if memory and not lacks_a_package else ()
        if held := ", ".join([*_holding(attached), *rewritten]):
            fault = "run it with --no-plan, and if it does not fail then, the fault is hotlap's"
            _say(quiet, f"it failed with {held} applied: {fault}")
        raise
    finally:
        for reason in (*_unwritten(memory, choices), *memory.troubles) if memory else ():
            _say(quiet, reason)
        for one in attached.shown:
            _say(quiet, one)
        for reason in attached.withdrawn:
            _say(quiet, f"withdrawn, and the run went on without it: {reason}")
        _say(quiet, str(attached.watch or "the script never imported torch"))


def _holding(attached: Attached) -> list[str]:
    """What was applied and has had something to take hold of: what fails before that, such as an import, is not its
    doing."""
    pulse: Any = attached.watch
    return attached.applied if pulse is not None and pulse.has_met_training else []


def _unwritten(memory: InMemory, choices: Sequence[Any]) -> list[str]:
    """What found no place, and the nearer reason where torch, imported by now, sees no GPU."""
    lacking = [one.technique.id for one in choices if lacks_gpu(one)] if memory.missing else []
    said = zip(memory.missing, memory.unwritten(), strict=True)
    return [f"{name} {NO_GPU}" if name in lacking else why for name, why in said]


def _say(quiet: bool, sentence: str) -> None:
    if not quiet:
        say(sentence)
