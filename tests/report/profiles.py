"""Profiles to render: a rich one from a GPU, one from a processor, an empty one, and a hostile one."""

from __future__ import annotations

import math
from dataclasses import replace

from hotlap.report.findings import Facts
from hotlap.report.profile_findings import SHARES as NAMES
from hotlap.report.profile_findings import (
    Bound,
    Feeding,
    Growth,
    Input,
    Layer,
    Making,
    ProfileReport,
    Sync,
    Unused,
    Verdict,
    Worker,
)

AWKWARD = "a_b%$#&<script>alert(1)</script>`|\\~^{}"

FACTS = Facts(
    hardware="NVIDIA H200, 16 cores of Xeon Platinum 8480C",
    driver="570.124.06",
    torch="2.13.0+cu129",
    command="main.py --lr 0.1",
    trials=34,
    date="2026-03-14",
    hotlap="0.1.0",
)
GIB, MIB = 2.0**30, 2.0**20
SHARES = dict(zip(NAMES, (0.581, 0.009, 0.112, 0.214, 0.041, 0.031, 0.012), strict=True))


def steps(level: float, number: int = 48, phase: int = 0) -> list[float]:
    """Warm-up first, then a level with a little deterministic scatter and a rare spike."""
    warm = [level * (2.5 - 0.2 * i) for i in range(8)]
    rest = [level * (1 + 0.012 * math.sin(1.3 * i + phase) + (0.25 if i % 31 == 30 else 0)) for i in range(number)]
    return warm + rest


def step_parts(times: list[float], shares: dict[str, float]) -> list[list[float]]:
    """Each step split by shares that wander a little."""
    found = []
    for i, time in enumerate(times):
        weights = [share * (1 + 0.3 * math.sin(0.05 * i + k)) for k, share in enumerate(shares.values())]
        found.append([time * weight / sum(weights) for weight in weights])
    return found


def layer(number: int, seconds: float, flops: float, intensity: float, of_roof: float | None, note: str = "") -> Layer:
    kinds = ("Conv2d", "BatchNorm2d", "ReLU", "Linear")
    return Layer(
        root="ResNet",
        name=f"layer{1 + number % 4}.{number % 3}.{('conv', 'bn', 'relu', 'fc')[number % 4]}{number}",
        kind=kinds[number % 4],
        calls=1 + number % 2,
        forward_seconds=seconds / 3,
        backward_seconds=2 * seconds / 3,
        share=seconds / 0.0066,
        flops=flops,
        moved_bytes=flops / intensity if intensity else 4e6,
        intensity=intensity,
        bound="compute" if intensity > 180 else "memory",
        of_roof=of_roof,
        saved_bytes=12 * MIB,
        parameters=147_456 * (1 + number),
        dtype="float32" if number % 4 else "bfloat16",
        notes=[note] if note else [],
    )


def layers(number: int) -> list[Layer]:
    odd = {0: "10 outputs: not a multiple of 8", 3: "computes in float32", 4: "depthwise"}
    found = []
    for k in range(number):
        intensity = (310.0, 0.25, 0.0, 42.0)[k % 4] * (1 + 0.06 * k)
        found.append(
            layer(
                k,
                0.0011 * 0.9**k,
                intensity * 9e6,
                intensity,
                None if k % 4 == 2 else 0.62 / (1 + k % 5),
                odd.get(k, ""),
            )
        )
    return found


def feeding() -> Feeding:
    return Feeding(
        batch_seconds=0.0412,
        batch_bytes=19.3 * MIB,
        batch_samples=128,
        makings=[
            Making("decode", 0.0251, "main.py", 31),
            Making("RandomResizedCrop", 0.0083, "main.py", 33),
            Making("read", 0.0041),
            Making("collate", 0.0024),
            Making("own code", 0.0013, "data/photos.py", 57),
        ],
        workers=[Worker(0, 196, 0.98), Worker(1, 195, 0.97)],
        queue_depth=0.1,
        queue_capacity=4,
        queue_empty=0.93,
        read_rate=112 * MIB,
        shm_bytes=32 * GIB,
        shm_free_bytes=31 * GIB,
        advice=[
            "a batch takes 41.2 ms to make in one process and 7.97 ms to train on",
            "about 6 workers would keep up; the script has 2 workers",
        ],
    )


def profile() -> ProfileReport:
    times = steps(0.01902, 383)
    return ProfileReport(
        script="main.py",
        arguments=["--lr", "0.1"],
        steps=391,
        step_seconds=0.01902,
        warmup_steps=8,
        shares=SHARES,
        device_shares=dict(zip(NAMES, (0.0, 0.014, 0.121, 0.236, 0.018, 0.0, 0.002), strict=True)),
        cpu_busy=3.4,
        device_busy=0.39,
        device_idle=0.609,
        bound=Bound(
            "data",
            [
                "58 % of a step is spent waiting for the next batch, and 93 % of draws found none ready",
                "no kernel ran for 61 % of a step; 11.0 of the 11.6 ms without one fall into the wait",
            ],
        ),
        syncs=[
            Sync("main.py", 104, 391, 0.221, "item", 391, 0),
            Sync("main.py", 106, 782, 0.011, "pageable copy", 391, 79),
            Sync("utils.py", 43, 8, 0.0007, "nonzero", 8, 0),
            Sync("main.py", 131, 0, 0.0, "item", 0, 158),
        ],
        feeding=feeding(),
        memory={
            "peak": 2.61 * GIB,
            "weights": 42.6 * MIB,
            "gradients": 42.6 * MIB,
            "optimizer_state": 42.6 * MIB,
            "activations": 2.2 * GIB,
            "workspace": 0.285 * GIB,
            "fragmentation": 0.29 * GIB,
            "total": 139.8 * GIB,
            "free": 136.4 * GIB,
        },
        growth=[Growth(1.6 * MIB, "main.py", 112, "losses", "every loss is kept with its graph")],
        batch_that_fits=6_400,
        layers=layers(24),
        unused=[Unused("aux.weight", "parameter", 5_120), Unused("dropout2", "Dropout", 0)],
        remarks=["38 % of the device's time is element-wise work between 62 layers"],
        inputs=[
            Input("ResNet", "0", [[128, 3, 32, 32]], 1, "float32", [0.47, 0.45, 0.41], [0.25, 0.24, 0.26], []),
            Input(
                "ResNet",
                "mask",
                [[128, 7], [128, 9]],
                41,
                "int64",
                [],
                [],
                ["41 shapes: the model is compiled anew for each"],
            ),
        ],
        peak_flops={"float32": 51e12, "bfloat16": 712e12},
        peak_bandwidth=4.1e12,
        look="5 steps after those that were timed, every layer marked",
        device="cuda",
        torch="2.13.0+cu129",
        evaluation_seconds=1.61,
        verdicts=[
            Verdict("loader-workers", "could help", 0.581, "two workers feed a step that needs about six"),
            Verdict("low-precision", "could help", 0.24, "the model computes in float32 on a chip with bfloat16 units"),
            Verdict("compiled-model", "could help", 0.21, "two hundred small kernels a step"),
            Verdict("fused-optimizer", "could help", 0.03, "62 parameter tensors updated one after another"),
            Verdict("pinned-loader", "in use", 0.0, "pin_memory=True"),
            Verdict("attention-kernel", "cannot help", 0.0, "no attention in this model"),
            Verdict("blocking-copies", "cannot help", 0.009, "copying takes 0.9 % of a step"),
        ],
        facts=replace(FACTS, trials=1),
        ending="enough",
        caveats=["the first epoch only; later epochs may read from the page cache"],
        step_times=times,
        step_parts=step_parts(times, SHARES),
        evaluation_passes=2,
        evaluation_shares={"wait": 0.7, "forward": 0.3},
    )


def cpu_profile() -> ProfileReport:
    """No device, no workers, no roof."""
    times = steps(0.21, 52)
    shares = dict(zip(NAMES, (0.06, 0.0, 0.31, 0.52, 0.08, 0.0, 0.03), strict=True))
    return replace(
        profile(),
        steps=52,
        step_seconds=0.21,
        shares=shares,
        device_shares=None,
        cpu_busy=7.6,
        device_busy=None,
        device_idle=None,
        bound=Bound("compute", ["forward and backward are 83 % of a step, with 7.6 of 8 cores busy"]),
        syncs=[],
        feeding=replace(
            feeding(),
            workers=[Worker(-1, 52, 0.06)],
            queue_depth=None,
            queue_capacity=0,
            queue_empty=None,
            shm_bytes=0.0,
            shm_free_bytes=0.0,
            advice=["waiting is 6 % of a step: workers could win no more than that"],
        ),
        memory={"peak": 1.2 * GIB, "weights": 42.6 * MIB, "activations": 640 * MIB, "total": 31.3 * GIB},
        growth=[],
        batch_that_fits=None,
        layers=[replace(one, of_roof=None, bound="") for one in layers(9)],
        unused=[],
        remarks=[],
        inputs=[],
        peak_flops={},
        peak_bandwidth=0.0,
        device="cpu",
        ending="finished",
        evaluation_seconds=0.0,
        evaluation_passes=0,
        evaluation_shares={},
        caveats=[],
        step_times=times,
        step_parts=step_parts(times, shares),
    )


def minimal_profile() -> ProfileReport:
    """One step was seen, and nothing else."""
    return ProfileReport(
        script="x.py",
        arguments=[],
        steps=0,
        step_seconds=0.0,
        warmup_steps=0,
        shares={},
        device_shares=None,
        cpu_busy=0.0,
        device_busy=None,
        device_idle=None,
        bound=Bound("unknown", []),
        syncs=[],
        feeding=None,
        memory={},
        growth=[],
        batch_that_fits=None,
        layers=[],
        unused=[],
        remarks=[],
        inputs=[],
        peak_flops={},
        peak_bandwidth=0.0,
        look="",
        device="cpu",
        torch="",
        evaluation_seconds=0.0,
        verdicts=[],
        facts=Facts("", "", "", "", 0, "", ""),
        ending="finished",
    )


def awkward_profile() -> ProfileReport:
    """Every name is hostile or far too long, every figure that may be missing is, and lists are empty or enormous."""
    long = "encoder.blocks.11.attention.projection." * 8 + AWKWARD
    parts = step_parts(steps(0.01), SHARES)
    found = [
        *layers(300),
        replace(layers(1)[0], name=long, kind=AWKWARD, notes=[AWKWARD, long], forward_seconds=math.nan),
        replace(
            layers(1)[0], root=AWKWARD, name="", share=math.nan, flops=math.inf, intensity=math.nan, of_roof=math.nan
        ),
    ]
    return replace(
        profile(),
        script=AWKWARD,
        arguments=[AWKWARD, "two words", ""],
        device_shares={**SHARES, "copy": math.nan},
        cpu_busy=math.nan,
        device_busy=math.nan,
        bound=Bound("launch", [AWKWARD, f"{long} " * 3]),
        syncs=[
            Sync(AWKWARD, 1, 1, math.nan, AWKWARD),
            Sync(f"/home/{long}", 2, 700, 0.2, "item", 391),
            Sync("é.py", 3, 0, 0.0),
        ],
        feeding=replace(
            feeding(),
            batch_seconds=math.nan,
            batch_bytes=math.nan,
            queue_depth=math.nan,
            read_rate=math.nan,
            workers=[],
            makings=[Making(AWKWARD, math.nan, AWKWARD, 1), Making("训练", 0.1)],
            advice=[AWKWARD, f"{long} " * 2],
        ),
        memory={AWKWARD: 12.0, "peak": math.nan, "total": 0.0},
        growth=[Growth(math.nan, AWKWARD, 1, AWKWARD, f"two\nlines {AWKWARD}"), Growth(1.0, "", 0, "", "")],
        layers=found,
        unused=[Unused(long, AWKWARD, k) for k in range(80)],
        remarks=[AWKWARD, long],
        inputs=[Input(AWKWARD, AWKWARD, [[1] * 40] * 9, 500, AWKWARD, [math.nan] * 3, [math.inf], [AWKWARD, long])],
        peak_flops={AWKWARD: math.nan, "float32": 1e12},
        peak_bandwidth=1e11,
        look=AWKWARD,
        device=AWKWARD,
        ending=f"raised: {AWKWARD}\nValueError",
        evaluation_shares={AWKWARD: math.nan, "wait": math.nan},
        verdicts=[Verdict(AWKWARD, "could help", 1.0, AWKWARD), Verdict(AWKWARD, "cannot help", math.nan, AWKWARD)],
        caveats=[AWKWARD],
        step_times=[*steps(0.01), math.nan],
        step_parts=[*parts, [math.nan] * len(NAMES)],
    )
