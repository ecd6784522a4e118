"""Numbers as a reader sees them. Every renderer takes its figures from here, so that they agree to the last digit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hotlap.report.findings import Interval

UNKNOWN = "not known"

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_POWERS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_CLOCK = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def known(value: float | None) -> bool:
    """Whether there is a finite number to show."""
    return value is not None and math.isfinite(value)


def seconds(value: float | None) -> str:
    """Three digits and the unit that suits: 19.0 ms; from two minutes on as a clock would say it: 4 min 51 s."""
    if value is None or not known(value):
        return UNKNOWN
    if abs(value) >= 119.5:
        return _clock(value)
    scale, unit = _time_unit(value)
    return f"{_digits(value / scale, 3)} {unit}"


def before_after(before: float | None, after: float | None, arrow: str = "->") -> str:
    """Two times in one unit: 19.0 -> 4.3 ms."""
    if before is None or after is None or not (known(before) and known(after)):
        return f"{seconds(before)} {arrow} {seconds(after)}"
    scale, unit = _time_unit(max(abs(before), abs(after)))
    big, small = sorted((abs(before) / scale, abs(after) / scale), reverse=True)
    places = max(_places(big, 3), _places(small, 2) if small else 0)
    return f"{before / scale:,.{places}f} {arrow} {after / scale:,.{places}f} {unit}"


def like(value: float | None, reference: float, sign: str = "") -> str:
    """A time in the unit and to the digit of another, so that a column adds up: 10.9 ms, 0.8 ms beside 19.0 ms."""
    if value is None or not known(value) or not known(reference):
        return UNKNOWN
    scale, unit = _time_unit(reference)
    return f"{value / scale:{sign},.{_places(abs(reference) / scale, 3)}f} {unit}"


def bytes_before_after(before: float | None, after: float | None, arrow: str = "->") -> str:
    """Two sizes; the unit is said once where both share it."""
    first, second = bytes_(before), bytes_(after)
    if first.split()[-1] == second.split()[-1] and known(before) and known(after):
        first = first.rsplit(" ", 1)[0]
    return f"{first} {arrow} {second}"


def ratio(value: float | None) -> str:
    """4.4x; a gain below two keeps a second digit, since 1.04x is not 1.0x."""
    return UNKNOWN if value is None or not known(value) else f"{value:,.{_ratio_places(value)}f}x"


def interval(value: Interval | None, dash: str = "-") -> str:
    """4.4x, 4.3-4.5."""
    return UNKNOWN if value is None else f"{ratio(value.ratio)}, {bounds(value, dash)}"


def bounds(value: Interval, dash: str = "-") -> str:
    """4.3-4.5; both as exact as the lower one, so that 0.97 is never shown as 1.0."""
    if not (known(value.low) and known(value.high)):
        return f"bounds {UNKNOWN}"
    places = _ratio_places(value.low)
    return f"{value.low:,.{places}f}{dash}{value.high:,.{places}f}"


def percent(share: float | None) -> str:
    """A share of one: 61 %, 4.2 %."""
    if share is None or not known(share):
        return UNKNOWN
    value = 100 * share
    if value == 0 or abs(value) >= 9.95:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if abs(value) >= 0.05 else "< 0.1 %"


def bytes_(value: float | None) -> str:
    """2.2 GiB."""
    if value is None or not known(value):
        return UNKNOWN
    for scale, unit in _BYTES:
        if abs(value) >= scale:
            return f"{value / scale:,.1f} {unit}"
    return f"{value:.0f} B"


def si(value: float | None, unit: str) -> str:
    """In powers of a thousand, as work and rates are counted: 3.80 GFLOP, 712 TFLOP/s."""
    if value is None or not known(value):
        return UNKNOWN
    scale, power = next((one for one in _POWERS if abs(value) >= 0.9995 * one[0]), _POWERS[-1])
    return f"{_digits(value / scale, 3)} {power}{unit}"


def count(value: float | None) -> str:
    """19,800."""
    return UNKNOWN if value is None or not known(value) else f"{value:,.0f}"


def plain(value: float | None) -> str:
    """A figure without a unit: 1.002, 3.1e-04."""
    if value is None or not known(value):
        return UNKNOWN if value is None else str(value)
    if value == 0 or (value == int(value) and abs(value) < 1e6):
        return f"{value:,.0f}"
    return f"{value:.4g}" if 1e-2 <= abs(value) < 1e6 else f"{value:.1e}"


def setting(values: Mapping[str, Any]) -> str:
    """What a technique is set to: dtype bfloat16, workers 8. Written as in the plan, so true and not True."""
    return ", ".join(
        f"{key} {str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()
    )


def gain(most: float) -> str:
    """The speed-up when a share of the step vanishes altogether: a half gives 2.0x."""
    return "no bound" if most >= 0.995 else ratio(1 / (1 - max(most, 0.0)))


def line(text: str) -> str:
    """Text of others on one line."""
    return " ".join(text.split())


def sentence(text: str) -> str:
    """Text of others with a capital and a full stop."""
    text = line(text)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def some(names: Sequence[str], most: int) -> str:
    """As many names as there is room for."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def plural(number: int, word: str) -> str:
    """1 step, 2 steps."""
    return f"{count(number)} {word}" if number == 1 else f"{count(number)} {word}s"


def _time_unit(value: float) -> tuple[float, str]:
    for scale, unit in _TIMES:
        if abs(value) >= 0.9995 * scale:
            return scale, unit
    return (1.0, "s") if value == 0 else _TIMES[-1]


def _clock(value: float) -> str:
    left = round(value)
    said: list[str] = []
    for scale, unit in _CLOCK:
        whole, left = divmod(left, scale)
        if whole or said:
            said.append(f"{whole} {unit}")
    return " ".join(said[:2])


def _ratio_places(value: float) -> int:
    return 2 if value < 1.995 else 1 if value < 99.5 else 0


def _places(value: float, digits: int) -> int:
    if value == 0:
        return 0
    # 9.996 has its three digits as 10.0: the power is taken after rounding
    power = math.floor(math.log10(float(f"{abs(value):.{digits - 1}e}")))
    return max(0, digits - 1 - power)


def _digits(value: float, digits: int) -> str:
    return f"{value:,.{_places(value, digits)}f}"
