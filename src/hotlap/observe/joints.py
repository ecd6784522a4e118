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
        autograd.grad(out, batch)       # gradients_asked(outputs, [inputs], *rest) -> gradients
        optimizer.step()                # weights_updating(optimizer), weights_updated(optimizer)
                                        #   between them, in torch's own classes: update_called(optimizer, *rest)
        total += loss.item()            # host_waited(name, *rest) -> value
        out[out > 0]                    # mask_waited(name, *rest) -> value
    torch.compile(model)                # compile_called()

What a subscriber is told and may change is said in `joint`; what stands where torch's own stood, in `stand_ins`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from hotlap.observe.comparison import Comparison
from hotlap.observe.imports import on_import
from hotlap.observe.joint import Around, Notice
from hotlap.observe.patch import Patch
from hotlap.observe.rebuilt_loaders import RebuiltLoaders
from hotlap.observe.roots import RootFinder
from hotlap.observe.slot import drawing, fill_slot
from hotlap.observe.stand_ins import asking, building, compiling, masking, method_of, named, passing, stepping, telling

WAITS = ("item", "tolist", "cpu", "numpy", "nonzero", "masked_select", "unique", "argwhere", "equal", "allclose")
WAITS += ("__bool__", "__float__", "__int__", "__index__", "__repr__", "__format__")
MASKED = ("__getitem__", "__setitem__")  # these wait for the size of what a mask picks
FUNCTIONS = ("nonzero", "masked_select", "unique", "argwhere", "equal", "allclose")  # of torch itself
MOVES = ("to", "cuda")


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
        self.gradients_asked = Around(self._at_gradients, self)
        self.weights_updating = Notice(self._at_step_start, self)
        self.weights_updated = Notice(self._at_step_end, self)
        self.update_called = Around(self._at_step, self)
        self.method_called = Around(self._at_methods, self)
        self.batch_moved = Around(lambda patch: self._at_tensor_methods(patch, MOVES, self.batch_moved), self)
        self.host_waited = Around(self._at_waits, self)
        self.mask_waited = Around(self._at_masks, self)
        self.compile_called = Notice(self._at_compile, self)
        self.roots = RootFinder(self)
        self.wrapped, self.aside = 0, list[str]()  # the roots whose calls are, and why the calls of others are not
        self.compilers: dict[str, Patch] = {}  # who compiles roots, by name
        self.graph_changes: dict[str, Callable[[Any], int]] = {}  # in graphs before they are compiled; counted
        self.withdrawn: list[str] = []  # what was given up on the way, each with its reason
        self.told: list[tuple[str, Callable[[], str]]] = []  # who may have something to say at the end
        self.comparisons: list[Comparison] = []  # what swaps showed of themselves

    # for batch in loader: --------------------------------------------------------------------------------------

    def _at_loader_init(self, patch: Patch) -> None:
        from torch.utils.data import DataLoader

        rebuilt, reduce = RebuiltLoaders(), DataLoader.__reduce_ex__
        through = functools.partial(rebuilt.through, self.loader_built.through)
        patch.set(DataLoader, "__init__", building(DataLoader.__init__, through))
        patch.set(DataLoader, "__reduce_ex__", lambda loader, protocol: rebuilt.reduced(reduce, loader, protocol))

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

        from hotlap.parts.resident_iterators import Serving

        for kind in (_BaseDataLoaderIter, Serving):  # the latter draws in a shorter way of its own
            patch.set(kind, "__next__", passing(kind.__next__, self.batch_drawn.through))

    # out = model(batch) ----------------------------------------------------------------------------------------

    def _at_first_calls(self, patch: Patch) -> None:
        self.roots.look()
        patch.on_undo(self.roots.stop)

    def _at_root_slots(self, patch: Patch) -> None:
        import torch

        for name in ("script", "trace"):
            patch.set(torch.jit, name, drawing(getattr(torch.jit, name)))
        patch.at(self.root_found, functools.partial(self._wrap_call, patch))
        for root in list(self.roots.found):
            self._wrap_call(patch, root)

    def _wrap_call(self, patch: Patch, root: Any) -> None:
        if why := self.roots.stands_aside(root):
            self.aside.append(why)
        else:
            self.wrapped += 1
            fill_slot(patch, root, self.root_called.through)

    def _at_methods(self, patch: Patch) -> None:
        """Roots whose methods the script calls, as in `model.forward(x)`: the method is replaced on its class, so that
        instances, pickles and copies stay clean."""
        patch.at(self.root_found, functools.partial(self._wrap_method, patch))

    def _wrap_method(self, patch: Patch, root: Any) -> None:
        if self.roots.found[root].is_compiled:
            fill_slot(patch, root, self.method_called.through)
            return
        kind, name = type(root), self.roots.found[root].method
        original = getattr(kind, name, None) if name else None
        if original is None or getattr(original, "__hotlap__", False):
            return
        patch.set(kind, name, method_of(self.roots.found, original, self.method_called.through))

    def _at_compile(self, patch: Patch) -> None:
        """A script that compiles by itself must find nothing of ours in what is traced."""
        import torch

        for owner, name in ((torch, "compile"), (torch.nn.Module, "compile")):
            patch.set(owner, name, compiling(getattr(owner, name), self.compile_called, self.roots.take_compiled))

    # loss.backward(); optimizer.step(); loss.item() -----------------------------------------------------------------

    def _at_backward(self, patch: Patch) -> None:
        import torch

        backward = passing(torch.autograd.backward, self.loss_known.through)
        patch.set(torch.autograd, "backward", backward)  # Tensor.backward looks it up at each call

    def _at_gradients(self, patch: Patch) -> None:
        import torch

        patch.set(torch.autograd, "grad", asking(torch.autograd.grad, self.gradients_asked.through))

    def _at_optimizer_init(self, patch: Patch) -> None:
        import torch

        for kind in vars(torch.optim).values():
            if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and "__init__" in vars(kind):
                patch.set(kind, "__init__", building(kind.__init__, self.optimizer_built.through))

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
                patch.set(owner, "step", stepping(owner.step, self.update_called))

        patch.at(self.optimizer_built, built)

    def _at_tensor_methods(self, patch: Patch, names: tuple[str, ...], joint: Around) -> None:
        """For a profile only: inductor cannot live with replaced tensor methods, so this goes when one compiles."""
        import torch

        for name in names:
            original = getattr(torch.Tensor, name)
            patch.set(torch.Tensor, name, named(name, original, joint.through))
        patch.at(self.compile_called, patch.undo)

    def _at_masks(self, patch: Patch) -> None:
        """Apart from the other waits, since data sets index tensors all the time."""
        import torch

        for name in MASKED:
            original = getattr(torch.Tensor, name)
            waiting = named(name, original, self.mask_waited.through)
            patch.set(torch.Tensor, name, masking(original, waiting))
        patch.at(self.compile_called, patch.undo)

    def _at_waits(self, patch: Patch) -> None:
        import torch

        through = self.host_waited.through
        self._at_tensor_methods(patch, WAITS, self.host_waited)
        functions = Patch(self)  # a script that is compiled by torch.jit must find torch's own
        for name in FUNCTIONS:
            functions.set(torch, name, named(name, getattr(torch, name), through))
        patch.on_undo(functions.undo)
        patch.set(torch.jit, "script", telling(torch.jit.script, functions.undo))
        for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
            patch.set(owner, "synchronize", named("synchronize", owner.synchronize, through))


def _at_function(patch: Patch, module: str, name: str, joint: Around) -> None:
    """A function of a module that the script may import now, later, or never."""

    def attach() -> None:
        owner = sys.modules[module]
        patch.set(owner, name, passing(getattr(owner, name), joint.through))

    patch.on_undo(on_import(module, attach))
