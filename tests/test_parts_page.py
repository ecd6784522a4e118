"""docs/parts.md against the parts: every example runs, every part with an example of its own is there, and both
show the interface there is."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy
import pytest
import torch

import hotlap.parts
from hotlap.parts import file_pool

PAGE = Path(__file__).resolve().parent.parent / "docs" / "parts.md"
FOLDER = Path(hotlap.parts.__path__[0])
OPTIONAL = ("PIL", "cv2", "simplejpeg", "torchvision")
MOST_LINES = 10  # of an example, imports and the last print besides
PHOTOS = 8


class Section(NamedTuple):
    names: tuple[str, ...]  # in its heading
    code: str


def read(page: str) -> tuple[str, list[Section]]:
    """The start that all examples share, and the examples: one in each section that names parts."""
    opening, *rest = re.split(r"^#{2,3} (.*)$", page, flags=re.MULTILINE)
    sections = []
    for heading, body in zip(rest[::2], rest[1::2], strict=True):
        names, blocks = tuple(re.findall(r"`(\w+)`", heading)), blocks_of(body)
        assert len(blocks) == bool(names), f"{heading}: one example for each heading that names parts"
        sections += [Section(names, *blocks)] if names else []
    (start,) = blocks_of(opening)
    return start, sections


def blocks_of(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


START, SECTIONS = read(PAGE.read_text())


def imported(code: str) -> dict[str, set[str]]:
    """Names taken from parts, by module."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hotlap.parts."):
            found.setdefault(node.module.rpartition(".")[2], set()).update(one.name for one in node.names)
    return found


def docstring_example(path: Path) -> str:
    """The indented lines of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text()), clean=False) or ""
    return textwrap.dedent("\n".join(line for line in text.splitlines() if not line or line.startswith("    ")))


EXAMPLES = {path.stem: code for path in sorted(FOLDER.glob("*.py")) if (code := docstring_example(path)).strip()}


def module_of(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"hotlap.parts.{name}")
    except ModuleNotFoundError as error:
        if error.name in OPTIONAL:
            pytest.skip(f"needs {error.name}")
        raise


def misfits(code: str, names: dict[str, Any]) -> Iterator[str]:
    """Calls of these names that do not fit what is there."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in names:
            continue
        try:
            inspect.signature(names[node.func.id]).bind(*node.args, **{str(one.arg): one for one in node.keywords})
        except TypeError as error:
            yield f"{node.func.id}: {error}"


def shown(code: str) -> list[str]:
    """What an example says that it prints."""
    return re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)


def counted_lines(code: str) -> int:
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("from ", "import "))]
    assert lines[-1].startswith("print("), "an example ends in something visible"
    return len(lines) - 1


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    image = pytest.importorskip("PIL.Image", reason="makes the photos with PIL")
    for number in range(PHOTOS):
        pixels = numpy.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=numpy.uint8)
        image.fromarray(pixels).resize((320, 240)).save(f"photos/{number}.jpg")
    file_pool.set_limit(32 << 20)
    yield
    file_pool.clear()


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.names[0])
def test_an_example_runs_and_prints_what_it_says(
    section: Section, photos: None, capfd: pytest.CaptureFixture[str]
) -> None:
    if {"CompiledCall", "CompiledUpdate"} & set(section.names) and shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    torch.manual_seed(0)
    namespace = {"__name__": "parts_page"}
    try:
        exec(compile(f"{START}\n{section.code}", "parts.md", "exec"), namespace)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"needs {error.name}")
    finally:
        namespace.clear()  # left to the collector, a loader whose workers live on takes ten seconds to end
    printed = capfd.readouterr().out.splitlines()
    assert printed
    expected = shown(section.code)
    assert printed[len(printed) - len(expected) :] == expected


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.names[0])
def test_an_example_is_short_and_uses_what_its_heading_names(section: Section) -> None:
    assert counted_lines(section.code) <= MOST_LINES
    assert sorted(*imported(section.code).values()) == sorted(section.names)


def test_every_part_with_an_example_of_its_own_is_on_the_page_and_no_other() -> None:
    on_page = {module for section in SECTIONS for module in imported(section.code)}
    assert on_page == set(EXAMPLES)


@pytest.mark.parametrize("module", EXAMPLES)
def test_a_docstring_shows_the_interface_there_is_and_the_page_shows_the_same(module: str) -> None:
    example = EXAMPLES[module]
    on_page = {name for section in SECTIONS for name in imported(section.code).get(module, ())}
    assert imported(example) == {module: on_page}
    part = module_of(module)
    assert not list(misfits(example, {name: getattr(part, name) for name in on_page}))


# the rules can fail ---------------------------------------------------------------------------------------------------


def test_a_call_that_no_longer_fits_is_seen() -> None:
    def staged(folder: str, limit_bytes: int) -> None: ...

    assert not list(misfits('with staged("photos", limit_bytes=1) as folder: ...', {"staged": staged}))
    assert len(list(misfits('staged("photos", limit=1)\nstaged("photos")', {"staged": staged}))) == 2


def test_a_heading_without_an_example_is_seen() -> None:
    with pytest.raises(AssertionError, match="one example"):
        read("```python\nstart = 1\n```\n\n### `part`\n\nNothing runs here.\n")


def test_an_example_with_nothing_to_see_at_its_end_is_seen() -> None:
    with pytest.raises(AssertionError, match="visible"):
        counted_lines("print(1)\nx = 2\n")
    assert shown("print(f(1))  # 12\nprint(3)\n") == ["12"]
