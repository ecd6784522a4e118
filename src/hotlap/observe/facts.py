"""What a loader, an optimizer or a root module is, as plain facts. How often each was used is counted elsewhere."""

from __future__ import annotations

import random
import sys
from collections import Counter
from itertools import pairwise
from typing import Any

from hotlap.observe.attending import may_attend
from hotlap.observe.look.shape import odd_sizes
from hotlap.observe.roots import RootFinder
from hotlap.observe.run import LoaderFacts, OptimizerFacts, RootFacts, SizeFacts
from hotlap.observe.scrutiny_facts import UnusedFacts
from hotlap.parts.compilable import why_not_compiled
from hotlap.parts.generators import has_private_generator, has_random_transform
from hotlap.parts.repeated_blocks import repeated_blocks

_SIZES = 64  # of a root, written down


def loader_facts(loader: Any) -> LoaderFacts:
    from torch.utils.data import IterableDataset, default_collate

    iterable = isinstance(loader.dataset, IterableDataset)
    context = loader.multiprocessing_context
    resident, early = (sys.modules.get(f"hotlap.parts.{name}") for name in ("resident_loader", "early_batches"))
    return LoaderFacts(
        dataset=type(loader.dataset).__name__,
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        iterable=iterable,
        in_memory=is_in_memory(loader.dataset),
        length=None if iterable else _length(loader.dataset),
        private_generator=has_private_generator(loader.dataset),
        draws_random=has_random_transform(loader.dataset) or None,
        start_method=start_method(context),
        dataset_id=id(loader.dataset),
        worker_init=loader.worker_init_fn is not None,
        own_collate=loader.collate_fn is not default_collate,
        kept=resident is not None and resident.serves(loader),
        copied_early=early is not None and early.serves(loader),
        not_batched=_why_not_batched(loader),
    )


def _why_not_batched(loader: Any) -> str:
    if "torchvision" not in sys.modules:
        return "its data set has no transform of torchvision's"
    from hotlap.parts.transform_sites import why_not

    return why_not(loader) or ""


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # a sampler of its own decides how much there is; what it raises is its own affair
        return None


def start_method(context: Any) -> str:
    """How workers would start: as the script says, else by fork where the system has it."""
    import multiprocessing

    if context is None:
        chosen = multiprocessing.get_start_method(allow_none=True)
        return chosen or ("fork" if sys.platform.startswith("linux") else "spawn")
    return context if isinstance(context, str) else str(context.get_start_method())


def is_in_memory(dataset: Any) -> bool:
    from torch.utils.data import ConcatDataset, Subset, TensorDataset

    if isinstance(dataset, Subset):
        return is_in_memory(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return all(map(is_in_memory, dataset.datasets))
    return isinstance(dataset, TensorDataset)


def holds_device_memory(dataset: Any) -> bool:
    """Whether the data set holds tensors on a device, which forked workers cannot touch."""
    return any(getattr(value, "is_cuda", False) is True for value in getattr(dataset, "__dict__", {}).values())


def global_generators() -> tuple[Any, ...]:
    """The states of the generators a data set usually draws from."""
    import torch

    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None
    return (
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        None if state is None else (state[1].tobytes(), state[2]),
    )


def optimizer_facts(optimizer: Any) -> OptimizerFacts:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    groups = optimizer.param_groups
    kind = type(optimizer)
    captured = sys.modules.get("hotlap.parts.captured_update")
    return OptimizerFacts(
        kind=f"{kind.__module__}.{kind.__qualname__}",
        fused=bool(groups) and all(group.get("fused") for group in groups),
        foreach=groups[0].get("foreach") if groups else None,
        differentiable=any(group.get("differentiable") for group in groups),
        capturable=any(group.get("capturable") for group in groups),
        parameters=len(parameters),
        elements=sum(map(elements, parameters)),
        devices=tuple(sorted({p.device.type for p in parameters})),
        dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        sparse=any(p.grad is not None and p.grad.is_sparse for p in parameters),
        captured=captured is not None and captured.replayed(optimizer),
    )


def elements(parameter: Any) -> int:
    """A lazy parameter has none before its first use."""
    from torch.nn.parameter import is_lazy

    return 0 if is_lazy(parameter) else int(parameter.numel())


def root_facts(root: Any, roots: RootFinder) -> RootFacts:
    import torch

    from hotlap.parts.eight_bit_products import suitable

    seen = roots.found[root]
    shaped = [p for p in root.parameters() if elements(p)]
    weights = [p for p in shaped if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] * p.shape[3] > 1]
    leaves = Counter(type(m).__name__ for m in root.modules() if next(m.children(), None) is None)
    captured = sys.modules.get("hotlap.parts.captured_calls")
    return RootFacts(
        kind=type(root).__name__,
        elements=sum(map(elements, root.parameters())),
        layers=dict(leaves),
        channels_last=bool(weights)
        and all(p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous() for p in weights),
        input_channels_last=seen.input_channels_last,
        input_dims=seen.input_dims,
        parameter_dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in root.parameters()})),
        autocast=seen.autocast,
        compiled=seen.is_compiled or seen.has_graphs,
        stands_aside=roots.stands_aside(root),
        devices=_devices(root),
        captured=captured is not None and captured.replayed(root),
        biases_before_norm=_biases_before_norm(root),
        odd_sizes=_odd_sizes(root),
        without_gradient=[UnusedFacts(name, "parameter", elements(p)) for name, p in seen.without_gradient(root)],
        not_compiled=why_not_compiled(root) or "",
        wide_linears=len(suitable(root)),
        attends=may_attend(root),
        blocks=sum(map(len, repeated_blocks(root))),
    )


def _odd_sizes(root: Any) -> list[SizeFacts]:
    found = [
        SizeFacts(name, type(module).__name__, side, size, elements(module.weight))
        for name, module in root.named_modules()
        for side, size in odd_sizes(module)
    ]
    return sorted(found, key=lambda one: -one.elements)[:_SIZES]


def _biases_before_norm(root: Any) -> int:
    """By the order of the modules, which is nearly always the order of their calls."""
    from torch import nn

    leaves = [module for module in root.modules() if next(module.children(), None) is None]
    return sum(
        getattr(layer, "bias", None) is not None
        and hasattr(layer, "weight")
        and elements(layer.bias) == norm.num_features
        for layer, norm in pairwise(leaves)
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and not isinstance(layer, nn.modules.batchnorm._NormBase)
    )


def _devices(root: Any) -> int:
    """Over how many devices DataParallel spreads its calls. With one, the call may have been made direct."""
    from torch.nn import DataParallel

    count = len(root.device_ids) if isinstance(root, DataParallel) else 0
    return 0 if count == 1 and getattr(type(root).forward, "__hotlap__", False) else count
