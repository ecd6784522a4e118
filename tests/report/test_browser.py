"""The pages as a browser lays them out, on a desk and on a phone."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotlap.report import html

from . import samples

pytestmark = pytest.mark.browser

PAGES = {f"tune, {name}": (html.tune, make) for name, make in samples.TUNES.items()} | {
    f"profile, {name}": (html.profile, make) for name, make in samples.PROFILES.items()
}
FLAGS = ["--no-sandbox", "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=chromium, args=FLAGS)
        yield opened
        opened.close()


@pytest.mark.parametrize("name", PAGES)
def test_the_page_lies_well_at_both_widths(name: str, browser: Any, tmp_path: Path) -> None:
    render, make = PAGES[name]
    path = tmp_path / "report.html"
    path.write_text(render(make()), encoding="utf-8")  # type: ignore[operator]
    for width in (1280, 390):
        page = browser.new_page(viewport={"width": width, "height": 844})
        asked: list[str] = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        boxes = [one.bounding_box() for one in page.query_selector_all("header, section, footer")]
        assert boxes
        for above, below in itertools.pairwise(boxes):
            assert below["y"] >= above["y"] + above["height"] - 1
        for chart in page.query_selector_all("svg.chart"):
            box = chart.bounding_box()
            assert box["width"] > 250
            assert box["height"] > 50
            assert box["x"] + box["width"] <= width
        assert asked == [path.as_uri()]
        page.close()


def test_charts_take_the_colour_of_a_dark_page(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(html.tune(samples.tune()), encoding="utf-8")
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(path.as_uri())
    fill = "getComputedStyle(document.querySelector('svg.chart text')).fill"
    assert page.evaluate(fill) == page.evaluate("getComputedStyle(document.body).color")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    context.close()
