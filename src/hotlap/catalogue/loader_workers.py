"""Loader processes."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hotlap.parts.worker_room import DEPTH, WorkerRoom, sample_bytes
from hotlap.source.calls import ABSENT, Call, Doubt
from hotlap.source.datasets import is_worth_loading
from hotlap.source.edits import insert_argument, replace_argument
from hotlap.source.transfers import changes_its_data, opens_two_passes
from hotlap.technique import CannotHelp, Family, Numbers, Parity, Setting, Technique, Try, Values

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import LoaderFacts, Run
    from hotlap.parts.lasting_workers import LastingWorkers
    from hotlap.source.edits import Edit
    from hotlap.source.module import Site, Source

LOADER = "torch.utils.data.DataLoader"
NUM_WORKERS = 5  # position among DataLoader's parameters
_DEEPER = 4  # times as many batches in each queue
_LARGE_BATCH = 256 * 2**20  # bytes; where even such batches fit, none is weighed


class LoaderWorkers(Technique):
    """Samples are loaded by processes of their own while the model computes, instead of between the steps.

    ## Why it is faster
    With `num_workers=0`, torch's default, the training process itself reads, decodes and augments every sample, and
    the device stands idle meanwhile. Workers do that at the same time, on other cores, and keep `prefetch_factor`
    batches each in stock.

    ## When it does not help
    Data that already lies in memory as tensors is often best with 0: handing a batch from process to process costs
    more than making it. More workers than cores fight each other, and fewer than needed leave the loop waiting, so the
    number is found by measurement, also where the script has chosen one. Three causes of waiting look alike and are
    told apart: too few cores (threads stand without one: fewer workers are tried first), too little memory (what the
    queues would hold is counted against free memory and `/dev/shm`, and the number cut), and rates that do not match:
    workers that keep up on average while their queue runs empty now and then want a deeper one (`prefetch_factor`).
    The fix is marked unsafe: a script without an `if __name__ == "__main__":` guard fails where worker processes are
    spawned instead of forked (macOS, Windows, and Linux from Python 3.14 on), and so does a data set that cannot be
    pickled or holds tensors on the GPU. In a run with hotlap the script's own way of starting processes is kept, and
    such data sets stay without workers, with the reason said. A setting is for loaders without workers;
    `num_workers=8:replacing=2` is for those that have two. A number you name by hand is for all of them
    (`--with loader-workers:num_workers=8`), however many cores there are.

    ## What changes numerically
    Nothing, in the same order, when the data set draws nothing at random. Random augmentation draws from each worker's
    own generator, so the draws are others of the same distribution, with another number of workers too. In a run with
    hotlap workers that are given live on between epochs, also in place of fewer, unless the script prepares each by a
    `worker_init_fn`; in the order the script would have, and started anew when the data set has changed (`set_epoch`).
    Samplers draw when they would have drawn, also where a script has several iterators of a loader at once, as in
    `zip(loader, loader)`: each has workers of its own then. Within an epoch they are asked ahead of the loop: only one
    that draws at random for batch after batch, begins again without an end, or goes by what the loop does meanwhile
    gives other samples, or lets the script draw other numbers. A written fix leaves all that to torch, which asks a
    sampler as soon as an iterator is made. A plan that was measured so is written with `persistent_workers=True`,
    where neither such a change nor a second iterator is seen: torch then shuffles later epochs otherwise for the same
    seed. Any other written fix leaves them to torch's default, a new start each epoch. Where the script changes its
    data set or `collate_fn` in the middle of an epoch, what it has not drawn yet is made again without workers, and so
    is a batch that a worker fails to make: the error is the script's own. A data set that changes while it is being
    read, as one that counts, is left alone, and so is one with a `collate_fn` that does, one that holds an open file,
    whose place forked workers would share, one that hands out tensors of its own, which the script may write into, a
    loader in a script that minds its child processes, and one whose sampler can be saved: workers are ahead of the
    loop. The number of workers of an iterable data set is never touched: one that does not split itself by
    `get_worker_info` would deliver every sample once per worker.

    ## Claims
    "Four workers per GPU", "as many as cores", "4 workers and pinned memory halve the epoch": each true somewhere; the
    right number depends on the cost of one sample against one step. One list says `prefetch_factor` needs pinned
    memory: it needs workers, and raises without them.
    """

    family = Family.WAIT
    aliases = ("num_workers", "prefetch_factor", "workers", "DataLoader")
    traits = frozenset({"loader processes"})
    adjustable = True
    default = {"num_workers": 4}  # noqa: RUF012  # constants of the contract, never changed
    more_settings = {"prefetch_factor": 8, "persistent_workers": True, "replacing": 2, "everywhere": True}  # noqa: RUF012
    values: ClassVar[Values] = {
        "num_workers": Numbers(0, 1024),  # each is a process
        "prefetch_factor": Numbers(1),
        "replacing": Numbers(0),
    }

    def parity(self, run: Run | None) -> Parity:
        certain = run is not None and all(loader.draws_random is False for loader in run.loaders if loader.trains)
        return Parity.IDENTICAL if certain else Parity.EQUIVALENT

    def named(self, given: Setting) -> Setting:
        """A plan is for the loaders it was measured for; who names a number means every loader."""
        is_for_all = "num_workers" in given and "replacing" not in given
        lasting: Setting = {"persistent_workers": True} if given.get("num_workers", 1) else {}
        return super().named({**({"everywhere": True} if is_for_all else {}), **lasting, **given})

    def spot(self, source: Source) -> Iterator[Site]:
        for call in source.calls(LOADER):
            workers = call.setting("num_workers", NUM_WORKERS)
            is_zero = isinstance(workers, ast.Constant) and workers.value == 0
            if (workers is ABSENT or is_zero) and is_worth_loading(call):
                message = "every sample is loaded between two steps; num_workers loads ahead in other processes"
                yield source.site(call.node, message, "unsafe")

    def seen(self, run: Run) -> bool | None:
        training = [loader.num_workers > 0 for loader in run.loaders if loader.trains]
        return all(training) if training else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        training = [loader for loader in run.loaders if loader.trains]
        if not training:
            return CannotHelp("no training loader was seen")
        answers = [_tries(run, loader) for loader in sorted(training, key=lambda one: -one.draws)]
        return next((one for one in answers if not isinstance(one, CannotHelp)), answers[0])

    def apply(self, patch: Patch, setting: Setting) -> None:
        from hotlap.observe.dataset_state import dataset_state
        from hotlap.parts import asked_in_time
        from hotlap.parts.lasting_workers import LastingWorkers

        lasting = LastingWorkers(dataset_state)
        workers = _Workers(setting, lasting)
        patch.at(patch.joints.loader_built, workers.give)
        patch.tell(workers.shortfall)
        patch.at(patch.joints.loader_started, lasting.release, depth=6)  # before those who look at the iterator
        patch.at(patch.joints.loader_started, lasting.start)
        for owner, name, stand_in in asked_in_time.stand_ins():
            patch.set(owner, name, stand_in)
        patch.at(patch.joints.batch_drawn, asked_in_time.draw_what_is_due)

    def places(self, source: Source, setting: Setting) -> Iterator[Site]:
        """A setting that replaces a number was measured for loaders that have so many, and is for no other."""
        if not setting.get("replacing"):
            yield from self.spot(source)
            return
        calls = list(source.calls(LOADER))
        for call in calls:
            is_meant = len(calls) == 1 or (setting["num_workers"] and is_worth_loading(call))
            if is_meant and _can_be_replaced(call, setting):
                yield source.site(call.node, f"measured with {setting['num_workers']} workers", "unsafe")

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        call = next(call for call in site.source.calls(LOADER) if call.node is site.node)
        depth = setting.get("prefetch_factor")
        added = [f"prefetch_factor={depth}"] if depth and call.setting("prefetch_factor") is ABSENT else []
        lasts = setting.get("persistent_workers") and call.setting("persistent_workers") is ABSENT
        if lasts and not changes_its_data(site.source) and not opens_two_passes(site.source):
            added.append("persistent_workers=True")
        if call.setting("num_workers", NUM_WORKERS) is ABSENT:
            return insert_argument(call, f"num_workers={setting['num_workers']}", *added)
        edits = replace_argument(call, "num_workers", str(setting["num_workers"]), NUM_WORKERS)
        return [*edits, *insert_argument(call, *added)] if added else edits


def _tries(run: Run, loader: LoaderFacts) -> Sequence[Try] | CannotHelp:
    """Numbers first, then the depth of the queues; the room for both is what the run left."""
    from hotlap.observe.supply import crowding, rates_vary

    has, depth, wait = loader.num_workers, loader.prefetch_factor or DEPTH, run.share("wait")
    crowded = crowding(run)
    kept: Setting = {"replacing": has} if has else {}
    if not (has and (loader.worker_init or loader.persistent_workers)):
        kept = {**kept, "persistent_workers": True}  # more of them take longer to start
    why_not = loader.no_workers
    if loader.changes:
        why_not = "its data set changes while it is read, which workers would not share"
    tries = []
    if loader.in_memory:
        if not has:
            return CannotHelp("its data set already lies in memory as tensors")
        if not (why_not or loader.worker_init or loader.persistent_workers):
            tries.append(Try({"num_workers": 0, "replacing": has}, max(wait, crowded)))
    room = WorkerRoom(run.shm_free_bytes, run.free_bytes)
    cores = run.cores
    counts = (cores // 2, cores - 2, 4) if run.device != "cpu" else (cores, cores // 2)
    fits = [room.workers(max(1, one), depth, loader.batch_bytes, loader.start_method) for one in counts]
    numbers = [number for number in dict.fromkeys(fits) if number and number != has and not why_not]
    if crowded > wait:
        numbers.sort()  # too few cores, not too few workers
    tries += [Try({"num_workers": one, **kept}, max(wait, crowded if one < has else 0.0)) for one in numbers]
    number, deeper = has or next(iter(numbers), 0), _DEEPER * depth
    has_room = room.workers(number, deeper, loader.batch_bytes, loader.start_method) == number
    if number and has_room and rates_vary(run, has * depth):
        own: Setting = {"replacing": has} if has else kept  # with as many as it had, its draws stay
        tries.append(Try({"num_workers": number, "prefetch_factor": deeper, **own}, wait))
    if tries:
        return tries
    if not why_not and not any(fits):
        return CannotHelp(room.shortage(depth, loader.batch_bytes))
    return CannotHelp(why_not or f"it has {has} workers, as many as are worth trying on {cores} cores")


class _Workers:
    """Gives loaders their workers before they exist, and knows who has another number. A loader that has some is meant
    only if it has as many as the setting replaces, or if the setting is for all."""

    def __init__(self, setting: Setting, lasting: LastingWorkers) -> None:
        self._setting, self._lasting = setting, lasting
        self._wanted = int(setting.get("num_workers", LoaderWorkers.default["num_workers"]))
        self._replaced, self._is_for_all = int(setting.get("replacing", 0)), bool(setting.get("everywhere"))
        self._took_hold = False
        self._short: dict[str, None] = {}  # who has another number, and why

    def give(self, proceed: Any, loader: Any, bound: Any) -> None:
        from hotlap.parts.asked_in_time import changed

        chosen = bound.arguments
        is_lasting, has = chosen["persistent_workers"], chosen["num_workers"]
        depth = chosen["prefetch_factor"]
        why = self._settle(chosen)
        number = chosen["num_workers"]
        if why:
            name = type(chosen["dataset"]).__name__
            self._short[f"the loader of {name} has num_workers={number}, not {self._wanted}: {why}"] = None
        self._took_hold |= number != has or not why
        if chosen["persistent_workers"] and (number > has == 0 or not is_lasting):
            self._lasting.keep(loader)
        if (number, chosen["prefetch_factor"]) != (has, depth):
            changed(loader, has * (depth or DEPTH))
        proceed(loader, bound)

    def shortfall(self) -> str:
        """Told of every loader where all are meant, else only where none was changed."""
        return "; ".join(self._short) if self._is_for_all or not self._took_hold else ""

    def _settle(self, chosen: dict[str, Any]) -> str:
        """Why a loader has another number now than was wanted, or ""."""
        has = chosen["num_workers"]
        if not self._is_for_all and has != self._replaced:
            meant = f"that have {self._replaced}" if self._replaced else "without workers"
            return f"this is for loaders {meant}; --with loader-workers:num_workers={self._wanted} is for all"
        if not self._wanted:
            return _take_workers(chosen) if has else ""
        if has != self._wanted:
            return _give_workers(self._setting, self._wanted, self._is_for_all, chosen)
        chosen.update(_given(self._setting, "prefetch_factor"))  # its order and its draws stay
        return ""


def _give_workers(setting: Setting, wanted: int, is_for_all: bool, chosen: dict[str, Any]) -> str:
    """As many of those wanted as the data set bears and memory holds; why there are fewer, or ""."""
    from hotlap.observe.bearing import why_no_workers
    from hotlap.observe.dataset_state import dataset_state
    from hotlap.observe.facts import is_in_memory, start_method
    from hotlap.parts.read_again import of_first_sample

    has, dataset, context = chosen["num_workers"], chosen["dataset"], chosen["multiprocessing_context"]
    method = start_method(context)
    depth = int(setting.get("prefetch_factor", chosen["prefetch_factor"] or DEPTH))
    most = wanted if is_for_all else min(wanted, max(2, os.cpu_count() or 1))
    busy = min(most, max(has, _batches(chosen) // 2))  # a worker wants something to do
    if is_in_memory(dataset):
        return "its data set already lies in memory as tensors"
    if busy < 1:
        return "it has too few batches"
    if not has and any(hasattr(chosen[name], "state_dict") for name in ("sampler", "batch_sampler")):
        return "its sampler can be saved, and what is saved must be how far the loop has come, not the workers"
    why_not = why_no_workers(dataset, method, (chosen["collate_fn"], chosen["worker_init_fn"]), has > 0)
    if why_not:
        return why_not
    is_batched = chosen["batch_size"] is not None or chosen["batch_sampler"] is not None
    reads = of_first_sample(dataset, chosen["collate_fn"], is_batched, dataset_state)
    if reads.changed:
        return f"its {reads.changed}, which workers would not share"
    if not has and reads.share_memory:
        return "its data set hands out tensors that it keeps: what the script writes into a batch is for it to see"
    workers = _that_fit(busy, depth, chosen, method)
    if workers < 1:
        return "memory is short"
    if method == "fork":
        chosen["multiprocessing_context"] = context or "fork"  # the default of later Pythons pickles the data set
    chosen["num_workers"] = workers
    chosen.update(_given(setting, "prefetch_factor"))
    if not (has and chosen["worker_init_fn"]):  # which torch calls for every epoch, or once for all
        chosen.update(_given(setting, "persistent_workers"))
    if workers < busy:
        return "memory is short"
    if busy < most:
        return "it has too few batches for more"
    return "there is no core for more" if most < wanted else ""


def _that_fit(workers: int, depth: int, chosen: dict[str, Any], method: str) -> int:
    """A full /dev/shm kills workers by SIGBUS. Where it is small for so many queues, a sample is weighed first."""
    from hotlap.observe.batches import tensor_sizes
    from hotlap.observe.memory import free_memory
    from hotlap.observe.meters import shm_room

    room = WorkerRoom(shm_room()[1], free_memory())
    if room.workers(workers, depth, _LARGE_BATCH, method) == workers:
        return workers
    one = sample_bytes(chosen["dataset"], lambda sample: sum(size for size, _ in tensor_sizes(sample)))
    return room.workers(workers, depth, one * _batch_size(chosen), method)


def _take_workers(chosen: dict[str, Any]) -> str:
    """Only from data in memory. Where the script keeps its workers alive, torch draws fewer seeds, so that without them
    later epochs would come in another order; those it prepares may have something that the training process lacks."""
    from hotlap.observe.facts import is_in_memory

    if not is_in_memory(chosen["dataset"]) or chosen["persistent_workers"] or chosen["worker_init_fn"]:
        return "only data in memory is as well off without, and only where nothing else was set for its workers"
    chosen.update(num_workers=0, prefetch_factor=None, multiprocessing_context=None, timeout=0)
    return ""


def _given(setting: Setting, name: str) -> dict[str, Any]:
    return {name: setting[name]} if name in setting else {}


def _batch_size(chosen: dict[str, Any]) -> int:
    return getattr(chosen["batch_sampler"], "batch_size", None) or chosen["batch_size"] or 1


def _batches(chosen: dict[str, Any]) -> int:
    try:
        return -(-len(chosen["dataset"]) // _batch_size(chosen))
    except Exception:  # no length, whatever it raises: only a sampler knows
        return 1 << 30


def _can_be_replaced(call: Call, setting: Setting) -> bool:
    """Whether a loader surely has the number that was replaced, by a constant and not by an option the user may give,
    and nothing else beside it that would have to change."""
    workers = call.known("num_workers", NUM_WORKERS)
    if isinstance(workers, Doubt) or workers.is_default or workers.value != setting["replacing"]:
        return False
    bound = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")  # to workers
    if not setting["num_workers"]:
        return all(call.setting(name) is ABSENT for name in bound)
    is_new = setting["num_workers"] != setting["replacing"] or "prefetch_factor" in setting
    return is_new and ("prefetch_factor" not in setting or call.setting("prefetch_factor") is ABSENT)
