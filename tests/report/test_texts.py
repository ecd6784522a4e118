"""HTML, Markdown and LaTeX: what they say, and that nothing anyone named can break out of them."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hotlap.report import figures, folder, html, latex, markdown, terminal
from hotlap.report.findings import EpochTimes, Interval, NotTried

from . import samples

PARTS = [
    "Data",
    "Implementation details",
    "Metrics",
    "Comparison",
    "Analysis",
    "Alternative designs",
    "Ablation",
    "Figures",
]
VOID = {"meta", "br", "img", "link", "input", "hr", "path", "use", "rect"}


class Reader(HTMLParser):
    """Collects text, tags and attributes; refuses tags that do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag
        self.text += " " if tag in ("td", "th") else ""

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


@pytest.mark.parametrize("name", samples.TUNES)
def test_a_tune_page_is_well_formed_and_alone(name: str) -> None:
    page = html.tune(samples.TUNES[name]())
    reader = read(page)
    assert "script" not in reader.tags
    assert reader.links == []
    assert not re.search(r"url\((?!#)|@import|xlink:href=\"(?!#)", page)


@pytest.mark.parametrize("name", samples.PROFILES)
def test_a_profile_page_is_well_formed_and_alone(name: str) -> None:
    page = html.profile(samples.PROFILES[name]())
    reader = read(page)
    assert "script" not in reader.tags
    assert reader.links == []
    assert not re.search(r"url\((?!#)|@import|xlink:href=\"(?!#)", page)
    # the names of two XML vocabularies are the only addresses
    assert set(re.findall(r"\w+://[^\"\s<]+", page)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_names_stay_text_in_a_page() -> None:
    assert samples.AWKWARD in read(html.tune(samples.awkward_tune())).text
    assert samples.AWKWARD in read(html.profile(samples.awkward_profile())).text


def test_a_page_says_what_was_found() -> None:
    said = " ".join(read(html.tune(samples.tune())).text.split())
    for words in ("4.4x as fast", "19.0 → 4.3 ms", "loader-workers", "gradient cosine 0.981", "19,800 steps", "1.03x"):
        assert words in said
    assert "Nothing helps here" in read(html.tune(samples.nothing_kept())).text
    assert "Not confirmed" in read(html.tune(samples.not_confirmed())).text


def test_a_profile_page_says_what_was_found() -> None:
    page = html.profile(samples.profile())
    said = " ".join(read(page).text.split())
    for words in (
        "19.0 ms a step, bound by data",
        "No kernel ran for 61 % of a step",
        "main.py:104 565 us every step item 221 ms",
        "main.py:131 \N{EN DASH} evaluation only item",
        "decode 25.1 ms 61 % main.py:31",
        "About 6 workers would keep up; the script has 2 workers.",
        "Growing: 1.6 MiB a step at main.py:112",
        "a batch of about 6,400 fits",
        "activations 2.2 GiB 84 %",
        "bfloat16 712 TFLOP/s",
        "1 layer1.0.conv0 Conv2d 17 % 367 us 733 us 2.79 GFLOP 310 62 % compute 10 outputs: not a multiple of 8",
        "41 shapes: the model is compiled anew for each",
        "aux.weight parameter 5,120",
        "hotlap tune main.py --lr 0.1",
        "1.61 s in 2 passes",
    ):
        assert words in said
    sections = re.findall(r'<section id="(\w+)"', page)
    assert sections == ["step", "bound", "verdicts", "syncs", "data", "memory", "layers", "inputs", "unused", "facts"]


def test_a_profile_page_has_no_section_without_content() -> None:
    assert re.findall(r'<section id="(\w+)"', html.profile(samples.minimal_profile())) == ["facts"]
    assert "of roof" not in read(html.profile(samples.cpu_profile())).text


def test_hundreds_of_layers_are_cut_and_counted() -> None:
    page = html.profile(samples.awkward_profile())
    assert "242 faster ones are in the JSON" in page
    table = page[page.index('<table class="wide">') :]
    assert table[: table.index("</table>")].count("<tr>") == 1 + html.MOST_LAYERS


def test_bars_have_finite_widths() -> None:
    for make in samples.PROFILES.values():
        widths = [float(width) for width in re.findall(r'style="width: ([^%]*)%"', html.profile(make()))]
        assert all(0 <= width <= 100 for width in widths)  # nan is not
    assert widths


PROFILE_PARTS = ["Where the step goes", "How a batch is made", "Memory", "Layers", "What could help"]


@pytest.mark.parametrize("name", ["rich", "cpu", "awkward"])
def test_markdown_and_latex_of_a_profile_have_the_same_parts(name: str) -> None:
    report = samples.PROFILES[name]()
    parts = [*PROFILE_PARTS, "Implementation details", "Figures"]
    assert re.findall(r"^## (.*)$", markdown.profile(report), re.MULTILINE) == parts
    assert re.findall(r"\\section\{(.*)\}", latex.profile(report)) == parts


def test_markdown_of_a_profile_says_what_was_found() -> None:
    text = markdown.profile(samples.profile())
    for said in (
        "19.0 ms a step, bound by data; 391 steps, 8 of them warm-up",
        "| wait | 11.1 ms | 58 % | 0.0 ms | 0 % |",
        "| `main.py:104` | item | every step | 565 us |",
        "| decode | 25.1 ms | 61 % | `main.py:31` |",
        "Growing: 1.6 MiB a step at main.py:112",
        "The slowest 15 of 24 layers",
        "Input mask: 41 shapes",
    ):
        assert said in text
    assert "main.py:131" not in text


@pytest.mark.parametrize("name", samples.TUNES)
def test_markdown_and_latex_have_the_eight_parts(name: str) -> None:
    report = samples.TUNES[name]()
    assert re.findall(r"^## (.*)$", markdown.tune(report), re.MULTILINE) == PARTS
    assert re.findall(r"\\section\{(.*)\}", latex.tune(report)) == PARTS


def test_markdown_is_honest_about_what_is_not_known() -> None:
    text = markdown.tune(samples.minimal_tune())
    for said in (
        "As the script loads it; samples a step: not known.",
        "not measured",
        "Where the step went is not known.",
    ):
        assert said in text
    assert "not a claim" in markdown.tune(samples.not_confirmed())
    assert "none is claimed" in markdown.tune(samples.nothing_kept())


@pytest.mark.parametrize("kind", ["tune", "profile"])
def test_names_stay_text_in_markdown(kind: str) -> None:
    text = markdown.tune(samples.awkward_tune()) if kind == "tune" else markdown.profile(samples.awkward_profile())
    outside_code = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text.replace("\\`", ""))
    assert "<script" not in outside_code
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for row, after in itertools.pairwise(rows):
        if set(after) <= set("| -:"):
            assert len(re.findall(r"(?<!\\)\|", row)) == len(re.findall(r"\|", after))
    if "two lines of" not in text:
        return
    # the rejected row, with its two lines of reason, is one row of three cells
    (reason,) = (row for row in rows if "two lines of" in row)
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", reason)) == 4


def test_what_stands_between_backticks_is_set_as_typed() -> None:
    untried = [NotTried("async-copies", "<b> only in source: see `hotlap check a|b`, or a lone `")]
    report = dataclasses.replace(samples.tune(), not_tried=untried)
    assert "&lt;b&gt; only in source: see <code>hotlap check a|b</code>, or a lone `</td>" in html.tune(report)
    assert r"only in source: see `hotlap check a\|b`, or a lone \`" in markdown.tune(report)
    assert r"see \texttt{hotlap check a\textbar{}b}, or" in latex.tune(report)


def test_names_stay_text_in_latex() -> None:
    text = latex.tune(samples.awkward_tune())
    body = text[text.index(r"\begin{document}") :]
    assert not re.search(r"(?<!\\)#", body)
    assert not re.search(r"(?<!\\)_", body)
    assert r"\textless{}script\textgreater{}" in body
    assert "{[}U+8BAD]" in body
    assert latex.escaped("--x -> a_b") == r"-{}-{}x -{}\textgreater{} a\_b"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("kind", [samples.TUNES, samples.PROFILES], ids=["tune", "profile"])
@pytest.mark.parametrize("name", ["rich", "awkward"])
def test_latex_compiles(name: str, kind: dict[str, Callable[[], folder.AnyReport]], tmp_path: Path) -> None:
    folder.write(kind[name](), tmp_path)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_saving_and_checking_load_nothing_heavy() -> None:
    program = (
        "import sys; import hotlap.report.folder, hotlap.report.check, hotlap.report.findings, hotlap.report.wording;"
        "found = {'matplotlib', 'jinja2', 'rich', 'torch', 'numpy'} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("against_itself", "smallest"),
    [(Interval(19.5, 0.0, 15_482_250.46), 114.0), (Interval(1.0, 0.15, 6.8), 1.9), (Interval(1.0, 0.7, 1.4), 2.1)],
)
def test_a_machine_that_cannot_tell_is_said_to_be_unsteady(against_itself: Interval, smallest: float) -> None:
    report = dataclasses.replace(samples.nothing_kept(), a_against_a=against_itself, smallest_gain=smallest)
    texts = [terminal.to_text(terminal.tune(report)), html.tune(report), markdown.tune(report), latex.tune(report)]
    for text in map(" ".join, map(str.split, texts)):
        assert "too unsteady to measure: close other work" in text
        assert not any(figures.interval(against_itself, dash) in text for dash in ("-", html.DASH, "--"))
        assert figures.ratio(smallest) in text
    assert not any("too unsteady" in render(samples.tune()) for render in (html.tune, markdown.tune, latex.tune))


def test_hosts_the_script_tried_to_reach_are_told() -> None:
    report = dataclasses.replace(samples.tune(), hosts=["data.example.org", "192.0.2.1"])
    for text in (terminal.to_text(terminal.tune(report)), markdown.tune(report), html.tune(report)):
        assert "tried to reach data.example.org, 192.0.2.1" in " ".join(text.split()).lower()
    assert "tried to reach" not in markdown.tune(samples.tune())


def test_whole_epochs_are_told_beside_the_steps() -> None:
    plain = samples.tune()
    report = dataclasses.replace(plain, epoch=EpochTimes(391, ["resident-dataset", "other"], 2.31, 1.91))
    for text in (terminal.to_text(terminal.tune(report)), markdown.tune(report), html.tune(report)):
        text = " ".join(text.split()).replace(html.ARROW, "->")
        assert "2.31 -> 1.91 s an epoch (391 steps, tests and all) by resident-dataset and other; single trials" in text
    assert "an epoch (" not in markdown.tune(plain)


def test_what_compiling_came_to_is_told() -> None:
    words = "traced as 3 graphs, 2 breaks: data-dependent branch at model.py:41"
    report = dataclasses.replace(samples.tune(), compiled=words)
    for text in (terminal.to_text(terminal.tune(report)), markdown.tune(report), html.tune(report)):
        assert words in " ".join(text.split()).lower()
    assert "traced as" not in markdown.tune(samples.tune())
