"""What runs inside a trial's process: attach, watch, execute the script, write the record, end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

from hotlap.measure import network
from hotlap.measure.draws import DRAWS
from hotlap.measure.order import Order
from hotlap.measure.refusal import refused
from hotlap.measure.trained import Trained
from hotlap.measure.witness import Witness
from hotlap.observe.attach import Attached
from hotlap.observe.compiling import Compiling
from hotlap.observe.launch import Stopped, Target, execute
from hotlap.observe.patch import Patch
from hotlap.observe.scrutiny import Scrutiny
from hotlap.observe.watch import Watch
from hotlap.observe.whose import is_users
from hotlap.plan import fingerprint
from hotlap.records import from_json, to_json
from hotlap.source.in_memory import InMemory, in_source, rewrite_in_memory
from hotlap.technique import Choice

# Trackers must neither phone home nor ask questions during trials.
_QUIET = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "COMET_MODE": "disabled", "NEPTUNE_MODE": "offline"}
_QUIET |= {"MLFLOW_TRACKING_URI": "file:///tmp/mlruns", "TQDM_MININTERVAL": "5"}
# Kernels that torch, Triton or the driver compiles: cuDNN has some compiled while it looks for the fastest.
_KEPT = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "CUDA_CACHE_PATH": "driver"}
_PROGRESS_SECONDS = 0.2
_NOTED_AT, _NOTED_SECONDS = (1, 2, 4, 8, 16, 32, 64, 128), 10.0
_TOO_FEW = 12  # steps: what starts late, like compiling, has not begun to pay
_LOOK_AFTER = 100  # steps, where the script runs to its end


class Recorder:
    """Follows one trial from launch to its record. The record is written once, by rename, so a reader never sees
    half of it; progress is a small file of its own. The user's own run also leaves word now and then, for the case that
    it is killed: the events themselves lie in the folder anyway."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.attached: Attached | None = None
        self.witness: Witness | None = None
        self.scrutiny: Scrutiny | None = None
        self.memory: InMemory | None = None
        self._last_step = self._told = self._noted = 0.0
        self._trained = Trained()
        self._look_is_over = False
        self._compiling = Compiling()
        self.enough = False

    def watch(self, patch: Patch) -> Watch:
        order = self.order
        watch = Watch(patch, self.stepped, order.closely, order.folder if order.real else "")
        if order.closely:
            self.scrutiny = Scrutiny(patch, watch, order.folder)
        if order.parity:
            self.witness = Witness(patch, order.parity_folder, order.parity, order.seed, order.steps)
        return watch

    def stepped(self, count: int) -> None:
        if self.enough:
            self._put("going-on", "")
            raise Stopped  # swallowed once: say it again
        self._compiling.step(count)
        now = time.perf_counter()
        if self._last_step:
            self._trained.add(now - self._last_step)
        self._last_step = now
        if now - self._told > _PROGRESS_SECONDS:
            self._told = now
            self._put("progress", str(count))
        if self.order.real and (count in _NOTED_AT or now - self._noted > _NOTED_SECONDS):
            self._noted = now
            self._note()
        if self.scrutiny is not None:
            self.scrutiny.step(count)
        if self._is_enough(count, self._trained.seconds) and not self._is_looking():
            self.write("enough")
            if not self.order.real:
                os._exit(0)
            self.enough = True
            if not self._trains_in_main_thread():
                sys.stdout.flush()
                os._exit(0)  # nothing raised there would end the script, only leave it half-trained
            raise Stopped

    def _trains_in_main_thread(self) -> bool:
        return self.attached is None or self.attached.watch is None or self.attached.watch.trains_in_main_thread

    def _is_enough(self, count: int, trained: float) -> bool:
        """Whether the timed steps are done; a run to its end gets its closer look on the way."""
        order = self.order
        long_enough = order.seconds and count >= order.steps_at_least and trained > order.seconds
        if self.witness is not None:
            return self.witness.is_done or count >= order.steps + 2 * DRAWS
        too_long = order.seconds_at_most and trained > order.seconds_at_most and count >= _TOO_FEW
        if self.scrutiny is not None and not order.steps and not order.seconds and count >= _LOOK_AFTER:
            self._is_looking()
        return bool((order.steps and count >= order.steps) or long_enough or too_long)

    def _is_looking(self) -> bool:
        """The closer look, in steps of its own after the timed ones: begins with the first call."""
        if self.scrutiny is None or self._look_is_over:
            return False
        self._put("looking", "")
        self._look_is_over = not self.scrutiny.next()
        if self._look_is_over and self.order.real:
            self._note()
        return not self._look_is_over

    def write(self, ending: str) -> None:
        run: dict[str, Any] | None = None
        if self.attached is not None and self.attached.watch is not None:
            record = self.attached.watch.record(self._withdrawn())
            record = dataclasses.replace(record, compiled_at=self._compiling.steps)
            run = to_json(self.scrutiny.added_to(record, is_over=True) if self.scrutiny is not None else record)
        data: dict[str, Any] = {
            "ending": ending,
            "run": run,
            "parity": self.witness.evidence() if self.witness else None,
        }
        data |= {"hosts": network.hosts(self.order.folder), "sources": _sources()}
        self._put("record.json", json.dumps(data))

    def _note(self) -> None:
        assert self.attached is not None and self.attached.watch is not None
        snapshot = self.attached.watch.snapshot(self._withdrawn())
        if self.scrutiny is not None:
            snapshot = dataclasses.replace(snapshot, run=self.scrutiny.added_to(snapshot.run, is_over=False))
        self._put("so-far.json", json.dumps(to_json(snapshot)))

    def _withdrawn(self) -> list[str]:
        """What was ordered and did not take hold: a trial without it must not pass in its name."""
        assert self.attached is not None
        return [*self.attached.withdrawn, *(self.memory.unwritten() if self.memory else ())]

    def _put(self, name: str, text: str) -> None:
        path = os.path.join(self.order.folder, name)
        with contextlib.suppress(OSError):  # a full disk, or a script that empties its temporary folder
            with open(path + ".new", "w") as file:
                file.write(text)
            os.replace(path + ".new", path)


def run_trial(order: Order) -> None:
    """Never returns. The process is the trial's own; its standard streams are already where they belong."""
    recorder = Recorder(order)
    os.environ.update(_QUIET)
    if order.kept_folder:  # or every trial would compile the same kernels again; torch has set its own default by now
        os.environ.update({name: os.path.join(order.kept_folder, kind) for name, kind in _KEPT.items()})
    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)  # the server's own precaution
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    network.watch(order.folder, refuse=order.sandbox != "namespace" and not order.allow_network)
    try:
        _attach(recorder)
        torch = sys.modules.get("torch")
        if torch is not None and not order.parity:
            torch.seed()  # forked children would all start from the server's generator
        _execute(recorder)
        ending = "finished"
    except BaseException as error:
        ending = (refused(error, _log(order)) if order.sandbox == "redirect" else None) or _ending(error)
    recorder.write(ending)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def run_for_real(order: Order) -> None:
    """The user's own run, watched: it leaves as the script leaves."""
    recorder = Recorder(order)
    _attach(recorder)
    _before_leaving(recorder)
    ending = "finished"
    try:
        _execute(recorder)
    except Stopped:
        pass
    except BaseException as error:
        ending = _ending(error)
        raise
    finally:
        if not recorder.enough:
            recorder.write(ending)


def _before_leaving(recorder: Recorder) -> None:
    """`os._exit` in the script's own process skips all that comes after: the record is written first."""
    own, leave = os.getpid(), os._exit

    @functools.wraps(leave)
    def _exit(status: int) -> NoReturn:
        if os.getpid() == own and not recorder.enough:
            recorder.write(f"left by os._exit({status})")
        leave(status)

    os._exit = _exit


def _attach(recorder: Recorder) -> None:
    """Each choice the way `run` would: in the process, or where it has no such form, in the modules as they load."""
    order = recorder.order
    choices = [Choice.from_json(choice) for choice in order.choices]
    written = in_source(choices)
    recorder.attached = Attached(
        [one for one in choices if one not in written], recorder.watch if order.watched else None
    )
    if written:
        undo = recorder.attached.patch.on_undo
        recorder.memory = rewrite_in_memory(written, _target(order).folder, undo, cached=False)


def _execute(recorder: Recorder) -> None:
    target, memory = _target(recorder.order), recorder.memory
    execute(target, memory.code) if memory else execute(target)


def _target(order: Order) -> Target:
    return Target(order.name, tuple(order.arguments), order.is_module)


def _sources() -> dict[str, str]:
    """The user's own modules that are loaded, the script among them, each with its content."""
    found = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__dict__", {}).get("__file__")  # a lazy module would load on a plain read
        if isinstance(path, str) and is_users(path):
            with contextlib.suppress(OSError):
                found[os.path.abspath(path)] = fingerprint(path)
    return found


def _log(order: Order) -> str:
    with open(os.path.join(order.folder, "log.txt"), errors="replace") as file:
        return file.read()


def _ending(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "finished" if error.code in (None, 0) else f"exit: {error.code}"
    text = f"{type(error).__name__}: {error}".strip().split("\n")[0][:300]
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    ):
        return "out of memory"
    if "DataLoader worker" in str(error):
        return f"loader worker died: {text}"
    return f"raised: {text}"


def main() -> None:
    sys.argv, given = [""], sys.argv[1]
    sys.path.insert(0, "")  # where the script's own folder will stand
    run_for_real(from_json(Order, json.loads(given)))
