"""Is it the same training? The judgement over what a witness took down: see `witness` for how it is come by."""

from __future__ import annotations

import statistics
from typing import Any

from hotlap.report.findings import ParityCheck
from hotlap.technique import Parity

STEPS = 24  # how long a witness watches: past the last forced step
SEED = 1  # what randomness is lined up from, on both sides
FORCED = "forced steps compared"


def judge(
    level: Parity, reference: dict[str, Any], repeat: dict[str, Any], candidate: dict[str, Any]
) -> list[ParityCheck]:
    """Hold a candidate's evidence against the reference's. `repeat` is the reference run a second time: it says how
    far the script is from itself."""
    checks = [_check_batches(reference, candidate)]
    figures = candidate["figures"]
    forced = len({figure["step"] for figure in figures if "gradient" in figure})
    checks.append(ParityCheck(FORCED, float(forced), ">= 2", forced >= 2))
    if level is Parity.IDENTICAL:
        limits = {name: _largest(repeat["figures"], name) for name in ("loss", "gradient", "update")}
        for name, words in (("loss", "loss"), ("gradient", "gradient"), ("update", "optimizer update")):
            seen, limit = _largest(figures, name), 3 * limits[name]
            checks.append(ParityCheck(f"{words} difference, largest", seen, f"<= {limit:.0e}", seen <= limit))
    else:  # limits between what bf16 shows (loss 8e-4 on a batch of 16) and the smallest fault (1.7e-3)
        loss, scale = _median(figures, "loss"), _median(figures, "projection", 1.0)
        cosine, update = _median(figures, "cosine", 1.0), _largest(figures, "update")
        checks += [
            ParityCheck("loss difference, median", loss, "<= 1e-03", loss <= 1e-3),
            ParityCheck("gradient scale, median", scale, "0.98 .. 1.02", 0.98 <= scale <= 1.02),
            ParityCheck("gradient cosine, median", cosine, ">= 0.995", cosine >= 0.995),
            ParityCheck("optimizer update difference, largest", update, "<= 1e-04", update <= 1e-4),
        ]
    # Adaptive optimizers amplify rounding into their updates, and the probe has already judged those: wider there.
    for column, words, reach in ((1, "gradient", 0.02), (2, "update", 0.05)):
        ratio = _norm_ratio(reference["norms"], candidate["norms"], column)
        bounds = f"{1 - reach:.2f} .. {1 + reach:.2f}"
        checks.append(ParityCheck(f"free-running {words} norm ratio", ratio, bounds, abs(ratio - 1) <= reach))
    return checks


def _check_batches(reference: dict[str, Any], candidate: dict[str, Any]) -> ParityCheck:
    """Every batch the same, in order and number, as far as both went."""
    ours, theirs = reference["batches"], candidate["batches"]
    both = min(len(ours), len(theirs))
    different = sum(a != b for a, b in zip(ours, theirs, strict=False)) + (abs(len(ours) - len(theirs)) > 1)
    return ParityCheck(f"batches that differ, of {both}", float(different), "= 0", different == 0)


def _largest(figures: list[dict[str, float]], name: str) -> float:
    return max((f[name] for f in figures if name in f), default=float("inf"))


def _median(figures: list[dict[str, float]], name: str, missing: float = float("inf")) -> float:
    values = [f[name] for f in figures if name in f]
    return statistics.median(values) if values else missing


def _norm_ratio(ours: list[list[float]], theirs: list[list[float]], column: int) -> float:
    pairs = [(a[column], b[column]) for a, b in zip(ours, theirs, strict=False) if 2 <= a[0] <= 10]
    ratios = [b / a for a, b in pairs if a > 0]
    return statistics.median(ratios) if ratios else 1.0
