"""Loader processes."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hotlap.source.calls import ABSENT, Call
from hotlap.source.edits import insert_argument, replace_argument
from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import LoaderFacts, Run
    from hotlap.parts.lasting_workers import LastingWorkers
    from hotlap.source.edits import Edit
    from hotlap.source.module import Site, Source

LOADER = "torch.utils.data.DataLoader"
DATASET, SHUFFLE, SAMPLER, BATCH_SAMPLER, NUM_WORKERS = 0, 2, 3, 4, 5  # positions of DataLoader's parameters
_WRAPPERS = tuple(f"torch.utils.data.{name}" for name in ("Subset", "ConcatDataset", "random_split"))
_CHEAP = {"len", "int", "float", "torch.tensor", "torch.as_tensor", "torch.from_numpy"}


class LoaderWorkers(Technique):
    """Samples are loaded by processes of their own while the model computes, instead of between the steps.

    ## Why it is faster
    With `num_workers=0`, torch's default, the training process itself reads, decodes and augments every sample, and
    the device stands idle meanwhile. Workers do that at the same time, on other cores, and keep `prefetch_factor`
    batches each in stock.

    ## When it does not help
    Data that already lies in memory as tensors is often best with 0: handing a batch from process to process costs
    more than making it. More workers than cores fight each other, and fewer than needed leave the loop waiting, so the
    number is found by measurement. Three causes of waiting look alike: too few cores (more workers do not help),
    too little memory (fewer do), and a rate of the disk below the rate of the steps. The fix is marked unsafe:
    a script without an `if __name__ == "__main__":` guard fails where worker processes are spawned instead of
    forked (macOS, Windows, and Linux from Python 3.14 on), and so does a data set that holds tensors on the GPU.

    ## What changes numerically
    Nothing, in the same order, when the data set draws nothing at random. Random augmentation draws from each worker's
    own generator, so the draws are others of the same distribution. In a run with hotlap workers live on between
    epochs, in the order the script would have, and are started anew when the data set has changed (`set_epoch`); the
    written fix leaves them to torch's default, a new start each epoch. A data set that changes while it is being read
    is left alone.
    An iterable data set that does not split itself by `get_worker_info` would deliver every sample once per worker:
    those are never touched.

    ## Claims
    "Four workers per GPU", "as many as cores", "4 workers and pinned memory halve the epoch": each true somewhere; the
    right number depends on the cost of one sample against one step. One list says `prefetch_factor` needs pinned
    memory: it needs workers, and raises without them.
    """

    family = Family.WAIT
    aliases = ("num_workers", "prefetch_factor", "workers", "DataLoader")
    traits = frozenset({"loader processes"})
    default = {"num_workers": 4}  # noqa: RUF012  # a constant of the contract, never changed

    def parity(self, run: Run | None) -> Parity:
        certain = run is not None and all(loader.draws_random is False for loader in run.loaders if loader.trains)
        return Parity.IDENTICAL if certain else Parity.EQUIVALENT

    def spot(self, source: Source) -> Iterator[Site]:
        for call in source.calls(LOADER):
            workers = call.setting("num_workers", NUM_WORKERS)
            is_zero = isinstance(workers, ast.Constant) and workers.value == 0
            if (workers is ABSENT or is_zero) and _is_worth_loading(call):
                message = "every sample is loaded between two steps; num_workers loads ahead in other processes"
                yield source.site(call.node, message, "unsafe")

    def seen(self, run: Run) -> bool | None:
        training = [loader.num_workers > 0 for loader in run.loaders if loader.trains]
        return all(training) if training else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        training = [loader for loader in run.loaders if loader.trains and not loader.num_workers]
        if not training:
            return CannotHelp("no training loader without workers was seen")
        reasons = [reason for reason in map(_why_not, training) if reason]
        if len(reasons) == len(training):
            return CannotHelp(reasons[0])
        cores = run.cores
        counts = (cores // 2, cores - 2, 4) if run.device != "cpu" else (cores, cores // 2)
        wait = run.share("wait")
        numbers = dict.fromkeys(max(1, count) for count in counts)
        return [Try({"num_workers": number, "persistent_workers": True}, wait) for number in numbers]

    def apply(self, patch: Patch, setting: Setting) -> None:
        from hotlap.observe.dataset_state import dataset_state
        from hotlap.parts.lasting_workers import LastingWorkers

        lasting = LastingWorkers(dataset_state)
        patch.at(patch.joints.loader_built, functools.partial(_with_workers, setting, lasting))
        patch.at(patch.joints.loader_started, lasting.start)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        call = next(call for call in site.source.calls(LOADER) if call.node is site.node)
        depth = setting.get("prefetch_factor")
        added = [f"prefetch_factor={depth}"] if depth and call.setting("prefetch_factor") is ABSENT else []
        if call.setting("num_workers", NUM_WORKERS) is ABSENT:
            return insert_argument(call, f"num_workers={setting['num_workers']}", *added)
        edits = replace_argument(call, "num_workers", str(setting["num_workers"]), NUM_WORKERS)
        return [*edits, *insert_argument(call, *added)] if added else edits


def _why_not(loader: LoaderFacts) -> str | None:
    if loader.iterable:
        return "its data set is iterable: each worker would deliver all of it"
    if loader.in_memory:
        return "its data set already lies in memory as tensors"
    if loader.private_generator:
        return "its data set owns a random generator, which all workers would copy"
    if loader.changes:
        return "its data set changes while it is read, which copies of it in workers would not see"
    if loader.start_method != "fork":
        return f"workers would be started by {loader.start_method}, which not every script survives"
    return None


def _with_workers(setting: Setting, lasting: LastingWorkers, proceed: Any, loader: Any, bound: Any) -> None:
    """Give a loader its workers where it has none and its data set bears it; settled before the loader exists."""
    from torch.utils.data import IterableDataset

    from hotlap.observe.facts import has_private_generator, holds_device_memory, is_in_memory, start_method

    chosen = bound.arguments
    dataset = chosen["dataset"]
    context = chosen.get("multiprocessing_context")
    bears_it = not (
        isinstance(dataset, IterableDataset)
        or is_in_memory(dataset)
        or has_private_generator(dataset)
        or holds_device_memory(dataset)
    )
    wanted = int(setting.get("num_workers", LoaderWorkers.default["num_workers"]))
    workers = min(wanted, max(2, os.cpu_count() or 1), _batches(chosen) // 2)  # a worker wants something to do
    if workers and not chosen["num_workers"] and bears_it and start_method(context) == "fork":
        chosen["multiprocessing_context"] = context or "fork"  # the default of later Pythons pickles the data set
        chosen["num_workers"] = workers
        chosen.update({name: setting[name] for name in ("prefetch_factor", "persistent_workers") if name in setting})
        if chosen["persistent_workers"]:
            lasting.keep(loader)
    proceed(loader, bound)


def _batches(chosen: dict[str, Any]) -> int:
    try:
        return -(-len(chosen["dataset"]) // (chosen["batch_size"] or 1))
    except TypeError:  # no length: only a sampler knows
        return 1 << 30


def _is_worth_loading(call: Call) -> bool:
    """Whether the data set is surely map-style and does some work for a sample."""
    source, dataset = call.source, call.setting("dataset", DATASET)
    if not isinstance(dataset, ast.expr):
        return False
    built = source.value_of(dataset)
    while isinstance(built, ast.Call) and source.name_of(built.func) in _WRAPPERS and built.args:
        built = source.value_of(built.args[0])
    if not isinstance(built, ast.Call):
        # A parameter or a part of something unpacked: it could be anything, tensors in memory too.
        return False
    definition = source.definition(built.func)
    if isinstance(definition, ast.ClassDef):
        return _works_per_sample(source, definition)
    name = source.name_of(built.func) or ""
    if name.startswith("torchvision.datasets."):
        return True
    # An imported class: torch itself refuses to shuffle or sample an iterable data set, so this one is map-style.
    shuffle = call.setting("shuffle", SHUFFLE)
    is_shuffled = isinstance(shuffle, ast.Constant) and shuffle.value is True
    is_sampled = isinstance(call.setting("sampler", SAMPLER), ast.Call)
    looks_like_class = "." in name and name.rpartition(".")[2][:1].isupper() and not name.startswith("torch.")
    return looks_like_class and (is_shuffled or is_sampled)


def _works_per_sample(source: Source, definition: ast.ClassDef) -> bool:
    """A class that only indexes what it holds in memory gains nothing from workers."""
    getters = [one for one in definition.body if isinstance(one, ast.FunctionDef) and one.name == "__getitem__"]
    bases = [source.name_of(base) for base in definition.bases]
    if not getters or any(base is None or base.endswith("IterableDataset") for base in bases):
        return False
    called = [node.func for node in ast.walk(getters[0]) if isinstance(node, ast.Call)]
    return any(source.name_of(function) not in _CHEAP for function in called)
