from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from hotlap.report import terminal

from . import samples

SCREENS = [(80, 24), (80, 30), (100, 30), (100, 40)]


def shown(renderable: Any, width: int, height: int, encoding: str = "utf-8") -> list[str]:
    target = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    console = Console(file=target, width=width, height=height, force_terminal=True, color_system=None)
    console.print(renderable)
    target.flush()
    return target.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "height"), SCREENS)
@pytest.mark.parametrize("name", samples.TUNES)
def test_a_tuning_fits_the_screen(name: str, width: int, height: int) -> None:
    lines = shown(terminal.tune(samples.TUNES[name]()), width, height)
    # names of forty letters in every place are not asked to fit the smallest screen
    assert len(lines) < height or (name == "awkward" and height < 40)
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "height"), SCREENS)
@pytest.mark.parametrize("name", samples.PROFILES)
def test_a_profile_fits_the_screen(name: str, width: int, height: int) -> None:
    lines = shown(terminal.profile(samples.PROFILES[name]()), width, height)
    assert len(lines) < height or (name == "awkward" and height < 40)
    assert max(map(len, lines)) <= width


def test_the_claim_comes_first_and_the_commands_last() -> None:
    lines = terminal.to_text(terminal.tune(samples.tune())).splitlines()
    assert lines[0] == "19.0 -> 4.3 ms a step (4.4x, 4.3-4.5)"
    assert lines[-2:] == ["  hotlap run main.py --lr 0.1", "  hotlap fix --plan hotlap.toml main.py --diff"]
    text = "\n".join(lines)
    for said in ("A against A", "1.00x, 0.99-1.01", "1.03x", "6 of 6 figures", "paid back after 19,800 steps"):
        assert said in text


def test_nothing_helps_is_said_first_and_with_its_reason() -> None:
    lines = terminal.to_text(terminal.tune(samples.nothing_kept())).splitlines()
    assert lines[0] == "nothing helps here: 19.0 ms a step stays"
    assert "none of them both faster and the same training" in lines[1]
    assert not any("hotlap run" in line for line in lines)


def test_what_is_not_proven_does_not_look_like_a_claim() -> None:
    lines = terminal.to_text(terminal.tune(samples.not_confirmed())).splitlines()
    assert "not confirmed" in lines[0]
    assert "--budget" in lines[1]


def test_a_failed_parity_figure_is_named() -> None:
    assert "nan" in terminal.to_text(terminal.tune(samples.awkward_tune()))


def test_a_profile_says_where_the_step_went() -> None:
    text = terminal.to_text(terminal.profile(samples.profile()))
    for said in (
        "19.0 ms a step",
        "58 %",
        "11.1 ms",
        "main.py:104",
        "device busy 39 %",
        "2.4x",
        "in use  pinned-loader",
    ):
        assert said in text
    assert text.splitlines()[-1] == "  hotlap tune main.py"


def test_bars_need_no_unicode() -> None:
    lines = shown(terminal.profile(samples.profile()), 80, 40, encoding="ascii")
    assert any("####" in line for line in lines)


def test_color_only_where_asked() -> None:
    assert "\x1b[" not in terminal.to_text(terminal.tune(samples.tune()))
    assert "\x1b[" in terminal.to_text(terminal.tune(samples.tune()), color=True)
