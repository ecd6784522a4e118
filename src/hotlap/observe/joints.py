"""Every place where hotlap attaches to torch, drawn as the training loop it watches.

    loader = DataLoader(...)            # loader_built(loader, bound)
    optimizer = AdamW(...)              # optimizer_built(optimizer, bound)
    for batch in loader:                # loader_started(loader), then batch_drawn(iterator) -> batch
        image = Image.open(path)        #   image_opened(file, *rest) inside the data set, also in forked workers
        image = cv2.imread(path)        #   image_read(path, *rest) -> array, likewise
        batch = batch.to(device)        # batch_moved(name, tensor, *rest) -> tensor
        out = model(batch)              # root_found(module) once, then root_called(root, args, kwargs) -> out
        out = model.forward(batch)      #   where the script calls a method: method_called(root, args, kwargs) -> out
        loss.backward()                 # loss_known(tensors, *rest); a replayed pass: see replays.py
        optimizer.step()                # weights_updating(optimizer), weights_updated(optimizer)
                                        #   between them, in torch's own classes: update_called(optimizer, *rest)
        total += loss.item()            # host_waited(name, *rest) -> value
        out[out > 0]                    # mask_waited(name, *rest) -> value
    torch.compile(model)                # compile_called()

An `Around` joint stands round a call: a subscriber gets `proceed` first and may change what goes in and comes out.
A `Notice` only tells. Nothing is attached while nobody subscribes, and the last one to leave detaches it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from hotlap.observe.comparison import Comparison
from hotlap.observe.imports import on_import
from hotlap.observe.patch import Patch
from hotlap.observe.roots import RootFinder

WAITS = ("item", "tolist", "cpu", "numpy", "nonzero", "masked_select", "unique", "argwhere", "equal", "allclose")
WAITS += ("__bool__", "__float__", "__int__", "__index__", "__repr__", "__format__")
MASKED = ("__getitem__", "__setitem__")  # these wait for the size of what a mask picks
FUNCTIONS = ("nonzero", "masked_select", "unique", "argwhere", "equal", "allclose")  # of torch itself
MOVES = ("to", "cuda")


class _Joint:
    def __init__(self, attach: Callable[[Patch], None], joints: Joints) -> None:
        self._attach, self._joints = attach, joints
        self._subscribers: list[tuple[int, Callable[..., Any]]] = []
        self._attached: Patch | None = None
        self._changed()

    def subscribe(self, subscriber: Callable[..., Any], depth: int = 0) -> None:
        self._subscribers.append((depth, subscriber))
        self._subscribers.sort(key=lambda pair: -pair[0])  # deepest first; sort is stable
        self._changed()
        if self._attached is None:
            self._attached = Patch(self._joints)
            self._attach(self._attached)

    def unsubscribe(self, subscriber: Callable[..., Any]) -> None:
        self._subscribers = [pair for pair in self._subscribers if pair[1] != subscriber]
        self._changed()
        if not self._subscribers and self._attached is not None:
            self._attached.undo()
            self._attached = None

    def _changed(self) -> None: ...


class Notice(_Joint):
    def __call__(self, *args: Any) -> None:
        for _, subscriber in self._subscribers:
            subscriber(*args)


class Around(_Joint):
    """`through(original, *args)` runs the original inside all subscribers. Those who only watch have a depth below
    zero: they do not see what is only recorded, and `told` lets them alone see what was replayed."""

    changes = 0  # of those who take part, not of those who watch
    is_recorded = False
    _techniques: Sequence[tuple[int, Callable[..., Any]]] = ()

    def _changed(self) -> None:
        self._chains: dict[Any, Callable[..., Any]] = {}
        self._told: dict[Any, Callable[..., Any]] = {}
        techniques = [pair for pair in self._subscribers if pair[0] >= 0]
        self.changes += techniques != list(self._techniques)
        self._techniques = techniques

    @property
    def has_techniques(self) -> bool:
        return bool(self._techniques)

    def through(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.is_recorded:
            return _chain(original, self._techniques)(*args, **kwargs)
        chain = self._chains.get(original)
        if chain is None:
            chain = self._chains[original] = _chain(original, self._subscribers)
        return chain(*args, **kwargs)

    def told(self, original: Callable[..., Any], *args: Any) -> Any:
        chain = self._told.get(original)
        if chain is None:
            watching = [pair for pair in self._subscribers if pair[0] < 0]
            chain = self._told[original] = _chain(original, watching)
        return chain(*args)


def _chain(original: Callable[..., Any], subscribers: Sequence[tuple[int, Callable[..., Any]]]) -> Callable[..., Any]:
    for _, subscriber in subscribers:
        original = functools.partial(subscriber, original)
    return original


class Joints:
    def __init__(self) -> None:
        self.loader_built = Around(self._at_loader_init, self)
        self.loader_started = Notice(self._at_loader_iter, self)
        self.batch_drawn = Around(self._at_iterator_next, self)
        self.image_opened = Around(lambda patch: _at_function(patch, "PIL.Image", "open", self.image_opened), self)
        self.image_read = Around(lambda patch: _at_function(patch, "cv2", "imread", self.image_read), self)
        self.optimizer_built = Around(self._at_optimizer_init, self)
        self.root_found = Notice(self._at_first_calls, self)
        self.root_called = Around(self._at_root_slots, self)
        self.loss_known = Around(self._at_backward, self)
        self.weights_updating = Notice(self._at_step_start, self)
        self.weights_updated = Notice(self._at_step_end, self)
        self.update_called = Around(self._at_step, self)
        self.method_called = Around(self._at_methods, self)
        self.batch_moved = Around(lambda patch: self._at_tensor_methods(patch, MOVES, self.batch_moved), self)
        self.host_waited = Around(self._at_waits, self)
        self.mask_waited = Around(self._at_masks, self)
        self.compile_called = Notice(self._at_compile, self)
        self.roots = RootFinder(self)
        self.withdrawn: list[str] = []  # what was given up on the way, each with its reason
        self.comparisons: list[Comparison] = []  # what swaps showed of themselves

    # for batch in loader: --------------------------------------------------------------------------------------

    def _at_loader_init(self, patch: Patch) -> None:
        from torch.utils.data import DataLoader

        patch.set(DataLoader, "__init__", _building(DataLoader.__init__, self.loader_built))

    def _at_loader_iter(self, patch: Patch) -> None:
        from torch.utils.data import DataLoader

        original = DataLoader.__iter__

        @functools.wraps(original)
        def __iter__(loader: Any) -> Any:
            self.loader_started(loader)
            return original(loader)

        patch.set(DataLoader, "__iter__", __iter__)

    def _at_iterator_next(self, patch: Patch) -> None:
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        original, through = _BaseDataLoaderIter.__next__, self.batch_drawn.through

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:
            return through(original, iterator)

        patch.set(_BaseDataLoaderIter, "__next__", __next__)

    # out = model(batch) ----------------------------------------------------------------------------------------

    def _at_first_calls(self, patch: Patch) -> None:
        self.roots.look()
        patch.on_undo(self.roots.stop)

    def _at_root_slots(self, patch: Patch) -> None:
        """Calls of a root go through torch's own slot for compiled calls: pickles, copies, state_dict and hooks
        never see it, and `Module.__call__` stays as it is."""
        patch.at(self.root_found, functools.partial(self._wrap_call, patch))
        for root in list(self.roots.found):
            self._wrap_call(patch, root)

    def _wrap_call(self, patch: Patch, root: Any) -> None:
        if not self.roots.stands_aside(root):
            self.fill_slot(patch, root, self.root_called.through)

    def fill_slot(self, patch: Patch, module: Any, through: Callable[..., Any]) -> None:
        """Calls of a module become `through(original, module, args, kwargs)`."""
        slot = Slot(module, through)
        vars(module)["_compiled_call_impl"] = slot  # a compiled module would hand it on to what it wraps
        patch.on_undo(functools.partial(_empty_slot, weakref.ref(module), weakref.ref(slot)))  # both may be dropped

    def _at_methods(self, patch: Patch) -> None:
        """Roots whose methods the script calls, as in `model.forward(x)`: the method is replaced on its class, so that
        instances, pickles and copies stay clean."""
        patch.at(self.root_found, functools.partial(self._wrap_method, patch))

    def _wrap_method(self, patch: Patch, root: Any) -> None:
        if self.roots.found[root].is_compiled:
            self.fill_slot(patch, root, self.method_called.through)
            return
        kind, name = type(root), self.roots.found[root].method
        original = getattr(kind, name, None) if name else None
        if original is None or getattr(original, "__hotlap__", False):
            return
        found, through = self.roots.found, self.method_called.through

        def call(root: Any, args: Any, kwargs: Any) -> Any:
            return original(root, *args, **kwargs)

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return through(call, self, args, kwargs) if self in found else original(self, *args, **kwargs)

        method.__hotlap__ = True  # type: ignore[attr-defined]
        patch.set(kind, name, method)

    def _at_compile(self, patch: Patch) -> None:
        """A script that compiles by itself must find nothing of ours in what is traced."""
        import torch

        for owner, name in ((torch, "compile"), (torch.nn.Module, "compile")):
            patch.set(owner, name, _compiling(getattr(owner, name), self.compile_called, self.roots.take_compiled))

    # loss.backward(); optimizer.step(); loss.item() -----------------------------------------------------------------

    def _at_backward(self, patch: Patch) -> None:
        import torch

        original, through = torch.autograd.backward, self.loss_known.through

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            return through(original, *args, **kwargs)

        patch.set(torch.autograd, "backward", backward)  # Tensor.backward looks it up at each call

    def _at_optimizer_init(self, patch: Patch) -> None:
        import torch

        for kind in vars(torch.optim).values():
            if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and "__init__" in vars(kind):
                patch.set(kind, "__init__", _building(kind.__init__, self.optimizer_built))

    def _at_step_start(self, patch: Patch) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        patch.hold(register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self.weights_updating(optimizer)))

    def _at_step_end(self, patch: Patch) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        patch.hold(register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self.weights_updated(optimizer)))

    def _at_step(self, patch: Patch) -> None:
        """Inside torch's own wrapper of `step`, so that hooks run as ever; replaced on a class when an optimizer of it
        has been built, since torch puts its wrapper there only then."""

        def built(proceed: Any, optimizer: Any, bound: Any) -> None:
            proceed(optimizer, bound)
            kinds = (kind for kind in type(optimizer).__mro__ if kind.__module__.startswith("torch.optim."))
            owner: Any = next((kind for kind in kinds if "step" in vars(kind)), None)
            if owner is not None and not getattr(owner.step, "__hotlap__", False):
                patch.set(owner, "step", _stepping(owner.step, self.update_called))

        patch.at(self.optimizer_built, built)

    def _at_tensor_methods(self, patch: Patch, names: tuple[str, ...], joint: Around) -> None:
        """For a profile only: inductor cannot live with replaced tensor methods, so this goes when one compiles."""
        import torch

        for name in names:
            original = getattr(torch.Tensor, name)
            patch.set(torch.Tensor, name, _method(name, original, joint.through))
        patch.at(self.compile_called, patch.undo)

    def _at_masks(self, patch: Patch) -> None:
        """Apart from the other waits, since data sets index tensors all the time."""
        import torch

        for name in MASKED:
            original = getattr(torch.Tensor, name)
            waiting = _method(name, original, self.mask_waited.through)
            patch.set(torch.Tensor, name, _masking(name, original, waiting))
        patch.at(self.compile_called, patch.undo)

    def _at_waits(self, patch: Patch) -> None:
        import torch

        through = self.host_waited.through
        self._at_tensor_methods(patch, WAITS, self.host_waited)
        functions = Patch(self)  # a script that is compiled by torch.jit must find torch's own
        for name in FUNCTIONS:
            functions.set(torch, name, _method(name, getattr(torch, name), through))
        patch.on_undo(functions.undo)
        patch.set(torch.jit, "script", _telling(torch.jit.script, functions.undo))
        for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
            patch.set(owner, "synchronize", _method("synchronize", owner.synchronize, through))


def _at_function(patch: Patch, module: str, name: str, joint: Around) -> None:
    """A function of a module that the script may import now, later, or never."""

    def attach() -> None:
        original, through = getattr(sys.modules[module], name), joint.through

        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            return through(original, *args, **kwargs)

        patch.set(sys.modules[module], name, function)

    patch.on_undo(on_import(module, attach))


_under_construction: set[int] = set()


def _building(original: Any, joint: Around) -> Any:
    """An __init__ whose arguments pass through a joint, bound to their names. A base class's __init__, called by an
    __init__ that already passed, is left alone."""
    signature = inspect.signature(original)

    def build(owner: Any, bound: inspect.BoundArguments) -> None:
        original(*bound.args, **bound.kwargs)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if id(self) in _under_construction:
            original(self, *args, **kwargs)
            return
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            original(self, *args, **kwargs)  # raises the script's own error
            return
        bound.apply_defaults()
        _under_construction.add(id(self))
        try:
            joint.through(build, self, bound)
        finally:
            _under_construction.discard(id(self))

    return __init__


def _stepping(original: Any, joint: Around) -> Any:
    import torch

    is_hooked = getattr(original, "hooked", False)
    update, through = original.__wrapped__ if is_hooked else original, joint.through

    @functools.wraps(update)
    def call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # the script compiles its update: nothing of ours is to be traced
            return update(optimizer, *args, **kwargs)
        return through(update, optimizer, *args, **kwargs)

    step: Any = torch.optim.Optimizer.profile_hook_step(call) if is_hooked else call
    if is_hooked:
        step.hooked = True  # torch's own mark, without which it would wrap once more
    step.__hotlap__ = True
    return step


def _telling(original: Any, notice: Callable[[], object]) -> Any:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        notice()
        return original(*args, **kwargs)

    return function


def _compiling(original: Any, notice: Notice, take: Callable[[Any], None]) -> Any:
    """The notice comes first, so that nothing of ours is traced; then what was compiled is taken as a root."""

    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        notice()
        compiled = original(*args, **kwargs)
        take(args[0] if compiled is None and args else compiled)
        return compiled

    return compile


def _method(name: str, original: Any, through: Callable[..., Any]) -> Any:
    def call(name: str, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return through(call, name, *args, **kwargs)

    return method


def _masking(name: str, original: Any, waiting: Any) -> Any:
    import torch

    def is_mask(index: Any) -> bool:
        return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)

    @functools.wraps(original)
    def method(tensor: Any, index: Any, *value: Any) -> Any:
        if tensor.is_cuda and (is_mask(index) or (type(index) is tuple and any(map(is_mask, index)))):
            return waiting(tensor, index, *value)
        return original(tensor, index, *value)

    return method


class Slot:
    """What stands in torch's slot for compiled calls. It holds its module weakly, and its copies and pickles are empty:
    a class that copies its `__dict__` by hand must not get the calls of another module."""

    __slots__ = ("__weakref__", "_original", "_root", "_through", "old")

    def __init__(self, root: Any, through: Callable[..., Any]) -> None:
        self.old = vars(root).get("_compiled_call_impl")
        self._root, self._through = weakref.ref(root), through
        self._original = _plain_call if self.old is None else _compiled_call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._through(self._original, self._root(), args, kwargs)

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> Any:
        return type(None), ()


def _plain_call(root: Any, args: Any, kwargs: Any) -> Any:
    """One for all roots: a chain remembers its original, and must not keep a dropped model alive."""
    return root._call_impl(*args, **kwargs)


def _compiled_call(root: Any, args: Any, kwargs: Any) -> Any:
    return vars(root)["_compiled_call_impl"].old(*args, **kwargs)


def _empty_slot(reference: weakref.ref[Any], slot: weakref.ref[Any]) -> None:
    root, own = reference(), slot()
    if root is None or own is None or vars(root).get("_compiled_call_impl") is not own:
        return  # gone, or the script has compiled it since
    if own.old is None:
        vars(root).pop("_compiled_call_impl")
    else:
        vars(root)["_compiled_call_impl"] = own.old
