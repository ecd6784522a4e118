"""No DataParallel."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hotlap.source.bodies import in_brackets, remove_statement
from hotlap.source.edits import Edit, replace_node
from hotlap.source.names import spelling
from hotlap.technique import CannotHelp, Family, Needs, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run
    from hotlap.source.calls import Call
    from hotlap.source.module import Site, Source

WRAPPERS = ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel.DataParallel")
FUNCTIONS = ("torch.nn.parallel.data_parallel", "torch.nn.parallel.data_parallel.data_parallel")
KEYS = ("module", "state_dict", "load_state_dict", "save", "load")  # who may see that the keys change


class NoDataParallel(Technique):
    """The model is called directly, not through a wrapper that copies it to every device in every step.

    ## Why it is faster
    `DataParallel` copies all weights from the first device to the others in every step, splits the batch, runs one
    Python thread a device (which take turns at the interpreter), gathers the outputs on the first device and adds the
    gradients there. With one device it only scatters and gathers; some of its work remains in every call.

    ## When it does not help
    On one device the cost is small unless the step is. On several, leaving it out means using one of them: the faster
    way there is `DistributedDataParallel`, one process a device. The wrapper also puts `module.` before every key of a
    checkpoint; files written or read elsewhere depend on that. So it is rewritten only where one device is named and
    the file neither saves nor loads, and even then the fix is marked unsafe; everywhere else it is reported. While a
    script runs the wrapper stays, keys and all, and only its call goes straight to the module, where it has one device
    and its inputs are already there.

    ## What changes numerically
    Nothing on one device. On several, batch norm sees the whole batch instead of each device's part.

    ## Claims
    The lists say "use DistributedDataParallel instead of DataParallel, even on one machine", as torch's own manual
    does, and that is right. None says what the wrapper costs on one device, where many scripts keep it.
    """

    family = Family.COMPUTE
    needs = Needs(device="cuda")
    aliases = ("DataParallel", "dp", "nn.DataParallel")

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def spot(self, source: Source) -> Iterator[Site]:
        for call in source.calls(*WRAPPERS, *FUNCTIONS):
            can_fix = call.name in WRAPPERS and _names_one_device(call) and not source.mentions(*KEYS)
            message = "DataParallel copies the model in every step; DistributedDataParallel, or on one device nothing"
            yield source.site(call.node, message, "unsafe" if can_fix else None)

    def seen(self, run: Run) -> bool | None:
        return not any(root.devices for root in run.roots) if run.roots else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        devices = max((root.devices for root in run.roots), default=0)
        if devices > 1:
            return CannotHelp("on several devices DistributedDataParallel is the faster way, one process a device")
        return [Try({}, run.share("forward"))] if devices else CannotHelp("no model is wrapped in DataParallel")

    def apply(self, patch: Patch, setting: Setting) -> None:
        from torch.nn import DataParallel

        original = DataParallel.forward

        @functools.wraps(original)
        def forward(wrapper: Any, *inputs: Any, **kwargs: Any) -> Any:
            if len(wrapper.device_ids) == 1 and _lies_on(wrapper.src_device_obj, (inputs, kwargs)):
                return wrapper.module(*inputs, **kwargs)
            return original(wrapper, *inputs, **kwargs)

        forward.__hotlap__ = True  # type: ignore[attr-defined]
        patch.set(DataParallel, "forward", forward)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        assert isinstance(site.node, ast.Call)
        wrapped, holder = site.node.args[0], site.source.parent(site.node)
        if isinstance(holder, ast.Assign) and {spelling(one) for one in holder.targets} == {spelling(wrapped) or ""}:
            return remove_statement(site.source, holder)  # `model = model` says nothing
        return replace_node(site.source, site.node, in_brackets(site.source, wrapped))


def _names_one_device(call: Call) -> bool:
    devices = call.setting("device_ids", 1)
    is_one = isinstance(devices, ast.List | ast.Tuple) and len(devices.elts) == 1
    return is_one and bool(call.node.args) and not any(isinstance(one, ast.Starred) for one in call.node.args)


def _lies_on(device: Any, given: Any) -> bool:
    """Whether scattering would hand on just what is given: all tensors are on the device, and have a dimension to be
    split, without which torch raises."""
    import torch

    if isinstance(given, torch.Tensor):
        return given.device == device and given.dim() > 0
    if isinstance(given, dict):
        return all(_lies_on(device, one) for one in given.values())
    return not isinstance(given, list | tuple) or all(_lies_on(device, one) for one in given)
