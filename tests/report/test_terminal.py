from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from hotlap.report import anatomy, terminal
from hotlap.report.live import LiveTrials

from . import samples

SCREENS = [(80, 24), (80, 30), (100, 30), (100, 40)]
PROFILE_SCREENS = [*SCREENS, (60, 24), (120, 34), (160, 50)]


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


@pytest.mark.parametrize(("width", "height"), PROFILE_SCREENS)
@pytest.mark.parametrize("name", samples.PROFILES)
def test_a_profile_fits_the_screen(name: str, width: int, height: int) -> None:
    lines = shown(terminal.profile(samples.PROFILES[name]()), width, height)
    assert len(lines) < height
    assert max(map(cell_len, lines)) <= width


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


def test_what_stands_under_the_headline_is_not_said_again() -> None:
    report = replace(samples.nothing_kept(), cut_short=True, caveats=["the budget ended: try more", "it was noisy"])
    lines = terminal.to_text(terminal.tune(report)).splitlines()
    assert lines[1] == "The budget ended: try more."
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("note")] == ["it was noisy"]


def test_a_trial_is_named_in_full() -> None:
    target = io.StringIO()
    LiveTrials(Console(file=target, width=80)).ended("without mixed-precision (dtype bfloat16)", "ablation", "442 us")
    assert target.getvalue() == "  without mixed-precision (dtype bfloat16) 442 us\n"


def test_a_profile_with_room_breaks_its_lines_instead_of_cutting_them() -> None:
    report = samples.PROFILES["cpu"]()
    hardware = "a processor with a name of many words, 128 cores, 512 GiB of memory"
    report = replace(report, facts=replace(report.facts, hardware=hardware))
    assert hardware in " ".join(" ".join(shown(terminal.profile(report), 80, 100)).split())


def test_a_file_has_room_for_everything() -> None:
    report = samples.PROFILES["rich"]()
    text = terminal.to_text(terminal.profile(report), width=80)
    assert len(text.splitlines()) > 40
    for subject in ("memory", "layers", "in use", "cannot help"):
        assert f"\n{subject} " in text


def test_what_could_be_gained_is_told_as_a_bound() -> None:
    lines = shown(terminal.profile(samples.PROFILES["cpu"]()), 80, 100)
    first = next(number for number, line in enumerate(lines) if line.startswith("could help"))
    assert lines[first + 1].startswith("(at most) ")


def test_what_is_not_proven_does_not_look_like_a_claim() -> None:
    lines = terminal.to_text(terminal.tune(samples.not_confirmed())).splitlines()
    assert "not confirmed" in lines[0]
    assert "--budget" in lines[1]


def test_a_failed_parity_figure_is_named() -> None:
    assert "nan" in terminal.to_text(terminal.tune(samples.awkward_tune()))


def test_a_profile_says_where_the_step_went() -> None:
    text = "\n".join(shown(terminal.profile(samples.profile()), 140, 60))
    for said in (
        "19.0 ms a step, bound by data",
        "391 steps, 8 of them warm-up",
        "93 % of draws found none ready",
        "11.0 of the 11.6 ms",
        "cores busy 3.4, device busy 39 %, no kernel 61 % of a step",
        "2 workers 98 % busy, 0.1 of 4 batches ready when asked, none in 93 % of draws",
        "about 6 workers would keep up",
        "peak 2.6 GiB of 139.8 GiB, 136.4 GiB left, a batch of about 6,400 fits",
        "activations 2.2 GiB",
        "mask: 41 shapes",
        "aux.weight (5,120)",
        "1 line in evaluation only",
        "no attention in this model",
    ):
        assert said in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for said in (
        "host waits main.py:104 item every step 565 us a step",
        "main.py:106 pageable copy 2 a step 28.1 us a step",
        "utils.py:43 nonzero 1 in 49 steps 1.79 us a step",
        "a batch decode 25.1 ms 61 % main.py:31",
        "layers layer1.0.conv0 Conv2d 1.10 ms 17 % 2.79 GFLOP 310 flop/B 62 % of roof compute 10 outputs: not a "
        "multiple of 8",
        "could help loader-workers 2.4x two workers feed a step that needs about six",
        "in use pinned-loader",
    ):
        assert said in lines
    assert "main.py:131" not in text
    assert lines[-1] == "hotlap tune main.py --lr 0.1"


def test_host_and_device_stand_side_by_side() -> None:
    lines = [" ".join(line.split()) for line in shown(terminal.profile(samples.profile()), 80, 24, "ascii")]
    assert "host device" in lines
    assert "backward ##### 4.1 ms 21 % ###### 4.5 ms 24 %" in lines
    assert "wait ############## 11.1 ms 58 %" in lines
    assert "host device" not in [
        " ".join(line.split()) for line in shown(terminal.profile(samples.cpu_profile()), 80, 24)
    ]


def test_what_matters_survives_on_the_smallest_screen() -> None:
    lines = shown(terminal.profile(samples.profile()), 80, 24)
    assert lines[0].startswith("19.0 ms a step, bound by data")
    assert lines[1].startswith("58 % of a step is spent waiting for the next batch")
    text = "\n".join(lines)
    for said in (
        "11.1 ms  58 %",
        "main.py:104  item  every step  565 us a step",
        "decode 61 % main.py:31",
        "about 6 workers would keep up",
        "peak 2.6 GiB",
        "1.6 MiB a step at main.py:112: losses",
        "layer1.0.conv0",
        "mask: 41 shapes",
        "loader-workers 2.4x, low-precision 1.32x",
    ):
        assert said in text
    assert lines[-1].strip() == "hotlap tune main.py --lr 0.1"


def test_growing_memory_and_odd_inputs_are_red() -> None:
    text = terminal.to_text(terminal.profile(samples.profile()), color=True)
    assert "\x1b[31m1.6 MiB a step at main.py:112" in text
    assert "\x1b[31mmask: 41 shapes" in text


def test_figures_keep_their_columns_however_long_a_name_is() -> None:
    report = samples.profile()
    long = "encoder.blocks.11." * 12 + "projection"
    report = replace(report, layers=[replace(report.layers[0], name=long), *report.layers[1:]])
    line = next(line for line in shown(terminal.profile(report), 80, 40) if line.startswith("layers"))
    assert "projection" in line
    assert "1.10 ms  17 %" in line


def test_without_a_closer_look_the_reason_is_said() -> None:
    report = replace(samples.profile(), layers=[], look="no closer look: the script ended before it")
    assert "no closer look: the script ended before it" in terminal.to_text(terminal.profile(report))


def test_a_narrow_screen_cuts_no_figure_and_no_advice() -> None:
    report = replace(samples.cpu_profile(), layers=[], look="no closer look: " + "so it is " * 6)
    for width in (44, 60, 77, 80):
        lines = terminal.to_text(terminal.profile(report), width).split("\n")
        bars = [line for line in lines if line.split(" ")[0] in report.shares]
        assert bars and not any("…" in line for line in bars), width
        if width < 60:
            continue  # more than figures is not promised there
        assert anatomy.timed(report) in "\n".join(lines[:2])
        assert "…" not in "".join(lines[[line[:6] for line in lines].index("layers") :][:2])


def test_bars_need_no_unicode() -> None:
    lines = shown(terminal.profile(samples.profile()), 80, 40, encoding="ascii")
    assert any("####" in line for line in lines)


def test_color_only_where_asked() -> None:
    assert "\x1b[" not in terminal.to_text(terminal.tune(samples.tune()))
    assert "\x1b[" in terminal.to_text(terminal.tune(samples.tune()), color=True)
