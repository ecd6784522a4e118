"""Profiling: the script runs for real in a process of its own, with its own terminal; the record comes back here, so
that a crash or Ctrl-C in the script still leaves a report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

import psutil

from hotlap.errors import HotlapError
from hotlap.measure.bench import is_disturbed
from hotlap.measure.candidates import Candidate, consider
from hotlap.measure.caveats import Caveat
from hotlap.measure.order import Order
from hotlap.measure.pace import pace
from hotlap.measure.trial import Trial, read_trial
from hotlap.measure.tune import facts
from hotlap.observe.launch import Target
from hotlap.observe.machine import load_nvml
from hotlap.observe.run import Run
from hotlap.records import to_json
from hotlap.report.findings import ProfileReport, Sync, Verdict
from hotlap.technique import Technique

_GRACE_SECONDS = 10.0  # for a script that swallows being stopped


def profile(target: Target, techniques: Sequence[Technique], steps: int, seconds: float) -> tuple[ProfileReport, int]:
    """The report, and the exit code the script would have had."""
    target.check()
    folder = tempfile.mkdtemp(prefix="hotlap-profile-")
    try:
        order = Order(
            name=target.name,
            arguments=list(target.arguments),
            is_module=target.is_module,
            cwd=os.getcwd(),
            steps=steps,
            seconds=seconds,
            folder=folder,
            protected=False,
            real=True,
            waits=True,
        )
        busy, code = _run(order)
        trial = read_trial(folder, {"status": code}, 0.0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if trial.run is None or not trial.run.step_seconds:
        raise HotlapError(_nothing_seen(target, trial, code))
    return _report(target, trial.run, trial, busy, techniques), code


def _run(order: Order) -> tuple[float | None, int]:
    command = [sys.executable, "-m", "hotlap.measure.child", json.dumps(to_json(order))]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the script's; we stay for its report
    try:
        child = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        samples: list[float] = []
        watching = threading.Event()
        sampler = threading.Thread(target=_sample_device, args=(samples, watching), daemon=True)
        sampler.start()
        stopped_at: float | None = None
        while child.poll() is None:
            time.sleep(0.05)
            if stopped_at is None and os.path.exists(os.path.join(order.folder, "stopping")):
                stopped_at = time.monotonic()
            if stopped_at is not None and time.monotonic() - stopped_at > _GRACE_SECONDS:
                _kill(child.pid)
        watching.set()
    finally:
        signal.signal(signal.SIGINT, before)
    code = child.returncode if child.returncode >= 0 else 128 - child.returncode  # as a shell tells a signal
    return (sum(samples) / len(samples) if samples else None), code


def _kill(pid: int) -> None:
    try:
        process = psutil.Process(pid)
        for one in [*process.children(recursive=True), process]:
            one.kill()
    except psutil.NoSuchProcess:
        pass


def _sample_device(samples: list[float], done: threading.Event) -> None:
    """What nvidia-smi would show, averaged from the first sign of work on."""
    nvml = load_nvml()
    if nvml is None:
        return
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        while not done.wait(0.2):
            busy = nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100
            if busy or samples:
                samples.append(busy)
    except Exception:  # NVML is a courtesy: without it the figure is left out
        return


def _report(
    target: Target, run: Run, trial: Trial, device_busy: float | None, techniques: Sequence[Technique]
) -> ProfileReport:
    shown = [Sync(_relative(s.path), s.line, s.count, s.seconds) for s in run.syncs]
    return ProfileReport(
        script=str(target),
        steps=len(run.step_seconds),
        step_seconds=pace(run).level,
        shares=run.shares,
        cpu_busy=run.cpu_seconds / max(run.wall_seconds, 1e-9),
        device_busy=device_busy if run.device == "cuda" else None,
        syncs=sorted(shown, key=lambda sync: -sync.seconds)[:20],
        memory={"peak": float(run.peak_bytes), "parameters": float(run.parameter_bytes)},
        layers=[
            {"root": root.kind, "layer": name, "count": count}
            for root in run.roots
            for name, count in root.layers.items()
        ],
        device=run.device,
        torch=run.torch,
        evaluation_seconds=run.evaluation_seconds,
        verdicts=[_verdict(technique, run) for technique in techniques],
        facts=facts(target, 1, "profile"),
        ending=trial.ending,
        caveats=[Caveat.DISTURBED.text()] if is_disturbed(run) else [],
        step_times=run.step_seconds,
    )


def _relative(path: str) -> str:
    inside = os.path.relpath(path)
    return path if inside.startswith("..") else inside


def _verdict(technique: Technique, run: Run) -> Verdict:
    judged = consider(technique, run)
    if isinstance(judged, Candidate):
        return Verdict(technique.id, "could help", judged.most, f"saves from {' and '.join(technique.family.shares)}")
    return Verdict(technique.id, "in use" if judged.in_use else "cannot help", 0.0, judged.reason)


def _nothing_seen(target: Target, trial: Trial, code: int) -> str:
    if code and trial.run is None:
        return f"{target} ended ({trial.ending}) and took its record with it: mend that first"
    if code:
        return f"{target} ended with exit code {code} before its first training step: mend that first"
    if trial.run is None:
        return f"{target} ended without importing torch: name the script that trains"
    return f"{target} ended without one whole training step: name the script that trains, or let it train for longer"
