"""Calls of roots, or of blocks in them, through torch's compiler: as they are at first, and as they are again where
compiling fails, where it comes to nothing, or where the script does what compiled code would miss."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from hotlap.observe.patch import Patch
from hotlap.observe.slot import fill_slot

MOST_PIECES = 16  # more, and there is hardly anything left to fuse in one
_VARIANTS = 8  # of one graph, for other shapes and settings: as many as dynamo makes before it gives up, in silence
_PATIENCE = 16  # updates, in which something must have been compiled
_HANGING = ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook", "backward_hook")


def compile_roots(patch: Patch, mode: str, missing: Callable[[], str] | None = None) -> None:
    """`missing` says what has not come of it yet, where that is more than graphs. Graphs that are only to be changed,
    and run as they are written, leave the roots to whoever compiles them."""
    whole: weakref.WeakKeyDictionary[Any, _Compiled] = weakref.WeakKeyDictionary()
    updates = _Updates()

    def call(proceed: Any, root: Any, args: Any, kwargs: Any) -> Any:
        own = whole.get(root)
        if own is None:
            own = whole[root] = _Compiled(patch, mode, root, updates)
        return own(proceed, root, args, kwargs)

    patch.at(patch.joints.root_called, call, depth=8)  # nearest to the module: autocast and layouts go round it
    _watch(patch, mode, updates, missing)


def compile_blocks(patch: Patch, mode: str) -> None:
    """Those that are built alike share what is compiled."""
    updates = _Updates()

    def found(root: Any) -> None:
        from torch import nn

        from hotlap.parts.repeated_blocks import repeated_blocks

        is_spread = isinstance(root, nn.DataParallel) and len(root.device_ids) > 1  # its replicas copy slots
        if patch.joints.roots.stands_aside(root) or is_spread:
            return
        for alike in repeated_blocks(root):
            shared = _Compiled(patch, mode, root, updates)
            for block in alike:
                fill_slot(patch, block, shared)

    patch.at(patch.joints.root_found, found)
    _watch(patch, mode, updates, None)


def _watch(patch: Patch, mode: str, updates: _Updates, missing: Callable[[], str] | None) -> None:
    from hotlap.parts.compiled_call import AS_WRITTEN, PLAIN, gradients

    joints = patch.joints
    joints.roots.quiet_updates = 1  # hooks that look for roots would be traced: they go first, and soon
    if mode not in (PLAIN, AS_WRITTEN):
        patch.at(joints.weights_updated, lambda optimizer: gradients.keep_early())
    patch.at(joints.compile_called, lambda: patch.withdraw("the script compiles by itself"))
    patch.at(joints.weights_updated, updates.count)
    _watch_success(patch, updates, missing or (lambda: "" if _has_graphs(patch) else "there was nothing to compile"))
    _watch_hooks(patch)
    _watch_gradients(patch)


class _Updates:
    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> int:
        return self.number

    def count(self, optimizer: Any) -> None:
        self.number += 1


class _Compiled:
    """The calls of a root, or of blocks in it that are built alike: as they are at first, then compiled."""

    def __init__(self, patch: Patch, mode: str, root: Any, updates: _Updates) -> None:
        self._patch, self._mode, self._root, self._updates = patch, mode, weakref.ref(root), updates
        self._call: Any = None

    def __call__(self, proceed: Any, module: Any, args: Any, kwargs: Any) -> Any:
        import torch

        from hotlap.parts.compilable import is_interpreted
        from hotlap.parts.compiled_call import AS_WRITTEN, CompiledCall, is_compilers
        from hotlap.parts.interruptions import pass_on

        roots, root = self._patch.joints.roots, self._root()
        is_other = not module.training or not torch.is_grad_enabled() or root not in roots.found
        joints, is_written = self._patch.joints, self._mode == AS_WRITTEN
        if is_other or roots.is_looking or is_interpreted() or (is_written and joints.compilers):
            return proceed(module, args, kwargs)
        if self._call is None:
            from hotlap.parts.compilable import why_not_compiled

            why = why_not_compiled(root)
            if why:
                self._patch.withdraw(why)
                return proceed(module, args, kwargs)
            self._call = CompiledCall(self._mode, self._updates, list(joints.graph_changes.values()))
        if is_written and self._call.has_run and not self._call.changed:
            return proceed(module, args, kwargs)
        try:
            out = self._call(module, args, kwargs)
        except Exception as error:
            pass_on(error)
            if self._call.has_run or not is_compilers(error):
                raise
            self._patch.withdraw(f"{type(error).__name__}: {error}".split("\n")[0])
            return proceed(module, args, kwargs)
        if self._call.has_run and (self._call.changed or not is_written):
            roots.found[root].has_graphs = self._call.graphs > 0
            self._judge()
        return out

    def _judge(self) -> None:
        """What compiled to nothing, or to pieces, must not pass for compiled."""
        graphs, pieces = self._call.graphs, self._call.pieces
        if not graphs:
            self._patch.withdraw("torch.compile made no graph of it")
        elif pieces > MOST_PIECES:
            self._patch.withdraw(f"Python breaks it into {pieces} graphs, more than {MOST_PIECES}")
        elif pieces == 1 and graphs >= _VARIANTS:
            self._patch.withdraw(f"it is compiled again and again, into {graphs} graphs by now")


def _has_graphs(patch: Patch) -> bool:
    return any(seen.has_graphs for seen in patch.joints.roots.found.values())


def _watch_success(patch: Patch, updates: _Updates, missing: Callable[[], str]) -> None:
    """What finds nothing to compile, such as blocks in a network that has none, says so."""

    def backward(proceed: Any, *args: Any, **kwargs: Any) -> Any:
        why = missing()
        if not why:
            leave()
        elif updates() == _PATIENCE:
            patch.withdraw(f"{why} in the first {_PATIENCE} updates")  # not amid torch's hooks
        return proceed(*args, **kwargs)

    leave = patch.at(patch.joints.loss_known, backward, depth=-1)


def _watch_hooks(patch: Patch) -> None:
    """A hook that is hung on a part of a compiled model later would never be called."""
    from torch import nn

    def hanging(original: Any) -> Any:
        @functools.wraps(original)
        def register(module: Any, *args: Any, **kwargs: Any) -> Any:
            roots = [root for root, seen in patch.joints.roots.found.items() if seen.has_graphs]
            if any(part is module for root in roots for part in root.modules()):
                patch.withdraw(f"the script hung a hook on a part of it ({type(module).__name__})")
            return original(module, *args, **kwargs)

        return register

    for name in _HANGING:
        patch.set(nn.Module, f"register_{name}", hanging(getattr(nn.Module, f"register_{name}")))


def _watch_gradients(patch: Patch) -> None:
    """Compiled code has no gradients of gradients, and gives its memory away while it goes back, so that there is no
    second time; the first steps, which are not compiled yet, show whether the script asks for either."""

    def asking(proceed: Any, *args: Any, place: int, **kwargs: Any) -> Any:
        if kwargs.get("create_graph") or (len(args) > place and args[place]):
            patch.withdraw("the script asks for gradients of gradients, which compiled code does not have")
        elif kwargs.get("retain_graph") or (len(args) >= place and args[place - 1]):
            patch.withdraw("the script keeps graphs to go back through them again, which compiled code does not")
        return proceed(*args, **kwargs)

    patch.at(patch.joints.gradients_asked, functools.partial(asking, place=4), depth=-1)
    # a pass that is replayed was looked at before
    patch.at(patch.joints.loss_known, functools.partial(asking, place=3), depth=-1, sees_replays=False)
