"""Is a sample always the same? Several detectors in a process of their own, since two equal reads prove little: a flip
with probability 0.01 passes them, and so does a clock read in whole seconds.

    from hotlap.parts.purity import why_impure

    reason = why_impure(dataset, range(8))  # None: they may be kept
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import io
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data._utils import worker

from hotlap.parts.forked import NoAnswer, asked
from hotlap.parts.without_a_trace import Writes, Wrote

_PATIENCE_SECONDS = 20.0
_CLOCKS = (
    *(time.time, time.time_ns, time.localtime, time.gmtime, time.strftime, time.ctime, time.asctime),
    *(datetime.datetime.now, datetime.datetime.utcnow, datetime.datetime.today, datetime.date.today),
)
_TELLING = dict.fromkeys(_CLOCKS, "the clock") | {os.urandom: "the system's random numbers"}


def reader(dataset: Any) -> Callable[[list[int]], list[Any]]:
    """Reads samples as a DataLoader's own fetcher does."""

    def read(index: list[int]) -> list[Any]:
        if getattr(dataset, "__getitems__", None):
            return dataset.__getitems__(index)  # type: ignore[no-any-return]
        return [dataset[number] for number in index]

    return read


@dataclass(frozen=True)
class Verdict:
    """On samples that were read a few times: the `reason` why they may not be kept, or None; and whether reading left
    something behind in the process that read, such as open files or threads, or another data set than there was."""

    reason: str | None
    leaves_something: bool = True


def why_impure(dataset: Any, indices: Sequence[int], state: Callable[[Any], int] = lambda dataset: 0) -> str | None:
    """The reason why samples may not be kept, or None."""
    return judged(dataset, indices, state).reason


def judged(dataset: Any, indices: Sequence[int], state: Callable[[Any], int] = lambda dataset: 0) -> Verdict:
    """Reads some samples three times, in a forked process: a data set that hangs or dies must not take the training
    with it. One that reads on the same `state` gives the same number."""

    generators = _generators()

    def judged() -> Verdict:
        try:
            before, opened = state(dataset), _left_open()
            reason = _why_impure(dataset, list(indices), state, generators)
            return Verdict(reason, opened is None or _left_open() != opened or state(dataset) != before)
        except Wrote:
            return Verdict("a sample writes files")
        except BaseException as error:
            return Verdict(f"reading a sample raised {type(error).__name__}")

    try:
        answer: Verdict = asked(judged, _PATIENCE_SECONDS)
    except NoAnswer as reason:
        return Verdict(f"a few samples were to be read twice: {reason}")
    return answer


def _left_open() -> tuple[Any, ...] | None:
    """Open files, threads and children, and what else a process has once for all its code; None where the system does
    not tell. Threads of libraries count: what is forked later would wait for them in vain."""
    try:
        files = {(name, _target(name)) for name in os.listdir("/proc/self/fd")}
        threads, folder = len(os.listdir("/proc/self/task")), os.getcwd()
    except OSError:
        return None
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    packages = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
    settings = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(), list(sys.path)
    return files, threads, _has_children(), folder, dict(os.environ), handlers, packages, settings


def _target(file: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{file}")
    except OSError:  # the listing itself, which is over
        return ""


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _why_impure(dataset: Any, indices: list[int], state: Callable[[Any], int], generators: list[Any]) -> str | None:
    read, before, writes = reader(dataset), list(map(_state, generators)), Writes()
    first = read(indices)  # what is imported on the way is none of the sample's
    with _Draws() as draws, _another_worker(dataset):  # nor may it depend on its neighbours, or on who reads it
        second = [sample for index in reversed(indices) for sample in reversed(read([index]))][::-1]
    state_before = state(dataset)
    writes.is_forbidden = True  # what is kept on disk was written by now
    with _Calls() as calls, _Words() as words:
        third = read(indices)
    if words.seen:
        return "a sample prints something"
    if state(dataset) != state_before:
        return "reading a sample changes its data set"
    if draws.seen:
        return f"a sample draws random numbers ({draws.seen})"
    if calls.seen:
        return f"a sample reads {calls.seen}"
    if list(map(_state, generators)) != before:  # one made meanwhile is seeded by what is watched for, or always alike
        return "a sample draws random numbers"
    return None if same(first, second) and same(first, third) else "two reads of one sample differ"


def same(one: Any, other: Any) -> bool:
    """Whether two samples are equal, bit for bit, whatever they are made of. What cannot be compared is not."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool(torch.equal(_bits(one), _bits(other)))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "tobytes"):  # arrays and images
        return getattr(one, "shape", None) == getattr(other, "shape", None) and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    return isinstance(one, (int, str, bytes, bool, type(None))) and bool(one == other)


def _bits(tensor: Any) -> Any:
    """Not-a-number equals itself here."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.view(-1).view(torch.uint8) if plain.numel() else plain


def _generators() -> list[Any]:
    """Every generator there is: the global ones, and all that Python's collector can find, which are fewer after
    `gc.freeze()`. Not for a forked copy to look for: each object it looked at would have to be copied."""
    kinds: tuple[type, ...] = (random.Random,)
    found: list[Any] = [torch.default_generator, random._inst]  # type: ignore[attr-defined]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
        found.append(numpy.random.mtrand._rand)
    return found + [one for one in gc.get_objects() if issubclass(type(one), kinds)]


def _state(generator: Any) -> str:
    if isinstance(generator, torch.Generator):
        return str(generator.get_state().numpy().tobytes())
    if isinstance(generator, random.SystemRandom):
        return ""  # it has none: the system's own numbers are watched for
    if isinstance(generator, random.Random):
        return str(hash(generator.getstate()))
    state = generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state()
    parts = state.items() if isinstance(state, dict) else state
    return " ".join(str(getattr(part, "tobytes", lambda part=part: part)()) for part in parts)


class _Draws:
    """Torch's generators are not the collector's to find, so every operation that draws is watched for."""

    def __init__(self) -> None:
        outer = self
        self.seen = ""

        class Mode(TorchDispatchMode):
            @classmethod
            def _should_skip_dynamo(cls) -> bool:
                return False  # or the compiler would be imported, for seconds, in every process that tests

            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if torch.Tag.nondeterministic_seeded in function.tags:
                    outer.seen = outer.seen or str(function.overloadpacket)
                return function(*args, **(kwargs or {}))

        self._mode = Mode()

    def __enter__(self) -> _Draws:
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)


class _Words:
    """What is written where the script's own output goes."""

    def __enter__(self) -> _Words:
        said = self._said = io.StringIO()
        self._own, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), said, said
        return self

    def __exit__(self, *error: Any) -> None:
        self.seen, (sys.stdout, sys.stderr) = self._said.getvalue(), self._own


@contextlib.contextmanager
def _another_worker(dataset: Any) -> Iterator[None]:
    """As in a loader's worker, and not its first."""
    own = worker._worker_info
    worker._worker_info = worker.WorkerInfo(id=1, num_workers=2, seed=1, dataset=dataset)
    try:
        yield
    finally:
        worker._worker_info = own


class _Calls:
    """Calls of C functions that give another answer each time."""

    def __init__(self) -> None:
        self.seen = ""

    def __enter__(self) -> _Calls:
        def saw(frame: Any, event: str, function: Any) -> None:
            if event == "c_call" and not self.seen:
                with contextlib.suppress(TypeError):  # not every callable can be looked up
                    self.seen = _TELLING.get(function, "")

        sys.setprofile(saw)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.setprofile(None)
