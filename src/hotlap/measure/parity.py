"""Is it the same training? The judgement over what a witness took down: see `witness` for how it is come by."""

from __future__ import annotations

import math
import statistics
from typing import Any

from hotlap.measure import census, chance, prints
from hotlap.measure.draws import DRAWS
from hotlap.report.findings import ParityCheck
from hotlap.technique import Parity

STEPS = 24  # how long a witness compares: past the last forced step
SEED = 1  # what randomness is lined up from, on both sides
FORCED = "forced steps compared"
_IN_COMMON = 0.95  # label smoothing on the same draws showed more; with some draws the same 0.7 was seen
_SPREADS = 1e-5  # of the loss: less is not chance, but rounding
_LOSS = 1e-3  # relative: between what bf16 shows (8e-4 on a batch of 16) and the smallest fault (1.7e-3)
_SCALE, _AWAY = 0.02, 0.005  # 1 - projection, 1 - cosine of the gradient: bf16 shows less where a network is steady
_LENGTH = 0.04  # of gradients, weight by weight: bf16 showed 0.02 on a deep network, label smoothing 0.07
_SHAKEN = 3.0  # times as far as the script with its weights shaken: bf16 showed up to 1.5 on a ResNet-50
_SHAKEN_LOSS = 6.0  # likewise, over few steps of either sign: bf16 showed up to 2.3 on a deep network with eight seeds
_SPREAD_RATE, _MEAN_RATE, _SCALE_RATE = 0.009, 0.003, 0.003  # of rejecting other draws that are right: below 2 %
_MOVED_BY_ROUNDING = {
    "loss difference, median",
    "gradient scale, median",
    "gradient cosine, median",
    "free-running gradient norm ratio",
    "free-running update norm ratio",
}


def judge(
    level: Parity,
    reference: dict[str, Any],
    repeat: dict[str, Any],
    candidate: dict[str, Any],
    batch_tolerance: float = 0.0,
    shaken: dict[str, Any] | None = None,
) -> list[ParityCheck]:
    """Hold a candidate's evidence against the reference's. `repeat` is the reference run a second time: it says how
    far the script is from itself. `shaken`, where there is one, says how far rounding may move it. Batches may differ
    only where a technique makes them another way, and says by how much of their spread."""
    figures = candidate["figures"]
    forced = len({figure["step"] for figure in figures if "gradient" in figure})
    checks = [
        _check_batches(reference, candidate, batch_tolerance),
        _check_epoch_ends(reference, candidate),
        _check_settings(reference, candidate),
        ParityCheck(FORCED, float(forced), ">= 2", forced >= 2),
    ]
    if level is Parity.IDENTICAL:
        limits = {name: _largest(repeat["figures"], name) for name in ("loss", "gradient", "update")}
        for name, words in (("loss", "loss"), ("gradient", "gradient"), ("update", "optimizer update")):
            seen, limit = _largest(figures, name), 3 * limits[name]
            checks.append(ParityCheck(f"{words} difference, largest", seen, f"<= {limit:.0e}", seen <= limit))
        return checks + _check_norms(reference, candidate, 0.02, 0.05)
    update = _largest(figures, "update")
    checks.append(ParityCheck("optimizer update difference, largest", update, "<= 1e-04", update <= 1e-4))
    # Adaptive optimizers amplify rounding into their updates, and the probe has already judged those: wider there.
    plain = _check_steps(figures) + _check_norms(reference, candidate, 0.02, 0.05)
    if not all(check.passed for check in plain) and (over_draws := _check_draws(reference, candidate)):
        return checks + over_draws + _check_norms(reference, candidate, 0.1, 0.1, STEPS)
    if shaken is not None and not all(check.passed for check in plain):
        return checks + _check_shaken(reference, candidate, shaken)
    return checks + plain


def may_be_rounding(checks: list[ParityCheck]) -> bool:
    """Whether what failed is what rounding moves far in a network that is steady nowhere, such as a deep one at the
    beginning of its training."""
    return all(check.passed or check.what in _MOVED_BY_ROUNDING for check in checks)


def _check_steps(figures: list[dict[str, float]]) -> list[ParityCheck]:
    """One draw against the same draw."""
    loss, scale, cosine = _median(figures, "loss"), _median(figures, "projection", 1.0), _median(figures, "cosine", 1.0)
    return [
        _check_loss(loss, _LOSS),
        _check_within("gradient scale, median", scale, _SCALE),
        _check_cosine(cosine, _AWAY),
    ]


def _check_shaken(reference: dict[str, Any], candidate: dict[str, Any], shaken: dict[str, Any]) -> list[ParityCheck]:
    """Limits as wide as the script's own gradients are unsteady. Their lengths stay, weight by weight, whatever becomes
    of their directions: a wrong scale still shows. A loss that is next to nothing may be far off once."""
    ours = candidate["figures"]
    theirs = [figure for figure in shaken["figures"] if figure.get("gradient", 0.0) > 0]  # a first step may not move
    away = _SHAKEN * (1 - _median(theirs, "cosine", 1.0))
    loss = _SHAKEN_LOSS * _mean_but_one(theirs, "loss", 0.0)
    ratios = [_norm_ratios(reference["norms"], shaken["norms"], column, 10) for column in (1, 2)]
    reaches = [_SHAKEN * statistics.fmean([abs(ratio - 1) for ratio in each] or [0.0]) for each in ratios]
    return [
        _check_loss(_mean_but_one(ours, "loss"), max(_LOSS, loss), "mean without the largest"),
        _check_within("gradient scale, median", _median(ours, "projection", 1.0), _SCALE + away),
        _check_cosine(_median(ours, "cosine", 1.0), max(_AWAY, away)),
        _check_within("gradient length, median over weights and steps", _median(ours, "length", 1.0), _LENGTH),
        *_check_norms(reference, candidate, max(0.02, reaches[0]), max(0.05, reaches[1])),
    ]


def _check_loss(figure: float, limit: float, over: str = "median") -> ParityCheck:
    return ParityCheck(f"loss difference, {over}", figure, f"<= {limit:.0e}", figure <= limit)


def _check_cosine(figure: float, away: float) -> ParityCheck:
    return ParityCheck("gradient cosine, median", figure, f">= {1 - away:.3g}", figure >= 1 - away)


def _check_within(what: str, figure: float, reach: float) -> ParityCheck:
    return ParityCheck(what, figure, f"{1 - reach:.2f} .. {1 + reach:.2f}", abs(figure - 1) <= reach)


def _check_draws(reference: dict[str, Any], candidate: dict[str, Any]) -> list[ParityCheck]:
    """Draws of both at one state, as two samples. Nothing where the script draws nothing, and nothing where its draws
    and the candidate's rise and fall together: then these are the same draws, and what differs is something else."""
    pairs = [pair for pair in zip(_columns(reference), _columns(candidate), strict=False) if _spreads(pair[0])]
    if not pairs or (common := max(_correlation(*pair) for pair in pairs)) >= _IN_COMMON:
        return []
    over = f"over {DRAWS} draws at one state"
    return [
        ParityCheck("other random draws, correlation with the script's", common, f"< {_IN_COMMON}", True),
        _worst([_check_spread(*pair, over, _SPREAD_RATE / len(pairs)) for pair in pairs]),
        _worst([_check_mean(*pair, over, _MEAN_RATE / len(pairs)) for pair in pairs]),
        _check_scale(reference["along"], candidate["along"], over),
    ]


def _check_spread(ours: list[float], theirs: list[float], over: str, rate: float) -> ParityCheck:
    figure, reach = chance.spread(ours, theirs, rate)
    reach = max(reach, math.log(1.25))
    limit = f"{math.exp(-reach):.2f} .. {math.exp(reach):.2f}"
    return ParityCheck(f"spread of the loss {over}, ratio", math.exp(figure), limit, abs(figure) <= reach)


def _check_mean(ours: list[float], theirs: list[float], over: str, rate: float) -> ParityCheck:
    """In spreads of the script's own, and never narrower than single steps are held to."""
    shift, reach = chance.mean(ours, theirs, rate)
    unit = statistics.stdev(ours)
    shift, reach = shift / unit, max(reach, _LOSS * abs(statistics.fmean(ours))) / unit
    return ParityCheck(
        f"mean loss {over}, shift in spreads", shift, f"{-reach:.2f} .. {reach:.2f}", abs(shift) <= reach
    )


def _check_scale(ours: list[float], theirs: list[float], over: str) -> ParityCheck:
    """How long the candidate's gradients are along the script's."""
    shift, reach = chance.mean(ours, theirs, _SCALE_RATE)
    usual = abs(statistics.fmean(ours)) or 1e-30
    shift, reach = shift / usual, max(reach / usual, 0.02)
    limit = f"{1 - reach:.2f} .. {1 + reach:.2f}"
    return ParityCheck(f"gradient scale {over}", 1 + shift, limit, abs(shift) <= reach)


def _worst(checks: list[ParityCheck]) -> ParityCheck:
    """Of one for each backward of a step: the first that failed, if one did."""
    return min(checks, key=lambda check: check.passed)


def _columns(evidence: dict[str, Any]) -> list[list[float]]:
    """For each backward of a step its losses over all draws; none unless all draws were made, and finite."""
    draws = evidence["draws"]
    is_whole = len(draws) == DRAWS and all(math.isfinite(loss) for losses in draws for loss in losses)
    return [list(column) for column in zip(*draws, strict=False)] if is_whole else []


def _spreads(losses: list[float]) -> bool:
    return statistics.stdev(losses) > _SPREADS * abs(statistics.fmean(losses))


def _correlation(ours: list[float], theirs: list[float]) -> float:
    return statistics.correlation(ours, theirs) if len(set(theirs)) > 1 else 0.0


def _check_norms(
    reference: dict[str, Any], candidate: dict[str, Any], gradient: float, update: float, last: int = 10
) -> list[ParityCheck]:
    checks = []
    for column, words, reach in ((1, "gradient", gradient), (2, "update", update)):
        ratio = statistics.median(_norm_ratios(reference["norms"], candidate["norms"], column, last) or [1.0])
        checks.append(_check_within(f"free-running {words} norm ratio", ratio, reach))
    return checks


def _check_epoch_ends(reference: dict[str, Any], candidate: dict[str, Any]) -> ParityCheck:
    """After as many batches on both sides. Few were compared where epochs are long: the number says how far it saw."""
    ours, theirs = reference["epoch_ends"], candidate["epoch_ends"]
    both = min(len(ours), len(theirs))
    different = sum(a != b for a, b in zip(ours, theirs, strict=False)) + (abs(len(ours) - len(theirs)) > 1)
    return ParityCheck(f"epoch ends that differ, of {both}", float(different), "= 0", different == 0)


def _check_settings(reference: dict[str, Any], candidate: dict[str, Any]) -> ParityCheck:
    compared, different = census.differences(reference["census"], candidate["census"])
    what = f"settings that differ ({different[0]})" if different else "settings that differ"
    return ParityCheck(f"{what}, of {compared}", float(len(different)), "= 0", not different)


def _check_batches(reference: dict[str, Any], candidate: dict[str, Any], tolerance: float) -> ParityCheck:
    """Every batch the same, in order and number, as far as both went."""
    ours, theirs = reference["batches"], candidate["batches"]
    both = list(zip(ours, theirs, reference["sketches"], candidate["sketches"], strict=False))
    different = sum(
        a != b and not (tolerance and prints.distance(drawn, redrawn) <= tolerance) for a, b, drawn, redrawn in both
    ) + (abs(len(ours) - len(theirs)) > 1)
    words = (
        f"batches that differ by more than {100 * tolerance:g} % of their spread"
        if tolerance
        else "batches that differ"
    )
    return ParityCheck(f"{words}, of {len(both)}", float(different), "= 0", different == 0)


def _largest(figures: list[dict[str, float]], name: str) -> float:
    return max((f[name] for f in figures if name in f), default=float("inf"))


def _mean_but_one(figures: list[dict[str, float]], name: str, missing: float = float("inf")) -> float:
    """Without the largest, where there are some to tell that it stands alone."""
    values = sorted(f[name] for f in figures if name in f)
    return statistics.fmean(values[:-1] if len(values) > 3 else values) if values else missing


def _median(figures: list[dict[str, float]], name: str, missing: float = float("inf")) -> float:
    values = [f[name] for f in figures if name in f]
    return statistics.median(values) if values else missing


def _norm_ratios(ours: list[list[float]], theirs: list[list[float]], column: int, last: int) -> list[float]:
    pairs = [(a[column], b[column]) for a, b in zip(ours, theirs, strict=False) if 2 <= a[0] <= last]
    return [b / a for a, b in pairs if a > 0]
