from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from hotlap.report import charts

from . import samples


@pytest.mark.parametrize("name", samples.TUNES)
@pytest.mark.filterwarnings("error")
def test_only_charts_with_data_are_drawn(name: str) -> None:
    expected = {
        "minimal": set(),
        "nothing kept": {"step", "trials"},
    }.get(name, {"step", "ablation", "losses", "trials"})
    assert set(charts.svgs(samples.TUNES[name]())) == expected


def test_the_same_report_gives_the_same_bytes_in_another_process() -> None:
    program = (
        "import hashlib; from report import samples; from hotlap.report import charts;"
        "found = [*charts.svgs(samples.tune()).values(), *charts.pdfs(samples.tune()).values()];"
        "print(hashlib.sha256(repr(found).encode()).hexdigest())"
    )
    here = str(__file__).rsplit("/report/", 1)[0]
    runs = [subprocess.run([sys.executable, "-c", program], cwd=here, capture_output=True, text=True) for _ in range(2)]
    assert runs[0].stdout.strip(), runs[0].stderr
    assert runs[0].stdout == runs[1].stdout


def test_svg_is_well_formed_text_in_the_colour_of_the_page() -> None:
    found = charts.svgs(samples.awkward_tune())
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
