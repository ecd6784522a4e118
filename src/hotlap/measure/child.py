"""What runs inside a trial's process: attach, watch, execute the script, write the record, end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from typing import Any

from hotlap.measure.order import Order
from hotlap.measure.witness import Witness
from hotlap.observe.attach import Attached
from hotlap.observe.launch import Stopped, Target, execute
from hotlap.observe.patch import Patch
from hotlap.observe.watch import Watch
from hotlap.records import from_json, to_json
from hotlap.technique import Choice

# Trackers must neither phone home nor ask questions during trials.
_QUIET = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "COMET_MODE": "disabled", "NEPTUNE_MODE": "offline"}
_QUIET |= {"MLFLOW_TRACKING_URI": "file:///tmp/mlruns", "TQDM_MININTERVAL": "5"}
_PROGRESS_SECONDS = 0.2


class Recorder:
    """Follows one trial from launch to its record. The record is written once, by rename, so a reader never sees
    half of it; progress is a small file of its own."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.attached: Attached | None = None
        self.witness: Witness | None = None
        self._first_step = self._told = 0.0
        self.enough = False

    def watch(self, patch: Patch) -> Watch:
        watch = Watch(patch, on_step=self.stepped, waits=self.order.waits)
        if self.order.parity:
            self.witness = Witness(patch, self.order.parity_folder, self.order.parity, self.order.seed)
        return watch

    def stepped(self, count: int) -> None:
        if self.enough:
            raise Stopped  # swallowed once: say it again
        now = time.perf_counter()
        self._first_step = self._first_step or now
        if now - self._told > _PROGRESS_SECONDS:
            self._told = now
            self._put("progress", str(count))
        order = self.order
        trained = now - self._first_step
        long_enough = order.seconds and count >= order.steps_at_least and trained > order.seconds
        too_long = order.seconds_at_most and trained > order.seconds_at_most
        if (order.steps and count >= order.steps) or long_enough or too_long:
            self.write("enough")
            if not order.real:
                os._exit(0)
            self.enough = True
            self._put("stopping", "")
            raise Stopped

    def write(self, ending: str) -> None:
        run: dict[str, Any] | None = None
        if self.attached is not None and self.attached.watch is not None:
            run = to_json(self.attached.watch.record(self.attached.withdrawn))
        data = {"ending": ending, "run": run, "parity": self.witness.evidence() if self.witness else None}
        self._put("record.json", json.dumps(data))

    def _put(self, name: str, text: str) -> None:
        path = os.path.join(self.order.folder, name)
        with open(path + ".new", "w") as file:
            file.write(text)
        os.replace(path + ".new", path)


def run_trial(order: Order) -> None:
    """Never returns. The process is the trial's own; its standard streams are already where they belong."""
    recorder = Recorder(order)
    os.environ.update(_QUIET)
    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)  # the server's own precaution
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        _attach(recorder)
        torch = sys.modules.get("torch")
        if torch is not None and not order.parity:
            torch.seed()  # forked children would all start from the server's generator
        execute(_target(order))
        ending = "finished"
    except BaseException as error:
        ending = _ending(error)
    recorder.write(ending)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def run_for_real(order: Order) -> None:
    """The user's own run, watched: it leaves as the script leaves."""
    recorder = Recorder(order)
    _attach(recorder)
    ending = "finished"
    try:
        execute(_target(order))
    except Stopped:
        pass
    except BaseException as error:
        ending = _ending(error)
        raise
    finally:
        if not recorder.enough:
            recorder.write(ending)


def _attach(recorder: Recorder) -> None:
    choices = [Choice.from_json(choice) for choice in recorder.order.choices]
    recorder.attached = Attached(choices, recorder.watch if recorder.order.watched else None)


def _target(order: Order) -> Target:
    return Target(order.name, tuple(order.arguments), order.is_module)


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


if __name__ == "__main__":
    sys.argv, given = [""], sys.argv[1]
    run_for_real(from_json(Order, json.loads(given)))
