"""A data set that fits stays in memory as finished samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try, Values

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import LoaderFacts, Run

DEVICE = "device"
TESTS = "tests"
_SHARE_OF_MEMORY = 0.25  # of what is free, for all loaders together


class ResidentDataset(Technique):
    """After the first epoch, finished samples come out of memory: no reading, no decoding, no transforms.

    ## Why it is faster
    A sample that is always the same is made again in every epoch: read, decoded, transformed, collated, sent from a
    worker to the training process. Here it is written down once, as one row; from then on a batch is a single gather
    of rows, tens of microseconds for small images, in the order of the script's own sampler, and workers are sent home.
    Rows belong to the data set: loaders built anew for every epoch share them. While the first epoch runs, processes
    of the lowest priority load the rest on cores that nobody needs; once all is there, the epoch goes on from memory.
    With `on=device`, rows that take no more than a quarter of what is free on a GPU lie there too once all of them are
    there: batches are gathered there by index, and moving one to the device costs nothing. For the script they are
    tensors in main memory; whatever else it does with one brings it there, and a script that does not move its batches
    gets them from main memory again. The speed records on small data sets do this by hand.

    With `of=tests` only loaders that start while gradients are off are kept, as in a test after each epoch: its samples
    are mostly the same each time, also where the training draws its own at random. `tune` tries that by whole epochs.

    ## When it does not help
    Data sets that draw something at random for each sample (augmentation) must not be kept: every epoch shall see
    another crop. That is tested before anything is kept, in a process of its own: three reads, one of them as another
    worker, the state of every random generator and of the data set, torch's draws, the clock, what is printed or
    written, and whether a batch is more than its samples. A data set that holds an open file, or a value shared between
    processes, is not forked, so it is left alone, as is a script that minds its child processes. Data larger than a
    quarter of the free memory is left alone, as are batches collated by code of the script's own, samples that are not
    tensors or numbers, samplers without an end, and data sets that are built anew for every epoch.

    ## What changes numerically
    Nothing: the same bits in the same order, and the random generators are drawn from alike. A data set that the script
    changes is seen to change. Samples are loaded again at the start of every epoch and now and then, for ever, and
    compared; at the first difference the loader goes on as it was. A single file that is replaced on disk meanwhile may
    be found late. Small batches on the device lie in one piece of memory, up to 32 of them: a part of one that is saved
    (`torch.save(x[:1])`) takes its neighbours into the file.

    ## Claims
    The lists say "load the data into memory" without a figure. Speed records on CIFAR-10 keep everything on the device.
    Measured on one H200, the MNIST example went from 7.3 to 1.5 ms a step by hand, with its data there; `hotlap tune`
    proved 8.3 -> 2.7 ms, unedited, with this technique, which keeps it in main memory.
    """

    family = Family.WAIT
    aliases = ("in-memory dataset", "TensorDataset", "preload", "ram dataset")
    traits = frozenset({"kept samples"})
    fills_in_an_epoch = between_steps = True
    more_settings: ClassVar[Setting] = {"on": DEVICE, "of": TESTS}
    values: ClassVar[Values] = {"on": (DEVICE,), "of": (TESTS,)}

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def brings(self, setting: Setting) -> frozenset[str]:
        """Of tests alone, nothing that the training's batches have."""
        if setting.get("of") == TESTS:
            return frozenset()
        return self.traits | ({"batches on the device"} if setting.get("on") == DEVICE else set())

    def seen(self, run: Run) -> bool | None:
        training = [loader for loader in run.loaders if loader.trains]
        kept = {loader.dataset_id for loader in training if loader.kept}  # a loader may live for one epoch only
        return all(loader.in_memory or loader.dataset_id in kept for loader in training) if training else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        training = [loader for loader in run.loaders if loader.trains]
        reasons = [_why_not(loader) for loader in training]
        judging = [loader for loader in run.loaders if loader.draws and not loader.trains]
        there: Setting = {"on": DEVICE} if run.device == "cuda" else {}
        of_tests = [Try({**there, "of": TESTS}, 0.0)] if any(_why_not(one) is None for one in judging) else []
        if not training or all(reasons):
            return of_tests or CannotHelp(next(iter(filter(None, reasons)), "no training loader was seen"))
        here = Try({}, run.share("wait"))
        on_host = run.share("wait", "copy", "other")  # only a close watch tells copies from the rest
        return [*([Try(there, on_host)] if there else []), here, *of_tests]

    def apply(self, patch: Patch, setting: Setting) -> None:
        from torch.utils.data import DataLoader

        from hotlap.observe.dataset_state import dataset_state
        from hotlap.observe.memory import free_memory
        from hotlap.parts.device_batches import device_in_use
        from hotlap.parts.resident_loader import Residency

        limit = int(_SHARE_OF_MEMORY * free_memory())  # a container may have less than its machine
        place = device_in_use if setting.get("on") == DEVICE else None
        residency = Residency(limit, dataset_state, patch.withdraw, place)
        patch.on_undo(residency.close)
        if setting.get("of") == TESTS:
            patch.at(patch.joints.loader_started, residency.claim_tests, depth=-2)  # before those who make batches
            return
        get_iterator = DataLoader._get_iterator
        patch.set(DataLoader, "_get_iterator", lambda loader: residency.iterator(get_iterator, loader))


def _why_not(loader: LoaderFacts) -> str | None:
    if loader.iterable:
        return "its data set is iterable"
    if loader.own_collate:
        return "it collates in a way of its own"
    if loader.in_memory:
        return "its data set already lies in memory as tensors"
    if loader.draws_random:
        return "its samples are drawn at random: every epoch shall see others"
    if loader.private_generator:
        return "its data set owns a random generator"
    if loader.changes:
        return "its data set changes while it is read"
    return None
