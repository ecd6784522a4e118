"""The next batch is on its way to the device while this one computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hotlap.technique import CannotHelp, Family, Needs, Numbers, Parity, Setting, Technique, Try, Values

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run


class DevicePrefetch(Technique):
    """The next batch is pinned and copied to the device while this one computes, whatever its structure.

    ## Why it is faster
    `.to(device)` copies on the stream that computes: the device does nothing else meanwhile, and from ordinary memory
    the host waits too. Here a thread draws the next batches, pins what is not pinned, and begins the copies on a stream
    of their own. When the script then calls `.to(device)` or `.cuda()` on a tensor of the batch, it gets the copy that
    was made. With a data set kept in memory, gathering the batch happens in that thread as well.

    ## When it does not help
    Without a GPU; where batches are small beside the step; where the loop is bound by launches, since the thread takes
    turns with it (0.75x in a trial of the MNIST example on one H200); where workers cannot keep up, since then there is
    nothing to draw ahead. Loaders without workers are left alone, unless their samples are kept in memory: their data
    set would draw its random numbers ahead of the loop. So are batches of which the script moves nothing as it comes,
    as in `x.float().to(device)`, and batches too large to have several of them on the device. It spends the memory of
    the batches ahead, and of those that the device has not come to yet: four, or 64 MiB of smaller ones.

    ## What changes numerically
    Nothing: the same batches in the same order, and every sampler is asked when the script draws, as before; only with
    samples kept in memory is it asked earlier, and then only where it draws nothing at random along the way. Each copy
    is handed out once, and only if torch counts no write to the tensor since. Writes that torch does not count, as
    through NumPy, are looked for in the first batches; a script that makes them is left alone.

    ## Claims
    The lists name it as "prefetch to GPU" or "data prefetcher", without a figure. It is worth at most the share of the
    step in which batches are waited for and copied.
    """

    family = Family.COPY
    needs = Needs(device="cuda")
    aliases = ("prefetch", "data prefetcher", "side stream", "overlapped copies")
    helps_with = frozenset({"kept samples"})
    excludes = frozenset({"batches on the device"})
    default: ClassVar[Setting] = {"ahead": 2}
    values: ClassVar[Values] = {"ahead": Numbers(1)}

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def seen(self, run: Run) -> bool | None:
        training = [loader.copied_early for loader in run.loaders if loader.trains]
        return all(training) if training else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        from hotlap.observe.run import shares

        training = [loader for loader in run.loaders if loader.trains]
        if not training:
            return CannotHelp("no training loader was seen")
        if not any(loader.num_workers or loader.kept for loader in training):
            return CannotHelp("without workers, samples would be drawn ahead of the loop's own random numbers")
        on_host = run.share("wait", "copy", "other")  # only a close watch tells copies from the rest
        return [Try(self.default, max(on_host, shares(run.device_parts)["copy"]))]

    def apply(self, patch: Patch, setting: Setting) -> None:
        from hotlap.parts.device_queues import open_all
        from hotlap.parts.early_batches import EarlyBatches
        from hotlap.parts.early_copies import copier_for

        patch.on_undo(open_all())
        early = EarlyBatches(copier_for, int(setting.get("ahead", self.default["ahead"])), patch.withdraw)

        def drew(proceed: Any, iterator: Any) -> Any:
            batch = proceed(iterator)
            early.drew(iterator, batch)
            return batch

        patch.at(patch.joints.loader_started, early.starts, depth=5)  # before those who send workers home
        patch.at(patch.joints.batch_drawn, drew, depth=2)
        patch.on_undo(early.leave)
