from __future__ import annotations

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from hotlap.report import charts, charts_profile

from . import samples


@pytest.mark.parametrize("name", samples.TUNES)
@pytest.mark.filterwarnings("error")
def test_only_charts_with_data_are_drawn(name: str) -> None:
    expected = {
        "minimal": set(),
        "nothing kept": {"step", "trials"},
    }.get(name, {"step", "ablation", "losses", "trials"})
    assert set(charts.svgs(samples.TUNES[name]())) == expected


@pytest.mark.parametrize("name", samples.PROFILES)
@pytest.mark.filterwarnings("error")
def test_only_charts_of_a_profile_with_data_are_drawn(name: str) -> None:
    expected = {"minimal": set(), "cpu": {"steps", "parts"}}.get(name, {"steps", "parts", "roofline"})
    assert set(charts.svgs(samples.PROFILES[name]())) == expected


def test_the_roof_needs_measured_peaks_and_a_layer_under_it() -> None:
    report = samples.profile()
    assert "roofline" in charts.present(report)
    for without in (
        replace(report, peak_flops={}),
        replace(report, peak_bandwidth=0.0),
        replace(report, peak_bandwidth=math.nan),
        replace(report, layers=[]),
        replace(report, layers=[replace(one, flops=0.0) for one in report.layers]),
    ):
        assert "roofline" not in charts.present(without)


def test_the_roof_carries_its_figures_and_readable_ticks() -> None:
    drawn = charts.svgs(samples.profile())["roofline"]
    for said in ("bfloat16 712 TFLOP/s", "float32 51.0 TFLOP/s", ">1 T<", ">100<"):
        assert said in drawn
    assert "mathdefault" not in drawn


def test_thinned_parts_still_add_up() -> None:
    rows = [[float(k), 1.0, 0.0] for k in range(1000)]
    found = charts_profile._bins(rows)
    assert len(found) == charts_profile.MOST_BINS
    assert sum(row[0] for row in found) / len(found) == pytest.approx(499.5)
    assert all(row[1:] == [1.0, 0.0] for row in found)
    assert charts_profile._bins(rows[:3]) == rows[:3]
    assert charts_profile._bins([]) == []


def test_long_profiles_and_hundreds_of_layers_stay_small() -> None:
    report = samples.awkward_profile()
    report = replace(report, step_times=samples.steps(0.01, 50_000), step_parts=report.step_parts * 500)
    assert sum(map(len, charts.svgs(report).values())) < 200_000


def test_the_same_report_gives_the_same_bytes_in_another_process() -> None:
    program = (
        "import hashlib; from report import samples; from hotlap.report import charts;"
        "made = [samples.tune(), samples.profile()];"
        "found = [text for one in made for text in (*charts.svgs(one).values(), *charts.pdfs(one).values())];"
        "print(hashlib.sha256(repr(found).encode()).hexdigest())"
    )
    here = str(__file__).rsplit("/report/", 1)[0]
    runs = [subprocess.run([sys.executable, "-c", program], cwd=here, capture_output=True, text=True) for _ in range(2)]
    assert runs[0].stdout.strip(), runs[0].stderr
    assert runs[0].stdout == runs[1].stdout


def test_svg_is_well_formed_text_in_the_colour_of_the_page() -> None:
    found = charts.svgs(samples.awkward_tune()) | charts.svgs(samples.awkward_profile())
    for svg in found.values():
        ElementTree.fromstring(svg)
        assert "currentColor" in svg
        assert "<text" in svg
        assert "<style" not in svg
        assert "<script" not in svg
    ids = [name for svg in found.values() for name in re.findall(r' id="([^"]*)"', svg)]
    assert len(ids) == len(set(ids))


def test_pdf_files_carry_no_date() -> None:
    for content in charts.pdfs(samples.tune()).values():
        assert content.startswith(b"%PDF")
        assert b"CreationDate" not in content


def test_many_trials_and_long_curves_stay_small() -> None:
    report = samples.tune()
    report = replace(
        report, trials=report.trials * 40, losses_before=samples.losses(50_000), losses_after=samples.losses(50_000)
    )
    assert sum(map(len, charts.svgs(report).values())) < 400_000


def test_the_band_of_other_seeds_is_drawn_and_named_where_there_is_one() -> None:
    report = samples.tune()
    with_band = charts.svgs(report)["losses"]
    assert "script with other seeds" in with_band and "other seeds move the script" in with_band
    without = charts.svgs(replace(report, losses_spread=[]))["losses"]
    assert "seeds" not in without and len(without) < len(with_band)


def test_a_users_matplotlib_settings_change_nothing() -> None:
    import matplotlib

    plain = charts.svgs(samples.tune())
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True, "svg.fonttype": "path"}):
        assert charts.svgs(samples.tune()) == plain
        assert matplotlib.rcParams["font.size"] == 30


def test_drawing_leaves_pyplot_alone() -> None:
    program = "import sys; from report import samples; from hotlap.report import charts; charts.svgs(samples.tune());"
    program += "assert 'matplotlib.pyplot' not in sys.modules"
    here = str(__file__).rsplit("/report/", 1)[0]
    subprocess.run([sys.executable, "-c", program], cwd=here, check=True)


def test_a_caption_speaks_of_a_plan_only_where_there_is_one() -> None:
    assert "plan" in charts.present(samples.tune())["step"]
    assert "plan" not in charts.present(samples.nothing_kept())["step"]
