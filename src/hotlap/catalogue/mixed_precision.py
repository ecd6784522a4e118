"""Forward passes in 16 bits."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hotlap.errors import HotlapError
from hotlap.source.devices import device_type
from hotlap.source.edits import Edit, add_import, insert_after, insert_before, replace_node, wrap_statements
from hotlap.source.loops import Loop
from hotlap.source.steps import Step, straight_steps
from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try, Values

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source

# The good state in any form, a trainer or a sharding with its own switch, or a precision chosen on purpose.
CHOSEN = ("autocast", "amp", "GradScaler", "half", "bfloat16", "float16", "double", "float64", "set_default_dtype")
TRAINERS = ("apex", "accelerate", "lightning", "pytorch_lightning", "transformers", "deepspeed", "composer", "fastai")
SHARDED = ("FullyShardedDataParallel", "fully_shard", "parallelize_module")
# Losses that refuse autocast, gradients of gradients or closures, which need more than a wrapped forward, and sparse
# products, which not every device has in 16 bits.
REFUSING = ("BCELoss", "binary_cross_entropy", "LBFGS", "create_graph")
SPARSE = ("to_sparse", "sparse_coo_tensor", "sparse_csr_tensor")
_REFUSALS = (RuntimeError, NotImplementedError, TypeError)  # as torch raises them


class MixedPrecision(Technique):
    """Matrix products and convolutions run in 16 bits on the chip's matrix units, with weights kept in 32.

    ## Why it is faster
    Autocast gives each operation the precision it can bear: products and convolutions run in bf16 or fp16, several
    times the rate of fp32 on a GPU with matrix units, while sums, norms and losses stay in fp32. Activations take half
    the memory, so what is bound by memory traffic gains as well. Only the forward pass is wrapped: backward follows
    each operation in the precision its forward had.

    ## When it does not help
    Small matrices: the casts cost more than the products save, and a step bound by kernel launches or by the loader
    does not change at all. Chips without matrix units for the type are slower with it; a CPU without AMX or AVX512-BF16
    is one. Alone, on a small convolutional network, it did nothing measurable: it wants the image layout beside it.
    The fix is marked unsafe, since outputs become 16-bit tensors: NumPy knows no bf16, and a long sum of them
    outside of autocast is rounded. `hotlap run` hands outputs out in fp32, as copies: where a network returns its loss
    beside what that was made of, the gradient of the one by the other cannot be asked for. A network with an
    operation that refuses 16 bits, as `BCELoss` does, goes on in fp32 as a whole.

    ## What changes numerically
    bf16 keeps 8 significant bits and the range of fp32, so no loss scaling is needed. fp16 keeps 11 bits but little
    range: small gradients vanish unless the loss is scaled, gradients are unscaled before they are clipped, and a step
    whose gradients overflow is skipped. The weights and the optimizer stay in fp32 either way. `tune` tries fp16 where
    the chip has no bf16: in two tunings on an H200 it had 0.92x and 1.02x the speed of bf16, and in two more it could
    not join the plan.

    ## Claims
    NVIDIA's 3.5x to 25x, which the lists repeat, can only be reached by a step that is nearly all matrix products:
    what autocast leaves in fp32, the optimizer and the loader do not get faster, so no one figure holds for a script.
    BERT's 2.75x with 37 % less memory is the claim for a whole model. That larger matrices gain more is right. Apex,
    which one list recommends, is obsolete: autocast is part of torch. Measured on one H200, ResNet-50 went from 116 ms
    a step (TF32) to 106 (bf16) and to 55 only with the image layout beside it.
    """

    family = Family.COMPUTE
    aliases = ("amp", "autocast", "bf16", "fp16", "apex", "GradScaler", "half")
    traits = frozenset({"low precision"})
    rounding = 2.0**-8  # of bf16
    helps_with = frozenset({"image layout"})
    default = {"dtype": "bfloat16"}  # noqa: RUF012  # a constant of the contract, never changed
    values: ClassVar[Values] = {"dtype": ("bfloat16", "float16")}

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def brings(self, setting: Setting) -> frozenset[str]:
        return self.traits | ({"works after backward"} if setting.get("dtype") == "float16" else set())

    def spot(self, source: Source) -> Iterator[Site]:
        words = (*CHOSEN, *TRAINERS, *SHARDED, *REFUSING, *SPARSE)
        if source.mentions(*words) or any(source.calls("torch.autograd.grad")):
            return
        for step in straight_steps(source):
            if not any(step.holder in source.ancestors(call) for call in source.method_calls("numpy")):
                yield source.site(step.first, "the forward pass computes in float32; autocast uses 16 bits", "unsafe")

    def seen(self, run: Run) -> bool | None:
        if not run.roots:
            return None
        return all(root.autocast or set(root.parameter_dtypes) & {"bfloat16", "float16"} for root in run.roots)

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if not run.roots:
            return CannotHelp("no model with trainable parameters was called")
        aside = next((root.stands_aside for root in run.roots if root.stands_aside), None)
        if aside:
            return CannotHelp(aside)
        if any(root.parameter_dtypes != ("float32",) for root in run.roots):
            return CannotHelp("the model's parameters are not plain float32: its precision was chosen on purpose")
        if run.device == "cpu" and run.instructions and "bf16" not in run.instructions:
            return CannotHelp("this processor has no units for bf16: torch would imitate it, which takes longer")
        if run.device != "cuda" or run.device_capability >= (8, 0):
            dtype = "bfloat16"
        elif any(optimizer.closure for optimizer in run.optimizers):
            return CannotHelp("this chip has float16 only, whose check for overflow would come before a closure's pass")
        else:
            dtype = "float16"
        return [Try({"dtype": dtype}, run.computing)]

    def apply(self, patch: Patch, setting: Setting) -> None:
        import torch

        from hotlap.parts.call_state import CallState
        from hotlap.parts.loss_scaler import LossScaler
        from hotlap.parts.widened import widened

        dtype = getattr(torch, str(setting["dtype"]))
        modes: weakref.WeakKeyDictionary[Any, set[bool]] = weakref.WeakKeyDictionary()  # that a root has gone through

        def call(proceed: Any, root: Any, args: Any, kwargs: Any) -> Any:
            device = next(root.parameters()).device.type
            if torch.is_autocast_enabled(device):
                return proceed(root, args, kwargs)
            known = modes.setdefault(root, set())
            before = None if root.training in known else CallState(root)
            try:
                with torch.autocast(device, dtype=dtype):
                    out = proceed(root, args, kwargs)
            except (RuntimeError, TypeError) as error:
                if type(error) not in _REFUSALS:  # want of memory, or a way out of the script's own
                    raise
                reason = str(error).split("\n")[0]
            else:
                known.add(root.training)
                return widened(out, dtype)  # losses outside, some of which refuse 16 bits, see float32
            if before is not None:
                before.put_back()
            out = proceed(root, args, kwargs)  # where the error is the script's own, it comes once more
            patch.withdraw(f"the network does not bear it: {reason}")
            return out

        patch.at(patch.joints.root_called, call)
        if dtype is torch.float16:
            scaler = LossScaler()

            def built(proceed: Any, optimizer: Any, bound: Any) -> None:
                proceed(optimizer, bound)
                scaler.own(optimizer)

            patch.at(patch.joints.optimizer_built, built)
            patch.at(patch.joints.loss_known, scaler.backward)
            patch.at(patch.joints.weights_updating, scaler.before_step)
            patch.at(patch.joints.weights_updated, scaler.after_step)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source = site.source
        step = next(step for step in straight_steps(source) if step.first is site.node)
        torch, device = source.names.spelled("torch") or "torch", device_type(source, step.holder, step.model_call)
        header = f"with {torch}.autocast({device}, dtype={torch}.{setting['dtype']}):"
        yield from wrap_statements(source, step.first, step.last, header)
        if setting["dtype"] == "float16":
            yield from _scaled(source, step, f"{torch}.amp.GradScaler({device})")
        if source.names.spelled("torch") is None:
            yield from add_import(source, "import torch")


def _scaled(source: Source, step: Step, built: str) -> Iterator[Edit]:
    """fp16 needs the loss scaled up, and the gradients down again before they are clipped or used."""
    loops = [one for one in source.ancestors(step.first) if isinstance(one, Loop)]
    around = [loop for loop in loops if step.holder is source.tree or step.holder in source.ancestors(loop)]
    if not around:
        place = f"{source.path}:{step.first.lineno}"
        raise HotlapError(f"{place}: float16 cannot be written here, since the loop around the step is elsewhere.")
    is_taken = any("scaler" in scope.bindings for scope in source.names.scopes)
    scaler = "grad_scaler" if is_taken else "scaler"
    assert isinstance(step.backward.func, ast.Attribute) and isinstance(step.update.func, ast.Attribute)
    loss, optimizer = step.backward.func.value, source.segment(step.update.func.value)
    yield from insert_before(source, around[-1], f"{scaler} = {built}")
    yield from replace_node(source, loss, f"{scaler}.scale({source.segment(loss)})")
    if step.clip is not None:
        yield from insert_before(source, step.clip, f"{scaler}.unscale_({optimizer})")
    yield from replace_node(source, step.update, f"{scaler}.step({optimizer})")
    yield from insert_after(source, source.statement(step.update), f"{scaler}.update()")
