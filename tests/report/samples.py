"""Reports to render: a rich one, and the awkward ones."""

from __future__ import annotations

import math
from dataclasses import replace

from hotlap.report.findings import (
    Ablation,
    Facts,
    Finding,
    Interval,
    Kept,
    NotTried,
    ParityCheck,
    Rejected,
    TrialTimes,
    TuneReport,
)

from .profiles import (
    AWKWARD,
    FACTS,
    SHARES,
    awkward_profile,
    cpu_profile,
    minimal_profile,
    profile,
    steps,
)


def losses(steps: int = 240, shift: float = 0.0) -> list[float]:
    return [0.4 + 1.9 * math.exp(-i / 60) + 0.09 * math.sin(i * 1.7 + shift) * math.exp(-i / 200) for i in range(steps)]


def trials() -> list[TrialTimes]:
    screened = (("low-precision", 0.0162), ("image-layout", 0.0188), ("loader-workers", 0.0119), ("compiled", 0.0071))
    found = [TrialTimes("baseline", "baseline", "finished", steps(0.0190, phase=k), 8, 6.1) for k in range(2)]
    found += [TrialTimes(name, "screen", "finished", steps(level), 8, 7.0) for name, level in screened]
    for k in range(6):
        pair = [
            TrialTimes("baseline", "confirm", "finished", steps(0.0190 * (1 + 0.01 * math.sin(k)), phase=k), 8, 6.0),
            TrialTimes(
                "plan", "confirm", "finished", steps(0.0043 * (1 + 0.01 * math.cos(k)), phase=k), 8, 21.4, k == 3
            ),
        ]
        found += pair if k % 2 == 0 else pair[::-1]
    return found


def tune() -> TuneReport:
    return TuneReport(
        script="main.py",
        arguments=["--lr", "0.1"],
        before_seconds=0.01902,
        after_seconds=0.004312,
        batch_samples=128,
        speedup=Interval(4.411, 4.331, 4.492),
        confirmed=True,
        kept=[
            Kept("loader-workers", {"workers": 14, "prefetch": 4}, 1.58, "identical"),
            Kept("low-precision", {"dtype": "bfloat16"}, 1.31, "equivalent"),
            Kept("image-layout", {}, 1.24, "equivalent"),
            Kept("compiled-model", {"mode": "reduce-overhead"}, 1.52, "equivalent"),
            Kept("fused-optimizer", {"fused": True}, 1.06, "equivalent"),
        ],
        rejected=[
            Rejected("tensor-cores", {"precision": "high"}, "no gain beside what was kept: 1.00x (0.99-1.01)"),
            Rejected(
                "compiled-model", {"mode": "max-autotune"}, "slower than reduce-overhead: 0.98x after 74 s of start-up"
            ),
            Rejected(
                "half-precision", {"dtype": "float16"}, "not the same training: gradient cosine 0.981, limit >= 0.995"
            ),
            Rejected("data-on-device", {}, "out of memory after 212 steps: 139 GiB asked, 138 GiB there"),
        ],
        not_tried=[
            NotTried("blocking-copies", "copying takes 0.4 % of a step, too little to matter"),
            NotTried("host-syncs", "already in use"),
            NotTried("large-batch", "another training; --allow different tries it"),
            NotTried("gradient-checkpointing", "memory is not what limits this script"),
            NotTried("attention-kernel", "no attention in this model"),
        ],
        ablation=[
            Ablation("loader-workers", 1.58, 1.72),
            Ablation("low-precision", 1.09, 2.61),
            Ablation("image-layout", 1.01, 3.32),
            Ablation("compiled-model", 0.97, 2.88),
            Ablation("fused-optimizer", 1.02, None),
        ],
        ablation_label="screened",
        parity=[
            ParityCheck("batches that differ, of 391", 0.0, "= 0", True),
            ParityCheck("relative loss difference, forced steps", 5.5e-5, "<= 5e-04", True),
            ParityCheck("gradient projection minus one, forced steps", 1.5e-3, "<= 0.02", True),
            ParityCheck("gradient cosine, forced steps", 0.999, ">= 0.995", True),
            ParityCheck("relative update difference, optimizer probe", 5e-7, "<= 1e-04", True),
            ParityCheck("gradient norm ratio, free-running", 0.9987, "0.98 .. 1.02", True),
        ],
        a_against_a=Interval(1.002, 0.991, 1.013),
        smallest_gain=1.034,
        cost_seconds=291.0,
        payback_steps=19_800,
        shares_before=SHARES,
        shares_after={
            "wait": 0.038,
            "copy": 0.019,
            "forward": 0.301,
            "backward": 0.512,
            "update": 0.069,
            "sync": 0.029,
            "other": 0.032,
        },
        peak_bytes_before=2.61 * 2**30,
        peak_bytes_after=1.74 * 2**30,
        losses_before=losses(44),
        losses_after=losses(44, shift=0.02),
        losses_spread=[[0.88 * loss, 1.09 * loss] for loss in losses(44)],
        trials=trials(),
        caveats=["one of 12 confirming trials was disturbed by another process and repeated"],
        facts=FACTS,
    )


def nothing_kept() -> TuneReport:
    return replace(
        tune(),
        after_seconds=0.01902,
        speedup=None,
        confirmed=False,
        kept=[],
        ablation=[],
        parity=[],
        payback_steps=None,
        shares_after={},
        losses_after=[],
        peak_bytes_after=2.61 * 2**30,
        trials=[trial for trial in trials() if trial.label != "plan"],
    )


def not_confirmed() -> TuneReport:
    return replace(tune(), speedup=Interval(4.41, 0.97, 9.8), confirmed=False)


def minimal_tune() -> TuneReport:
    nothing = Facts("", "", "", "", 0, "", "")
    return TuneReport(
        "x.py", [], 1.0, 1.0, None, None, False, [], [], [], [], "screened", [], None, 1.0, 0.0, None, {}, {}, 0.0, 0.0,
        [], [], [], [], nothing,
    )  # fmt: skip


def awkward_tune() -> TuneReport:
    """Every text a user or a script could have chosen is hostile, and some figures are not numbers."""
    return replace(
        tune(),
        script=AWKWARD,
        arguments=[AWKWARD, "two words"],
        kept=[Kept(AWKWARD, {AWKWARD: AWKWARD}, math.nan, AWKWARD)],
        rejected=[Rejected(AWKWARD, {AWKWARD: True}, f"two\nlines of {AWKWARD}")],
        not_tried=[NotTried(AWKWARD, AWKWARD)],
        ablation=[Ablation(AWKWARD, 1.5, None)],
        parity=[ParityCheck(AWKWARD, math.nan, AWKWARD, False)],
        losses_after=[*losses(100), math.nan, math.inf, *losses(50)],
        trials=[TrialTimes(AWKWARD, "screen", AWKWARD, steps(0.01), 8, 1.0), *trials()],
        caveats=[AWKWARD],
        facts=replace(FACTS, command=AWKWARD, hardware="Übergerät → 训练"),
    )


TUNES = {
    "rich": tune,
    "nothing kept": nothing_kept,
    "not confirmed": not_confirmed,
    "minimal": minimal_tune,
    "awkward": awkward_tune,
}
PROFILES = {"rich": profile, "cpu": cpu_profile, "minimal": minimal_profile, "awkward": awkward_profile}


def findings() -> list[Finding]:
    return [
        Finding(
            "host-syncs",
            "src/train.py",
            12,
            9,
            "`.item()` waits for the device every step",
            "safe",
            "        total += loss.item()",
        ),
        Finding(
            "pinned-loader",
            "src/train.py",
            40,
            10,
            "batches are copied from pageable memory",
            "unsafe",
            "\tloader = DataLoader(data)",
        ),
        Finding("grad-free-eval", "eval, odd 100%.py", 3, 1, "gradients are kept in evaluation:\n100% waste", None),
    ]
