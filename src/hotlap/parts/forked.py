"""A question answered by a forked copy of this process: it may hang, die, print, or move random generators and the
training knows nothing of it."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pickle
import select
import signal
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any


class NoAnswer(Exception):
    """With the reason."""


def asked(question: Callable[[], Any], patience_seconds: float) -> Any:
    """What `question()` returns in a process of its own."""
    reason = why_no_fork()
    if reason is not None:
        raise NoAnswer(reason)
    try:
        reading, writing = os.pipe()
    except OSError as error:  # the script has as many files open as it may
        raise NoAnswer(f"no process could be started ({error.strerror})") from error
    try:
        child = _asker(question, reading, writing)
    except (OSError, RuntimeError) as error:  # which some Pythons raise when they go down
        os.close(reading)
        raise NoAnswer(f"no process could be started ({getattr(error, 'strerror', error)})") from error
    finally:
        os.close(writing)
    try:
        answer = _answer(reading, patience_seconds)
    except BaseException:
        end(child)
        raise
    finally:
        os.close(reading)
    try:  # a large copy takes long to go
        threading.Thread(target=end, args=(child,), name="hotlap-ends-copy", daemon=True).start()
    except RuntimeError:  # no thread can be started, as when Python goes down
        end(child)
    return answer


def _asker(question: Callable[[], Any], reading: int, writing: int) -> int:
    child = fork()
    if child == 0:
        try:  # nothing may leave this process: it stands in the middle of the script
            gc.disable()  # what the training left behind is not ours to end
            stand_aside()
            with os.fdopen(writing, "wb") as answering:
                answering.write(pickle.dumps(question()))
        finally:
            os._exit(0)
    return child


def _answer(reading: int, patience_seconds: float) -> Any:
    waiting = select.poll()  # `select` knows the first 1024 files only
    waiting.register(reading, select.POLLIN)
    said, end_at = bytearray(), time.monotonic() + patience_seconds
    while waiting.poll(1000 * max(0.0, end_at - time.monotonic())):
        more = os.read(reading, 1 << 20)
        if not more and said:
            return pickle.loads(said)
        if not more:
            break
        said += more
    raise NoAnswer("it took too long or ended the process")


def why_no_fork() -> str | None:
    """What stands against children that the script knows nothing of."""
    if not hasattr(os, "fork"):
        return "this system cannot fork"
    return "the script minds its child processes itself" if minds_children() else None


def minds_children() -> bool:
    """Whether the script is told when a child of this process ends, whosever it is."""
    handler: Any = signal.getsignal(signal.SIGCHLD)
    if getattr(handler, "__module__", "") == "torch.utils.data._utils.signal_handling":
        handler = handler.__closure__[0].cell_contents  # the one before a loader's
    return handler not in (signal.SIG_DFL, None)


def fork() -> int:
    """Without Python's warning that other threads do not come along: nothing of theirs is used."""
    if sys.version_info < (3, 12) or _is_ignored(DeprecationWarning):
        return os.fork()
    with warnings.catch_warnings():  # after which Python shows every warning once more
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _is_ignored(category: type[Warning]) -> bool:
    """Whether such a warning, raised here, is shown to nobody, as is Python's default. The filters that Python starts
    with name a module by a string, all others by a pattern."""
    for action, message, kind, module, line in warnings.filters:
        is_here = module is None or (module == __name__ if isinstance(module, str) else module.match(__name__))
        if is_here and issubclass(category, kind) and message is None and line == 0:
            return action == "ignore"
    return False


def stand_aside() -> None:
    """In a forked copy: what is sent to the whole group is not for us, and nobody hears us. Torch's threads did not
    come along, and waiting for them would be in vain."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    with contextlib.suppress(FileNotFoundError):  # where files cannot be listed they stay shared
        for file in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                _part_from(file, nowhere)
    os.close(nowhere)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # the script's may lead elsewhere, and holds words


def _part_from(file: int, nowhere: int) -> None:
    """A fork shares its place in every open file: what is read here would be missing there, and what is written here
    stands there. Memory without a name is for sharing."""
    name = f"/proc/self/fd/{file}"
    if not stat.S_ISREG(os.fstat(file).st_mode) or os.readlink(name).startswith("/memfd:"):
        return
    if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        os.dup2(nowhere, file)
        return
    place = os.lseek(file, 0, os.SEEK_CUR)
    own = os.open(name, os.O_RDONLY)
    os.lseek(own, place, os.SEEK_SET)
    os.dup2(own, file)
    os.close(own)


def end(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # the script waits for children of its own
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
