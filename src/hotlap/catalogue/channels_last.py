"""Image tensors with the channels innermost."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hotlap.source.edits import Edit, add_import, insert_argument
from hotlap.source.models import builds, is_module, is_module_class, model_spellings
from hotlap.source.names import spelling
from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import RootFacts, Run
    from hotlap.source.module import Site, Source


_VIEWS = "view size is not compatible"
_FLATTENS = "it flattens images by `view`, which needs the usual layout; `reshape` does not"
_WRITES = "it works in place on the images it is given, which are copies in another layout"


class ChannelsLast(Technique):
    """Convolutions read images with the channels side by side in memory, the layout their fast kernels are built for.

    ## Why it is faster
    The matrix units of a GPU, and oneDNN on the CPU, want the channels of one pixel next to each other (NHWC). With
    torch's usual layout (NCHW) the library rearranges the data before and after each convolution, or takes a slower
    kernel. Shapes stay the same; only strides change. `hotlap run` converts what enters the network, and what comes
    back from another shape inside of it; layers take on the layout of their input. Results, and gradients that a script
    asks for, come out in the usual layout again. Weights keep theirs, and are rearranged for each step, which is little
    beside the images: a script may flatten them, write them to a file that bears no other layout, or go on from a
    checkpoint. What is written into source converts the model, too.

    ## When it does not help
    In fp32 there may be nothing to gain; the technique is therefore tried together with low precision. Networks with
    few channels, depthwise convolutions and operations that know only the old layout (they convert back and forth)
    gain nothing. Linear layers and sequence models have no such layout. `x.view(...)` on a feature map raises where
    `x.reshape(...)` works: a file that does that is reported, but not rewritten. The fix is marked unsafe, since it
    cannot be read from source that the batch is 4-D and that nothing later needs the old strides. Converted weights
    take their gradients and the optimizer's state along: `p.grad.view(-1)` raises, safetensors refuses to write them,
    and a fused optimizer on the CPU, which walks over memory as it lies, goes on wrongly from state that a checkpoint
    brings in the other layout.

    ## What changes numerically
    Other kernels add in another order: the same mathematics, other rounding. Checkpoints keep names and shapes.

    ## Claims
    "8 % to 35 % faster with AMP" is the figure of the lists, and the last two words matter. Measured on one H200,
    ResNet-50 in bf16 went from 106 to 55 ms a step: nearly twice as fast, far beyond the claim, while without low
    precision no list gives a figure.
    """

    family = Family.COMPUTE
    aliases = ("channels_last", "NHWC", "memory_format")
    suits = "CNN"
    traits = frozenset({"image layout"})
    helps_with = frozenset({"low precision"})

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def spot(self, source: Source) -> Iterator[Site]:
        # A 3-D convolution in the model would refuse this layout.
        if "channels_last" in source.text or source.mentions("Conv3d", "ConvTranspose3d", "BatchNorm3d"):
            return
        can_fix = not _views_in_models(source)
        needs = "" if can_fix else " (first write its .view as .reshape)"
        for move in _model_moves(source):
            message = f"the convolutions run in the slower NCHW layout; move the model to channels_last{needs}"
            yield source.site(move, message, "unsafe" if can_fix else None)

    def seen(self, run: Run) -> bool | None:
        able = [root.channels_last or root.input_channels_last for root in run.roots if _is_image_network(root)]
        return all(able) if able else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        able = [root for root in run.roots if _is_image_network(root)]
        if not able:
            return CannotHelp("no model here has 2-D convolutions")
        aside = next((root.stands_aside for root in able if root.stands_aside), None)
        return CannotHelp(aside) if aside else [Try({}, run.computing)]

    def apply(self, patch: Patch, setting: Setting) -> None:
        import torch
        from torch.utils._pytree import tree_leaves, tree_map

        from hotlap.observe.slot import fill_slot, leave_slot
        from hotlap.parts.call_state import CallState
        from hotlap.parts.image_layout import Entry, is_nhwc, nhwc, usual, written
        from hotlap.parts.widened import changed

        modes: weakref.WeakKeyDictionary[Any, set[bool]] = weakref.WeakKeyDictionary()  # that a root has gone through

        def call(proceed: Any, root: Any, args: Any, kwargs: Any) -> Any:
            if root not in modes:
                return proceed(root, args, kwargs)
            given = tree_map(nhwc, (args, kwargs))
            originals = tree_leaves((args, kwargs))
            is_known = root.training in modes[root]
            if not modes[root]:
                for layer in filter(_is_convolution, root.modules()):
                    fill_slot(patch, layer, Entry(leave_slot))
            before = None if is_known else CallState(root)
            try:
                out = proceed(root, *given)
                reason = _WRITES if any(map(written, tree_leaves(given), originals)) else ""
            except RuntimeError as error:
                if _VIEWS not in str(error):
                    raise
                reason = _FLATTENS
            if not reason:
                modes[root].add(root.training)
                return out if any(map(is_nhwc, originals)) else changed(out, usual)
            if before is not None:
                before.put_back()
            patch.withdraw(reason)
            return proceed(root, args, kwargs)

        def asked(proceed: Any, outputs: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            """Each as its input lies."""
            gradients = proceed(outputs, inputs, *rest, **options)
            is_usual = [isinstance(one, torch.Tensor) and one.is_contiguous() for one in inputs]
            pairs = zip(gradients, is_usual, strict=True)
            return tuple(usual(one) if plain and one is not None else one for one, plain in pairs)

        def found(root: Any) -> None:
            if _takes_layout(root) and not patch.joints.roots.stands_aside(root):
                modes[root] = set()

        patch.at(patch.joints.root_found, found)
        patch.at(patch.joints.root_called, call)
        patch.at(patch.joints.gradients_asked, asked)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source = site.source
        layout = f"memory_format={source.names.spelled('torch') or 'torch'}.channels_last"
        assert isinstance(site.node, ast.Call) and isinstance(site.node.func, ast.Attribute)
        if site.node.func.attr == "cuda":  # Module.cuda, unlike Tensor.cuda, knows no layout
            end = source.lines.span(site.node)[1]
            yield Edit(end, end, f".to({layout})")
        else:
            yield from insert_argument(site.node, layout, source=source)
        for move in _batch_moves(source, site.node):
            yield from insert_argument(move, layout, source=source)
        if source.names.spelled("torch") is None:
            yield from add_import(source, "import torch")


def _is_image_network(root: RootFacts) -> bool:
    three = any(name in root.layers for name in ("Conv3d", "ConvTranspose3d"))
    return not three and any(name in root.layers for name in ("Conv2d", "ConvTranspose2d"))


def _takes_layout(root: Any) -> bool:
    """Not where the script has chosen it: what it does with the results may count on it."""
    from hotlap.parts.image_layout import is_nhwc

    layers = any(map(_is_convolution, root.modules()))
    return layers and not any(t.dim() == 5 or is_nhwc(t) for t in (*root.parameters(), *root.buffers()))


def _is_convolution(module: Any) -> bool:
    import torch

    return isinstance(module, (torch.nn.Conv2d, torch.nn.ConvTranspose2d))


def _model_moves(source: Source) -> list[ast.Call]:
    """The first `.to(device)` or `.cuda()` of every convolutional network that this file builds. Not of a part, moved
    by the network itself: the other parts would stay in the other layout."""
    found: dict[str, ast.Call] = {}
    for call in source.method_calls("to", "cuda"):
        assert isinstance(call.func, ast.Attribute)
        receiver = call.func.value
        is_dtype = any((source.name_of(argument) or "").startswith("torch.") for argument in call.args)
        is_move = call.func.attr == "cuda" or (call.args and not is_dtype)
        is_part = is_module_class(source, source.enclosing(call, ast.ClassDef))
        if is_move and not is_part and _is_convolutional(source, receiver):
            found.setdefault(spelling(receiver) or ast.dump(receiver), call)
    return list(found.values())


def _is_convolutional(source: Source, node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        values = [binding.value for binding in source.bindings(node)]
        return any(isinstance(value, ast.Call) and _is_convolutional(source, value) for value in values)
    if not isinstance(node, ast.Call):
        return False
    name = source.name_of(node.func) or ""
    if name.startswith("torchvision.models."):  # not its submodules: video models are 5-D, detectors take lists
        return name.count(".") == 2 and not name.startswith(("torchvision.models.vit_", "torchvision.models.swin"))
    return is_module(source, node) and builds(source, node, "torch.nn.Conv2d", "torch.nn.ConvTranspose2d")


def _views_in_models(source: Source) -> bool:
    owners = [source.enclosing(call, ast.ClassDef) for call in source.method_calls("view")]
    return any(is_module_class(source, owner) for owner in owners)


def _batch_moves(source: Source, model_move: ast.Call) -> Iterator[ast.Call]:
    """The moves, in a training loop, of what is then the model's first argument."""
    models = model_spellings(source)
    if len(_model_moves(source)) > 1 and isinstance(model_move.func, ast.Attribute):
        models &= {spelling(model_move.func.value) or ""}
    for loop in source.training_loops():
        calls = [one for one in ast.walk(loop) if isinstance(one, ast.Call)]
        for first in [call.args[0] for call in calls if call.args and spelling(call.func) in models]:
            given = [one.value for one in source.bindings(first)] if isinstance(first, ast.Name) else [first]
            yield from (one for one in source.method_calls("to", "cuda") if one in given and one in calls)
