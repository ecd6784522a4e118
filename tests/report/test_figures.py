from __future__ import annotations

import math

import pytest

from hotlap.report import figures
from hotlap.report.findings import Interval


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.01902, "19.0 ms"),
        (0.0043, "4.30 ms"),
        (0.629, "629 ms"),
        (0.9999, "1.00 s"),
        (0.0000281, "28.1 us"),
        (5e-10, "0.500 ns"),
        (0.0, "0 s"),
        (119.0, "119 s"),
        (119.7, "2 min 0 s"),
        (291.0, "4 min 51 s"),
        (3 * 86400 + 7 * 3600, "3 d 7 h"),
        (math.nan, "not known"),
        (None, "not known"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert figures.seconds(value) == text


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (0.01902, 0.004312, "19.0 -> 4.3 ms"),
        (0.629, 0.0374, "629 -> 37 ms"),
        (0.0073, 0.0009, "7.30 -> 0.90 ms"),
        (0.0205, 0.0199, "20.5 -> 19.9 ms"),
        (1.2, 0.045, "1.200 -> 0.045 s"),
        (0.0043, 0.019, "4.3 -> 19.0 ms"),
    ],
)
def test_two_times_share_a_unit(before: float, after: float, text: str) -> None:
    assert figures.before_after(before, after) == text


@pytest.mark.parametrize(
    ("value", "text"), [(4.4000001, "4.4x"), (1.04, "1.04x"), (0.97, "0.97x"), (15.23, "15.2x"), (123.4, "123x")]
)
def test_ratio(value: float, text: str) -> None:
    assert figures.ratio(value) == text


def test_an_interval_never_rounds_a_loss_up_to_no_loss() -> None:
    assert figures.interval(Interval(4.411, 4.331, 4.492)) == "4.4x, 4.3-4.5"
    assert figures.interval(Interval(4.41, 0.97, 9.8)) == "4.4x, 0.97-9.80"


@pytest.mark.parametrize(
    ("value", "text"), [(0.581, "58 %"), (0.042, "4.2 %"), (0.0, "0 %"), (0.0002, "< 0.1 %"), (1.0, "100 %")]
)
def test_percent(value: float, text: str) -> None:
    assert figures.percent(value) == text


def test_sizes_counts_and_settings() -> None:
    assert figures.bytes_(2.61 * 2**30) == "2.6 GiB"
    assert figures.bytes_(12) == "12 B"
    assert figures.bytes_before_after(2.61 * 2**30, 1.74 * 2**30) == "2.6 -> 1.7 GiB"
    assert figures.bytes_before_after(2.61 * 2**30, 900 * 2**20) == "2.6 GiB -> 900.0 MiB"
    assert figures.count(19800) == "19,800"
    assert (
        figures.setting({"dtype": "bfloat16", "fused": True, "workers": 8}) == "dtype bfloat16, fused true, workers 8"
    )
    assert figures.plain(5.5e-5) == "5.5e-05"
    assert figures.plain(0.9987) == "0.9987"
    assert figures.plain(math.inf) == "inf"


def test_the_most_a_technique_could_gain() -> None:
    assert figures.gain(0.5) == "2.0x"
    assert figures.gain(0.03) == "1.03x"
    assert figures.gain(1.0) == "no bound"


def test_a_column_of_times_has_one_unit() -> None:
    assert figures.like(0.00008, 0.019) == "0.1 ms"
    assert figures.like(-0.0109, 0.019, "+") == "-10.9 ms"
