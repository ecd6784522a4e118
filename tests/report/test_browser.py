"""The pages as a browser lays them out, on a desk and on a phone."""

from __future__ import annotations

import functools
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


@functools.cache
def rendered(name: str) -> str:
    """Drawing the charts takes longer than looking at them."""
    render, make = PAGES[name]
    return render(make())  # type: ignore[operator]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("name", PAGES)
def test_the_page_lies_well(name: str, width: int, scheme: str, browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(rendered(name), encoding="utf-8")
    page, asked, errors = opened(browser, path, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert overlaps(page, "header, section, footer") == []
    for part in page.query_selector_all("section, .pair"):
        assert crossing(boxes(part, ":scope > *")) == []
    inside = boxes(page.query_selector("body"), "main *:not(.scroll *):not(svg *)")
    assert inside and all(box["x"] + box["width"] <= width for box in inside)
    check_charts(page, width)
    assert page.evaluate(CONTRAST) > 4.5
    assert asked == [path.as_uri()]
    assert errors == []
    page.close()


@pytest.mark.parametrize("width", [1280, 375])
def test_a_wide_table_scrolls_in_its_own_box(width: int, browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(rendered("profile, awkward"), encoding="utf-8")
    page, _, _ = opened(browser, path, width, "light")
    box = page.query_selector("#layers .scroll:has(table.wide)")
    inner, outer = page.evaluate("box => [box.scrollWidth, box.clientWidth]", box)
    assert inner > outer
    assert outer <= width
    page.close()


def test_a_profile_has_its_charts_and_bars(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(rendered("profile, rich"), encoding="utf-8")
    page, _, _ = opened(browser, path, 375, "dark")
    assert len(page.query_selector_all("svg.chart")) == 3
    bars = page.query_selector_all(".stack .bar")
    found = [bar.bounding_box() for bar in bars]
    whole = page.query_selector(".stack").bounding_box()
    assert sum(box["width"] for box in found) == pytest.approx(whole["width"], abs=10)
    assert len({page.evaluate("bar => getComputedStyle(bar).backgroundColor", bar) for bar in bars}) == len(bars)
    page.close()


def test_the_checks_see_what_is_wrong(browser: Any, tmp_path: Path) -> None:
    """Planted mistakes: too wide, on top of one another, an empty chart, an error."""
    path = tmp_path / "bad.html"
    path.write_text(
        "<body style='margin:0'><section style='height:90px;width:900px'>a</section>"
        "<section style='margin-top:-40px'>b</section><svg class='chart' width='300' height='99'></svg>"
        "<script>console.error('no')</script>"
    )
    page, _, errors = opened(browser, path, 375, "light")
    assert page.evaluate("document.documentElement.scrollWidth") > 375
    assert overlaps(page, "section") != []
    assert max(box["x"] + box["width"] for box in boxes(page.query_selector("body"), "section")) > 375
    with pytest.raises(AssertionError):
        check_charts(page, 375)
    assert errors == ["no"]
    page.close()


CONTRAST = """(() => {
    const light = text => {
        const parts = text.match(/[0-9.]+/g).slice(0, 3).map(one => one / 255);
        const linear = parts.map(one => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    };
    const paper = light(getComputedStyle(document.body).backgroundColor);
    const texts = [...document.querySelectorAll("p, li, td, th, h1, h2, dd, dt")];
    const inks = texts.map(one => light(getComputedStyle(one).color));
    return Math.min(...inks.map(ink => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)));
})()"""


def opened(browser: Any, path: Path, width: int, scheme: str) -> tuple[Any, list[str], list[str]]:
    """A page, and what it asked for and complained about."""
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    return page, asked, errors


def boxes(part: Any, selector: str) -> list[dict[str, float]]:
    """Where everything lies that is shown at all. Asked of the browser at once: a page has hundreds of elements."""
    return part.evaluate(BOXES, selector)  # type: ignore[no-any-return]


BOXES = """(part, selector) => [...part.querySelectorAll(selector)]
    .filter(one => one.getClientRects().length)
    .map(one => { const {x, y, width, height} = one.getBoundingClientRect(); return {x, y, width, height}; })"""


COUNT = "(part, selector) => part.querySelectorAll(selector).length"


def overlaps(page: Any, selector: str) -> list[Any]:
    found = boxes(page.query_selector("body"), selector)
    assert found
    return [(a, b) for a, b in itertools.pairwise(found) if b["y"] < a["y"] + a["height"] - 1]


def crossing(found: list[dict[str, float]]) -> list[Any]:
    """Boxes that cover one another by more than a pixel."""

    def shared(one: dict[str, float], other: dict[str, float], start: str, size: str) -> float:
        return min(one[start] + one[size], other[start] + other[size]) - max(one[start], other[start])

    pairs = itertools.combinations(found, 2)
    return [(a, b) for a, b in pairs if shared(a, b, "x", "width") > 1 and shared(a, b, "y", "height") > 1]


def check_charts(page: Any, width: int) -> None:
    """Every chart has a size, lies inside the page, and has something drawn between its axes."""
    for chart in page.query_selector_all("svg.chart"):
        box = chart.bounding_box()
        assert box["width"] > 250
        assert box["height"] > 50
        assert box["x"] + box["width"] <= width
        assert chart.evaluate(COUNT, "path, use, rect") > 5
        assert chart.evaluate(COUNT, "text") > 2


def test_charts_take_the_colour_of_a_dark_page(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(rendered("tune, rich"), encoding="utf-8")
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(path.as_uri())
    fill = "getComputedStyle(document.querySelector('svg.chart text')).fill"
    assert page.evaluate(fill) == page.evaluate("getComputedStyle(document.body).color")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    context.close()
