"""One tuning from script to report: the search, then what it found as findings and as a plan."""

from __future__ import annotations

import dataclasses
import datetime
import os
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hotlap
from hotlap.errors import HotlapError
from hotlap.evidence import Evidence
from hotlap.measure import sandbox
from hotlap.measure.bench import Bench, Listener
from hotlap.measure.caveats import Caveat
from hotlap.measure.found import Found
from hotlap.measure.known import FILE, Known
from hotlap.measure.order import Order
from hotlap.measure.parity import FORCED, SEED
from hotlap.measure.search import Search
from hotlap.measure.trial import Trials
from hotlap.observe.launch import Target
from hotlap.observe.machine import Machine
from hotlap.plan import Entry, Plan, fingerprint
from hotlap.report.findings import Facts, Kept, NotTried, TrialTimes, TuneReport
from hotlap.source.fix import finds_a_place
from hotlap.technique import Technique

_FELT = ("OMP_", "MKL_", "CUDA_", "NVIDIA_", "TORCH", "PYTORCH_", "ONEDNN_", "DNNL_", "NCCL_")  # variables torch reads
_LARGE = 10 * 2**20  # a file named in the arguments that is larger is data, not settings


@dataclass(frozen=True)
class Wishes:
    """What the user asked of a tuning."""

    budget_seconds: float = 300.0
    trial_seconds: float | None = None  # None: a share of the budget
    allow_different: bool = False
    allow_network: bool = False
    accept_writes: bool = False
    folder: str = ""  # where trials are kept on record; empty: nowhere
    fresh: bool = False  # believe nothing that is on record


def tune(
    target: Target, techniques: Sequence[Technique], left_out: Sequence[NotTried], wishes: Wishes, listener: Listener
) -> tuple[TuneReport, Plan | None, Evidence | None]:
    """Search within the budget. A script that cannot be tuned is a HotlapError of one sentence."""
    order = order_for(target, wishes.allow_network, wishes.accept_writes, max(60.0, wishes.budget_seconds / 2))
    idle = [one for one in techniques if _is_idle(one, target)]
    techniques = [one for one in techniques if one not in idle]
    left_out = [*left_out, *(NotTried(one.id, "finds no place in this script's source") for one in idle)]
    trial_seconds = wishes.trial_seconds or min(10.0, max(1.5, wishes.budget_seconds / 40))
    with Trials() as trials:
        order = dataclasses.replace(order, kept_folder=trials.exchange("compiled"))
        known = Known(os.path.join(wishes.folder, FILE) if wishes.folder else "", _conditions(order), wishes.fresh)
        bench = Bench(trials, order, trial_seconds, listener, known)
        folder = trials.exchange("parity")
        search = Search(bench, techniques, wishes.budget_seconds, folder, listener, wishes.allow_different)
        found = search.run()
    found.not_tried += left_out
    if order.sandbox != "namespace":
        found.caveats.append((Caveat.UNPROTECTED if order.sandbox == "none" else Caveat.REDIRECTED).text())
    bench.keep("end", [], None)
    if known.reused:
        listener.said(_reused(known, bench.measured))
    if known.trouble:
        found.caveats.append(Caveat.NOT_KEPT.text(why=known.trouble))
    report = _report(target, found, bench)
    plan = _plan(target, found, report)
    return report, plan, _evidence(found, report, plan) if plan is not None else None


def _is_idle(technique: Technique, target: Target) -> bool:
    """Whether it has a form in source only, and none in this source: a trial would be the script's own once more."""
    if "apply" in technique.verbs or not {"rewrite", "settings"} <= set(technique.verbs):
        return False
    try:
        return not finds_a_place(technique, target.path)
    except Exception:  # one that stumbles over a file is tried, and its trial says so
        return False


def order_for(target: Target, allow_network: bool, accept_writes: bool, limit_seconds: float) -> Order:
    """What all trials of this target have in common. Refuses where they could not be kept from writing."""
    target.check()
    kind, why_not = sandbox.choose(allow_network)
    if kind == "none" and not accept_writes:
        raise HotlapError(
            f"trials cannot be kept from writing files here ({why_not}): files the script writes, changes or deletes"
            " would really be, in every trial, and what it starts or calls in C++ could reach the network; add"
            " --accept-writes to let it write as it does in a normal run"
        )
    return Order(
        name=target.name,
        arguments=list(target.arguments),
        is_module=target.is_module,
        cwd=os.getcwd(),
        terminal=_terminal(),
        protected=kind != "none",
        sandbox=kind,
        allow_network=allow_network,
        limit_seconds=limit_seconds,
    )


def _conditions(order: Order) -> dict[str, Any]:
    """All that a trial rests on but its plan and the user's own modules, which every trial names itself."""
    machine = Machine.read()
    named = [part for word in order.arguments for part in (word, word.partition("=")[2])]
    files = [path for path in named if path and os.path.isfile(path) and os.path.getsize(path) < _LARGE]
    return {
        "script": [order.name, order.is_module, order.arguments, order.cwd],
        "files": {path: fingerprint(path) for path in [Target(order.name, (), order.is_module).path, *files]},
        "machine": [machine.hardware, machine.driver, machine.os],
        "versions": [machine.python, machine.torch, machine.torch_cuda, hotlap.__version__],
        "environment": {name: value for name, value in os.environ.items() if name.startswith(_FELT)},
        "sandbox": [order.sandbox, order.allow_network],
    }


def _terminal() -> list[int]:
    """Where the user has one, trials have one of the same size: some scripts do not start without."""
    try:
        size = os.get_terminal_size(0)
    except (OSError, ValueError):
        return []
    return [size.lines, size.columns]


def facts(target: Target, trials: int, command: str = "tune") -> Facts:
    machine = Machine.read()
    return Facts(
        hardware=machine.hardware,
        driver=machine.driver,
        torch=machine.torch or "",
        command=f"hotlap {command} {shlex.join(target.command)}",
        trials=trials,
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        hotlap=hotlap.__version__,
    )


def _report(target: Target, found: Found, bench: Bench) -> TuneReport:
    before = found.before
    assert before is not None
    kept = found.plan if found.confirmed else []
    after = found.after if kept and found.after is not None else before
    before_seconds = statistics.median(found.baselines)
    comparison = found.comparison if kept else None
    after_seconds = before_seconds / comparison.interval.ratio if comparison else before_seconds
    saved = before_seconds - after_seconds
    one_off = _one_off(bench.times, {"plan", *map(str, kept)}) if kept else 0.0
    spent = bench.spent + bench.known.earlier_seconds + one_off
    batches = [loader.batch_size for loader in before.loaders if loader.trains and loader.batch_size]
    return TuneReport(
        script=str(target),
        arguments=list(target.arguments),
        before_seconds=before_seconds,
        after_seconds=after_seconds,
        batch_samples=batches[0] if batches else None,
        speedup=comparison.interval if comparison else None,
        confirmed=found.confirmed and bool(kept),
        kept=[
            Kept(
                choice.technique.id,
                dict(choice.setting),
                found.gains[choice.technique.id],
                found.parities[choice.technique.id].value,
            )
            for choice in kept
        ],
        rejected=found.rejected,
        not_tried=found.not_tried,
        ablation=found.ablation,
        ablation_label="screened",
        parity=found.checks,
        a_against_a=found.a_against_a,
        smallest_gain=found.smallest_gain,
        cost_seconds=bench.spent,
        payback_steps=round(spent / saved) if kept and saved > 0 else None,
        one_off_seconds=one_off,
        shares_before=before.shares,
        shares_after=after.shares,
        peak_bytes_before=before.peak_bytes,
        peak_bytes_after=after.peak_bytes,
        losses_before=found.losses_before,
        losses_after=found.losses_after if kept else [],
        losses_spread=found.losses_spread,
        trials=bench.times,
        caveats=found.caveats,
        facts=facts(target, len(bench.times)),
        cut_short=found.cut_short,
        hosts=bench.hosts,
        reused_trials=bench.known.reused,
        earlier_seconds=bench.known.earlier_seconds,
        compiled=str(after.compiled),
        epoch=found.epoch_of([choice.technique.id for choice in kept]),
    )


def _one_off(trials: Sequence[TrialTimes], plan: set[str]) -> float:
    """How much later a run with the plan gets going, at worst: a trial may have found compiled what a first run has to
    compile, and the first of them did not."""

    def excess(trial: TrialTimes) -> float:
        late = trial.step_seconds[trial.warmup_steps :]
        usual = statistics.median(late) if late else 0.0
        return trial.startup_seconds + sum(trial.step_seconds[: trial.warmup_steps]) - trial.warmup_steps * usual

    good = [trial for trial in trials if trial.ending in ("enough", "finished") and trial.step_seconds]
    before = [excess(trial) for trial in good if trial.role == "baseline" or trial.label == "baseline"]
    after = [excess(trial) for trial in good if trial.label in plan]
    return max(0.0, max(after) - statistics.median(before)) if before and after else 0.0


def _reused(known: Known, measured: int) -> str:
    trials = f"{known.reused} of {known.reused + measured} trials known from {known.days}"
    return f"{trials}, {measured} measured anew: --fresh measures all of them"


def _plan(target: Target, found: Found, report: TuneReport) -> Plan | None:
    if not report.kept or report.speedup is None or found.before is None:
        return None
    return Plan(
        script=os.path.basename(target.path),
        fingerprint=fingerprint(target.path),
        arguments=shlex.join(target.arguments),
        date=report.facts.date,
        hardware=report.facts.hardware,
        torch=report.facts.torch,
        device=found.before.device,
        ratio=report.speedup.ratio,
        low=report.speedup.low,
        high=report.speedup.high,
        entries=[Entry(kept.technique, kept.setting, kept.ratio) for kept in report.kept],
    )


def _evidence(found: Found, report: TuneReport, plan: Plan) -> Evidence:
    assert report.speedup is not None
    return Evidence(
        script=plan.script,
        fingerprint=plan.fingerprint,
        arguments=plan.arguments,
        device=plan.device,
        facts=report.facts,
        plan=report.kept,
        speedup=report.speedup,
        script_seconds=found.baselines[-len(found.plans) :],  # the pairs came last
        plan_seconds=found.plans,
        a_against_a=found.a_against_a,
        parity=found.checks,
        forced_steps=int(next(check.figure for check in found.checks if check.what == FORCED)),
        seeds=[SEED],
    )
