"""Storage that can feed the loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotlap.parts.storage import MEMORY, ReadRate, read_rate, storage_of
from hotlap.technique import CannotHelp, Family, Parity, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.run import Run

_ALL = 0.95  # of the files looked at lie in the system's cache
_HARDLY = 0.02  # of the step spent waiting for data


class FastStorage(Technique):
    """The data set lies where it can be read as fast as the steps consume it: advice, and a part to copy it.

    ## Why it is faster
    No number of workers reads more than the storage gives. A disk that turns, a network share or a container's overlay
    is slowest with many small files, which is what image data sets are. Copied once to memory or to a local disk, they
    are read from there in every epoch: `with staged(folder, limit_bytes=...) as copy` (`hotlap.parts.storage`) does
    that within a limit, and clears up after itself, also after a process that was killed.

    ## When it does not help
    When the folder gives more than the steps need, which is measured: some of its files are read past the system's
    cache, by as many readers as the script has workers, and the rate is held against bytes a step and time a step.
    When the files lie in the system's cache already, or fit there and are read again in every epoch. When decoding is
    the slow part: then storage waits for the processor. Which files a data set reads is seen where they are opened
    through PIL.

    ## What changes numerically
    Nothing: the same bytes are read from another place.

    ## Claims
    "Move the data to an SSD" stands in the tip lists without a figure. Whether it helps is one division: the rate that
    the steps need by the rate that the folder gives, and both are said here. It is advice: no data is moved unasked.
    """

    family = Family.WAIT
    aliases = ("ssd", "storage", "nvme", "staging")

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        folder = Path(run.data_folder)
        if not run.images_opened or not run.data_folder:
            return CannotHelp("no image file was opened through PIL, so which files are read is not known")
        storage = storage_of(folder)
        if storage.kind in MEMORY:
            return CannotHelp(f"{folder} lies in {storage.words} already")
        if run.share("wait") < _HARDLY:
            return CannotHelp(f"the steps hardly wait for data; {folder} lies on {storage.words}")
        readers = max((loader.num_workers for loader in run.loaders if loader.trains), default=0)
        found = read_rate(folder, max(1, readers))
        if found is None:
            return CannotHelp(f"{folder} cannot be read")
        return CannotHelp(_judged(run, folder, storage.words, found))


def _judged(run: Run, folder: Path, lies_on: str, found: ReadRate) -> str:
    given, needed = found.bytes_a_second / 1e6, _needed(run, found) / 1e6
    rates = f"{folder} ({lies_on}) reads {given:,.3g} MB/s past the cache, and the steps need about {needed:,.3g} MB/s"
    if given >= needed:
        return f"fast enough: {rates}"
    if found.cached is not None and found.cached >= _ALL:
        return f"its files lie in the system's cache: {rates}"
    return f"too slow: {rates}; copy it with `hotlap.parts.storage.staged`, or to a local disk, before training"


def _needed(run: Run, found: ReadRate) -> float:
    """Bytes a second, if the steps never waited for data."""
    if not run.step_seconds or not run.steps:
        return 0.0
    step_seconds = sum(run.step_seconds) / len(run.step_seconds) * (1 - run.share("wait"))
    return run.images_opened / run.steps * found.file_bytes / max(step_seconds, 1e-6)
