"""Profiling: the script runs for real in a process of its own, with its own terminal; the record comes back here, so
that a crash or Ctrl-C in the script still leaves a report."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from hotlap.errors import HotlapError, Stopped
from hotlap.measure import scratch
from hotlap.measure.bench import is_disturbed
from hotlap.measure.bound import bound
from hotlap.measure.candidates import Candidate, consider
from hotlap.measure.caveats import Caveat
from hotlap.measure.feeding import feeding
from hotlap.measure.order import Order, own_process
from hotlap.measure.pace import pace
from hotlap.measure.scrutinised import growth, inputs, layers, memory
from hotlap.measure.trial import Trial, read_trial
from hotlap.measure.tune import facts
from hotlap.observe.events import Event
from hotlap.observe.feed_record import feed_facts
from hotlap.observe.launch import Target
from hotlap.observe.ledger import read_events
from hotlap.observe.machine import load_nvml
from hotlap.observe.memory import batch_that_fits, trend
from hotlap.observe.run import Run, shares
from hotlap.observe.scrutiny_facts import LookFacts
from hotlap.records import to_json
from hotlap.report import figures
from hotlap.report.profile_findings import ProfileReport, Sync, Unused, Verdict
from hotlap.technique import Technique

_GRACE_SECONDS = 10.0  # for a script that swallows being stopped, and trains on
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
_ROUNDING = 0.005  # of a step
_TOLD_SECONDS = 10.0  # between two words on how far it is


@dataclass(frozen=True)
class Wishes:
    steps: int  # to time; 0 = to the script's end
    seconds: float  # of training, after which the timed steps are done anyway; 0 = no such limit
    warmup: int | None = None  # steps left out; None = as many as it takes, found from their times
    quiet: bool = False


def profile(
    target: Target, techniques: Sequence[Technique], wishes: Wishes, keep_events: bool = False
) -> tuple[ProfileReport, int, list[Event]]:
    """The report, the exit code the script would have had, and the raw events where they are wanted."""
    target.check()
    folder = scratch.make()
    try:
        order = Order(
            name=target.name,
            arguments=list(target.arguments),
            is_module=target.is_module,
            cwd=os.getcwd(),
            steps=wishes.steps and wishes.steps + (wishes.warmup or 0),
            seconds=wishes.seconds,
            folder=folder,
            protected=False,
            real=True,
            closely=True,
        )
        busy, code = _run(order, wishes.quiet)
        trial = read_trial(folder, {"status": code}, 0.0)
        run = trial.run
        if run is None or not run.step_seconds:
            raise (Stopped if code == 130 else HotlapError)(_nothing_seen(target, trial, code))
        trained_on = {loader.dataset_id for loader in run.loaders if loader.trains}
        run = _with_short_paths(dataclasses.replace(run, feed=feed_facts(folder, trained_on)))
        events = read_events(os.path.join(folder, "events")) if keep_events else []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _report(target, run, trial, busy, techniques, wishes), code, events


def _run(order: Order, quiet: bool) -> tuple[float | None, int]:
    """The script's process, whose signals are its own: what a shell or a scheduler sends us goes on to it."""
    command = own_process("hotlap.measure.child", json.dumps(to_json(order)))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_PASSED_ON)}
    ignored = before[signal.SIGINT] is signal.SIG_IGN  # as under nohup
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the script by itself; we stay for its report
    try:
        restore = None if ignored else lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
        child = subprocess.Popen(command, preexec_fn=restore)
        for number in _PASSED_ON:
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, lambda number, frame: child.send_signal(number))
        samples: list[float] = []
        watching = threading.Event()
        sampler = threading.Thread(target=_sample_device, args=(samples, watching, order.folder), daemon=True)
        sampler.start()
        progress = _Progress(order, quiet)
        going_on: float | None = None
        while child.poll() is None:
            time.sleep(0.05)
            progress.look()
            if going_on is None and os.path.exists(os.path.join(order.folder, "going-on")):
                going_on = time.monotonic()
            if going_on is not None and time.monotonic() - going_on > _GRACE_SECONDS:
                _kill(child.pid)
        watching.set()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    code = child.returncode if child.returncode >= 0 else 128 - child.returncode  # as a shell tells a signal
    return (sum(samples) / len(samples) if samples else None), code


def _kill(pid: int) -> None:
    try:
        process = psutil.Process(pid)
        for one in [*process.children(recursive=True), process]:
            one.kill()
    except psutil.NoSuchProcess:
        pass


def _sample_device(samples: list[float], done: threading.Event, folder: str) -> None:
    """What nvidia-smi would show, averaged over the timed steps."""
    nvml = load_nvml()
    if nvml is None:
        return
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        progress, looking = os.path.join(folder, "progress"), os.path.join(folder, "looking")
        while not done.wait(0.1) and not os.path.exists(looking):
            if os.path.exists(progress):
                samples.append(nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100)
    except Exception:  # NVML is a courtesy: without it the figure is left out
        return


class _Progress:
    """A line to stderr now and then: the terminal is the script's own, so nothing is drawn over its output."""

    def __init__(self, order: Order, quiet: bool) -> None:
        self._order, self._quiet = order, quiet
        self._told_at, self._told = time.monotonic(), 0
        wanted = f"{order.steps} steps" if order.steps else "all its steps"
        limit = f", {order.seconds:.0f} s of training at most" if order.seconds else ""
        self._say(f"watching {wanted} of {order.name}{limit}, then a closer look in a few more")

    def look(self) -> None:
        if self._quiet or time.monotonic() - self._told_at < _TOLD_SECONDS:
            return
        self._told_at = time.monotonic()
        with contextlib.suppress(OSError, ValueError), open(os.path.join(self._order.folder, "progress")) as file:
            wanted = self._order.steps
            count = min(int(file.read()), wanted or sys.maxsize)  # the closer look takes more than were asked for
            if count != self._told:
                self._told = count
                self._say(f"{count} of {wanted} steps" if wanted else f"{count} steps")

    def _say(self, words: str) -> None:
        if not self._quiet:
            print(f"hotlap: {words}", file=sys.stderr, flush=True)


def _report(
    target: Target,
    run: Run,
    trial: Trial,
    device_busy: float | None,
    techniques: Sequence[Technique],
    wishes: Wishes,
) -> ProfileReport:
    timed = _after(run, wishes.warmup) if wishes.warmup and wishes.warmup < len(run.step_seconds) else run
    found = pace(timed)
    warmup = len(run.step_seconds) - len(timed.step_seconds) + (0 if wishes.warmup is not None else found.warmup_steps)
    run = dataclasses.replace(run, warmup_steps=warmup)
    step, look = found.level, run.look
    kernel_seconds = sum(look.device_seconds.values())
    batch = run.feed.batch_samples or max((one.batch_size or 0 for one in run.loaders if one.trains), default=0)
    return ProfileReport(
        script=str(target),
        arguments=list(target.arguments),
        steps=len(run.step_seconds),
        step_seconds=step,
        warmup_steps=warmup,
        shares=run.shares,
        device_shares=shares(run.device_parts[warmup:]) if len(run.device_parts) > warmup else None,
        cpu_busy=run.cpu_seconds / max(run.wall_seconds, 1e-9),
        device_busy=device_busy if run.device == "cuda" else None,
        device_idle=max(0.0, 1 - kernel_seconds / step) if kernel_seconds and step else None,
        bound=bound(run, step),
        syncs=sorted(_syncs(run), key=lambda sync: -sync.seconds)[:20],
        feeding=feeding(run, step),
        memory=memory(run.memory, run.device),
        growth=growth(run.memory, trend(run.memory.levels)),
        batch_that_fits=batch_that_fits(run.memory, batch) if run.device != "cpu" else None,
        layers=layers(look),
        unused=[Unused(one.name, one.kind, one.elements) for one in look.unused],
        remarks=[*look.remarks, *filter(None, [str(run.compiled)])],
        inputs=inputs(look),
        peak_flops=look.peak_flops,
        peak_bandwidth=look.peak_bandwidth,
        look=_look(look, wishes),
        device=run.device,
        torch=run.torch,
        evaluation_seconds=run.evaluation_seconds,
        evaluation_passes=run.evaluation_passes,
        evaluation_shares=shares([run.evaluation_parts]) if run.evaluation_parts else {},
        verdicts=[_verdict(technique, run) for technique in techniques],
        facts=facts(target, 1, "profile"),
        ending=trial.ending,
        caveats=_caveats(run),
        step_times=run.step_seconds,
        step_parts=run.step_parts,
    )


def _after(run: Run, warmup: int) -> Run:
    """The run without its first steps."""
    starts = [number - warmup for number in run.epoch_starts if number >= warmup]
    return dataclasses.replace(run, step_seconds=run.step_seconds[warmup:], epoch_starts=starts)


def _syncs(run: Run) -> list[Sync]:
    return [
        Sync(one.path, one.line, one.count, one.seconds, one.kind, one.steps, one.evaluation_count) for one in run.syncs
    ]


def _with_short_paths(run: Run) -> Run:
    """Files of the folder we stand in are named as one would name them here."""

    def short(places: list[Any]) -> list[Any]:
        return [dataclasses.replace(one, path=_relative(one.path)) for one in places]

    feed = dataclasses.replace(run.feed, makings=short(run.feed.makings))
    memory = dataclasses.replace(run.memory, growth=short(run.memory.growth))
    return dataclasses.replace(run, syncs=short(run.syncs), feed=feed, memory=memory)


def _look(look: LookFacts, wishes: Wishes) -> str:
    if look.skipped:
        return f"no closer look: {look.skipped}"
    if look.steps:
        return f"a closer look at {look.steps} further steps"
    advice = "fewer --steps leave room for it" if wishes.steps else "it comes after 100 steps, or after --steps"
    return f"no closer look: the script ended before it; {advice}"


def _caveats(run: Run) -> list[str]:
    found = [Caveat.DISTURBED.text()] if is_disturbed(run) else []
    kept = len(run.step_seconds)
    if kept < run.steps // 2:
        found.append(f"only the last {kept:,} of {run.steps:,} steps are kept, and these are what is shown")
    if run.trouble:
        found.append(f"part of the record is missing: {run.trouble}")
    return found


def _relative(path: str) -> str:
    inside = os.path.relpath(path) if path else ""
    return path if inside.startswith("..") else inside


def _verdict(technique: Technique, run: Run) -> Verdict:
    judged = consider(technique, run)
    if isinstance(judged, Candidate):
        names, share = technique.family.shares, run.share(*technique.family.shares)
        why = f"{' and '.join(names)}: {figures.percent(share)} of a step"
        if judged.most > share + _ROUNDING:  # its bound is its own, and reaches beyond its family's share
            why = f"{', '.join(names)} and more: {figures.percent(judged.most)} of a step"
        return Verdict(technique.id, "could help", judged.most, why)
    return Verdict(technique.id, "in use" if judged.in_use else "cannot help", 0.0, judged.reason)


def _nothing_seen(target: Target, trial: Trial, code: int) -> str:
    if code == 130:
        return f"{target} was stopped before its first training step: let it run until it trains"
    if code and trial.run is None and trial.ending.startswith(("raised: ", "exit: ")):  # as its own record says
        return f"{target} ended ({trial.ending}) before it imported torch: mend that first"
    if code and trial.run is None:
        return f"{target} ended ({trial.ending}) and took its record with it: mend that first"
    if code:
        return f"{target} ended with exit code {code} before its first training step: mend that first"
    if trial.run is None:
        return f"{target} ended without importing torch: name the script that trains"
    trained = "one whole training step in its own process"
    return f"{target} ended without {trained}: name the script that trains, or let it train for longer"
