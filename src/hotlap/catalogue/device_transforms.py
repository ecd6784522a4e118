"""Images decoded and transformed in whole batches, on the device."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from hotlap.technique import CannotHelp, Family, Needs, Numbers, Parity, Setting, Technique, Try, Values

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import LoaderFacts, Run


class DeviceTransforms(Technique):
    """Images are decoded, cropped and normalised on the device, a whole batch at a time; workers only read and draw.

    ## Why it is faster
    A core decodes and transforms about a hundred photos a second; one GPU trains on thousands. Here a data set's own
    `__getitem__` runs as it is, in its own workers, but its torchvision transforms only draw their random numbers, and
    JPEG files and arrays stay as they are. What travels from a worker is a few tensors of bytes and numbers, not of
    floats. A thread decodes a whole batch by nvJPEG, another carries out what was drawn, on streams of their own,
    batches ahead. The script's `.to(device)` or `.cuda()` then hands over what already lies there.

    ## When it does not help
    Where the loop does not wait for its batches. Without a GPU. Where the script has transforms that are not known in a
    batched form: the known tail of a pipeline is moved, what comes before stays in the workers. Batches that are
    collated by code of the script's own, iterable data sets, data sets with a random generator of their own or that
    `worker_init_fn` changes, and scripts that do not move batches to the device as they come are left alone. A script
    that reads a batch in main memory first gets it there, at the price of a copy back. It takes device time from the
    training and, with 256 photos a batch, between one and two gigabytes. It still wants enough workers to read the
    files, about 3000 a second each. It is not tried together with `sample-cache`, whose decoded images are larger than
    the files, nor with `fast-jpeg`, which decodes in the workers; copies ahead (`device-prefetch`) are part of it.

    ## What changes numerically
    Indices, labels, order and random draws are the script's own, and the generators stand afterwards where they would.
    Transforms give what Pillow's give, to within 0.01 levels of 255 in the mean. nvJPEG enlarges colours in its own
    way: about one level in the mean on photos, more on coloured noise. The first 16 samples of every transform are also
    made the script's own way: transforms are held to their tolerance on the same pixels, decoding to 1.5 levels of
    brightness, 8 of colour and no shift. Where that fails, or anything else at any time, batches are made as ever, by
    the same random numbers; those under way then take as long as one process needs for them. An image that nvJPEG
    refuses is decoded by Pillow. What is not a plain 8-bit JPEG, whole to its end, is decoded in the worker by the
    script's own code. A file damaged in its middle may come out otherwise than Pillow has it.

    ## Claims
    NVIDIA's DALI is the usual advice when the processor is busy and the GPU idle: "up to 4x" in 2020. It does the same
    work on the device, but the data set has to be written anew as a DALI pipeline. A script that has done so has no
    DataLoader for its images, and is left alone. On one H200, pytorch/examples' ImageNet script with ResNet-50 and 256
    photos of about 500x375 a batch, unedited, took 292 ms a step as it is and 43 ms with a plan of this and six others,
    proven by `hotlap tune`; the network alone takes 38. Decoding a batch takes 13 to 20 ms, in a thread of its own.
    With nothing trained beside it, `ImageLoader` fed 9,800 such photos a second, torch's loader with 16 workers 3,600.
    Small images wait for workers too: for 128 of CIFAR-10's size, cropped and flipped, an EPYC's core took 4.4 ms
    here and 19 ms the script's own way.
    The chip decodes beside the training only if CUDA opens more than its usual eight queues, which this asks for
    (`CUDA_DEVICE_MAX_CONNECTIONS`), unless you have set a number: 14 ms a batch instead of 930.
    """

    family = Family.WAIT
    needs = Needs(device="cuda", package="torchvision")
    aliases = ("dali", "nvidia.dali", "gpu augmentation", "kornia", "torchvision.transforms")
    suits = "CNN"
    traits = frozenset({"batches on the device"})
    excludes = frozenset({"cached samples", "decoded in workers", "kept samples"})
    default: ClassVar[Setting] = {"ahead": 2, "device": "cuda"}
    values: ClassVar[Values] = {"ahead": Numbers(1), "device": ("cuda", "cpu")}
    batch_tolerance: ClassVar[float] = 0.02  # of a batch's spread: how far its batches may be from the script's own

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def seen(self, run: Run) -> bool | None:
        return True if any(one.what.startswith(self.id) for one in run.compared) else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        from hotlap.observe.run import shares

        training = [loader for loader in run.loaders if loader.trains]
        reasons = [_why_not(loader) for loader in training]
        if not training or all(reasons):
            return CannotHelp(next(iter(reasons), "no training loader was seen"))
        on_host = run.share("wait", "copy", "other")  # as device-prefetch: batches are there before they are moved
        return [Try(self.default, max(on_host, run.share("wait") + shares(run.device_parts)["copy"]))]

    def apply(self, patch: Patch, setting: Setting) -> None:
        import torch

        from hotlap.parts.device_batches import DeviceBatches, device_in_use
        from hotlap.parts.device_queues import open_all

        patch.on_undo(open_all())
        judge = patch.compare("difference of the first images, as a share of what is allowed", limit=1.0)
        wanted = {**self.default, **setting}
        place = device_in_use if wanted["device"] == "cuda" else functools.partial(torch.device, str(wanted["device"]))
        batches = DeviceBatches(judge, patch.withdraw, int(wanted["ahead"]), place)
        patch.on_undo(batches.leave)
        patch.at(patch.joints.loader_started, batches.starts, depth=-3)  # after those who send workers home


def _why_not(loader: LoaderFacts) -> str:
    """Some samples are read twice, which must leave the data set as it was."""
    return "its data set changes while it is read" if loader.changes else loader.not_batched
