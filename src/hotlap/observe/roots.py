"""Finding root modules: those the script calls itself, with trainable parameters and gradients on.

Torch's own global hooks watch the first updates and are then removed, so that the steady state carries none. Looking
starts again when another optimizer is built."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hotlap.observe.patch import Patch
from hotlap.observe.slot import is_drawn

if TYPE_CHECKING:
    from hotlap.observe.joints import Joints

_QUIET_UPDATES, _QUIET_BACKWARDS = 4, 32  # without a new root, after which looking ends
_FRAMES = 40  # how far up the stack an owner is looked for


class RootFinder:
    def __init__(self, joints: Joints) -> None:
        self._joints = joints
        self._looking: Patch | None = None
        self._always: Patch | None = None
        self._quiet = self._backwards = 0
        self.quiet_updates = _QUIET_UPDATES
        self._script_compiles = False
        self._stacks = threading.local()
        self._left_alone: dict[int, weakref.ref[Any]] = {}  # by identity: a module may compare by value
        self.found: weakref.WeakKeyDictionary[Any, RootSeen] = weakref.WeakKeyDictionary()

    def leave_alone(self, modules: Iterable[Any]) -> None:
        """These are never roots, however they are called."""
        self._left_alone |= {id(module): weakref.ref(module) for module in modules}

    def _is_left_alone(self, module: Any) -> bool:
        known = self._left_alone.get(id(module))
        return known is not None and known() is module  # another may live at that address by now

    def look(self) -> None:
        """Watch until no new root has shown up for a few updates; start again with the next optimizer."""
        self._always = Patch(self._joints)
        self._always.at(self._joints.optimizer_built, self._optimizer_built)
        self._always.at(self._joints.compile_called, self._compile_called)
        self._resume()

    @property
    def is_looking(self) -> bool:
        return self._looking is not None

    def stop(self) -> None:
        self._pause()
        if self._always is not None:
            self._always.undo()
            self._always = None
        self.found.clear()

    def note_gradients(self) -> None:
        """To be called before an update: the script may drop them after it."""
        for root, seen in list(self.found.items()):
            seen.note_gradients(root)

    def stands_aside(self, root: Any) -> str | None:
        """Why calls of this root must not be wrapped."""
        import torch

        if isinstance(root, torch.jit.ScriptModule):
            return "it is a scripted module"
        if hasattr(type(root), "__copy__"):
            return "its class copies itself in its own way"
        return self.found[root].reached if root in self.found else None

    def _optimizer_built(self, proceed: Any, optimizer: Any, bound: Any) -> None:
        proceed(optimizer, bound)
        self._resume()

    def _compile_called(self) -> None:
        self._script_compiles = True  # what is compiled is traced at its first call, after the optimizer is built
        self._pause()

    def take_compiled(self, compiled: Any) -> None:
        """A module the script has compiled is a root without being looked for; its calls are timed, and no more."""
        import torch

        is_trained = isinstance(compiled, torch.nn.Module) and any(p.requires_grad for p in compiled.parameters())
        if is_trained and compiled not in self.found and not self._is_left_alone(compiled):
            self.found[compiled] = RootSeen("the script compiles it itself", "", is_compiled=True)
            self._joints.root_found(compiled)

    def _resume(self) -> None:
        from torch.nn.modules import module as torch_module

        self._quiet = self._backwards = 0
        if self._looking is not None or self._script_compiles:
            return
        self._looking = Patch(self._joints)
        self._looking.hold(torch_module.register_module_forward_pre_hook(self._enter))
        self._looking.hold(torch_module.register_module_forward_hook(self._leave, always_call=True))
        self._looking.at(self._joints.weights_updated, self._updated)
        self._looking.at(self._joints.loss_known, self._went_back)

    def _pause(self) -> None:
        if self._looking is not None:
            self._looking.undo()
            self._looking = None

    def _updated(self, optimizer: Any) -> None:
        self._stack.clear()  # an interrupt inside a forward leaves entries behind
        self._quiet += 1

    def _went_back(self, proceed: Any, *args: Any, **kwargs: Any) -> Any:
        """A script that updates its weights by hand has no updates to count."""
        self._backwards += 1
        return proceed(*args, **kwargs)

    @property
    def _stack(self) -> list[Any]:
        if not hasattr(self._stacks, "modules"):
            self._stacks.modules = []
        modules: list[Any] = self._stacks.modules
        return modules

    def _enter(self, module: Any, args: Any) -> None:
        try:
            self._entered(module, args)
        except Exception:  # a model that is not what it seems: never the script's trouble
            self._pause()

    def _entered(self, module: Any, args: Any) -> None:
        import torch

        if _is_repeated():
            return
        stack = self._stack
        if not stack and (self._quiet > self.quiet_updates or self._backwards > _QUIET_BACKWARDS):
            self._pause()  # here, since torch walks over a copy of these hooks, but not of an optimizer's
            return
        if not stack and torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()):
            self._saw(module, args)
        if stack or module in self.found:
            self._note_autocast(stack[0] if stack else module, args)
        stack.append(module)

    def _leave(self, module: Any, args: Any, out: Any) -> None:
        if _is_repeated():
            return
        stack = self._stack
        while stack and stack.pop() is not module:
            pass

    def _saw(self, module: Any, args: Any) -> None:
        if module in self.found:
            self.found[module].note_inputs(args)
            return
        if self._is_left_alone(module):
            return
        owner, method = _owner(module)
        root, reached = (module, None) if owner is None else (owner, "the script calls its methods, not the module")
        if root in self.found or self._is_left_alone(root):
            return
        self._quiet = self._backwards = 0
        self.found[root] = RootSeen(reached, method)
        self.found[root].note_inputs(args)
        self._joints.root_found(root)

    def _note_autocast(self, root: Any, args: Any) -> None:
        import torch

        seen = self.found.get(root)
        if seen is None or seen.autocast is not None:
            return
        device = next((t.device.type for t in args if isinstance(t, torch.Tensor)), "cpu")
        if torch.is_autocast_enabled(device):
            seen.autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")


class RootSeen:
    """What the first calls of a root showed."""

    def __init__(self, reached: str | None, method: str, is_compiled: bool = False) -> None:
        self.reached = reached
        self.is_compiled = is_compiled
        self.has_graphs = False  # a technique compiled it
        self.method = method  # which the script calls, where it is not the module itself
        self.autocast: str | None = None
        self.input_dims: tuple[int, ...] = ()
        self.input_channels_last = False
        self._had_gradient: set[str] = set()

    def note_gradients(self, root: Any) -> None:
        self._had_gradient |= {name for name, p in root.named_parameters() if p.grad is not None}

    def without_gradient(self, root: Any) -> list[tuple[str, Any]]:
        """Empty where none was seen at all: then it was not this root's turn."""
        trained = [(name, p) for name, p in root.named_parameters() if p.requires_grad]
        return [(name, p) for name, p in trained if name not in self._had_gradient] if self._had_gradient else []

    def note_inputs(self, args: Any) -> None:
        import torch

        tensors = [t for t in args if isinstance(t, torch.Tensor)]
        self.input_dims = tuple(t.dim() for t in tensors)
        images = [t for t in tensors if t.dim() == 4 and t.shape[1] > 1 and t.shape[2] * t.shape[3] > 1]
        self.input_channels_last = bool(images) and all(
            t.is_contiguous(memory_format=torch.channels_last) for t in images
        )


def _is_repeated() -> bool:
    """A checkpoint calls again inside backward, and torch.jit what it traces: neither is a step's own call."""
    import torch

    return torch._C._current_graph_task_id() != -1 or is_drawn()


def _owner(child: Any) -> tuple[Any, str]:
    """The module whose method is running and which contains this child, and that method: `model.forward(x)`,
    `model.encode(x)`, or the `training_step` that a trainer calls, but not a method of the same module round that
    trainer's own loop."""
    import torch

    frame = sys._getframe(1)
    owner, method = None, ""
    for _ in range(_FRAMES):
        if frame is None:
            break
        first = _first_argument(frame)
        if isinstance(first, torch.nn.Module) and first is not child and any(part is child for part in first.modules()):
            owner, method = first, frame.f_code.co_name
        elif owner is not None and not isinstance(first, torch.nn.Module):
            break
        frame = frame.f_back  # type: ignore[assignment]
    plain = getattr(type(owner), method, None)
    return owner, method if isinstance(plain, FunctionType) else ""


def _first_argument(frame: Any) -> Any:
    code = frame.f_code
    if not code.co_argcount:
        return None
    seen = frame.f_locals
    first = seen.get(code.co_varnames[0])
    if sys.version_info < (3, 13) and sys.getrefcount(seen) <= 3:
        seen.clear()  # a copy that only the frame keeps: it would hold the script's tensors until its function returns
    return first
