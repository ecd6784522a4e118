"""Training code that hypothesis puts together, and fixtures with lines moved: `check` and `fix` stay sound on it.

A fixed seed and a small number here; `python bench/fuzz.py --variations N` makes as many as wanted."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from random import Random
from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis.strategies import randoms  # noqa: E402

FUZZ = Path(__file__).resolve().parents[2] / "bench" / "fuzz.py"
MADE = settings(
    max_examples=50,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("fuzz", FUZZ)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzz = loaded()
TEXTS = fuzz.variations.fixtures()


def sound(text: str) -> None:
    assert list(fuzz.faults(text)) == [], text


@MADE
@given(randoms(use_true_random=False))
def test_programs_of_pieces(rng: Random) -> None:
    sound(fuzz.variations.program(rng))


@MADE
@given(randoms(use_true_random=False))
def test_fixtures_with_lines_moved(rng: Random) -> None:
    sound(fuzz.variations.mutated(rng, TEXTS))


def test_most_of_them_are_python_and_many_are_rewritten() -> None:
    """Otherwise the two tests above would say nothing."""
    texts = [fuzz.made(number) for number in range(40)]
    valid = [text for text in texts if fuzz.variations.tried("", text)]
    assert len(valid) > 30
    assert sum(fuzz.fixed(fuzz.Source(text, "made.py", fuzz.Project())) != text for text in valid) > 15


@pytest.mark.parametrize(
    ("text", "spoilt", "said"),
    [
        ("import torch  # why\n", "import torch\n", "comments"),
        ("import torch\r\nx = 1\r\n", "import torch\r\nx = 1\n", "endings"),
        ("import torch\n", "import torch(\n", "crashed: SyntaxError"),
    ],
)
def test_planted_faults_are_seen(text: str, spoilt: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "fixed", lambda source: spoilt)
    assert any(said in fault for fault in fuzz.faults(text))
    monkeypatch.setattr(fuzz, "fixed", lambda source: source.text + "x = 1\n")
    assert "a second fix changed the first" in list(fuzz.faults(text))


def test_a_comment_within_an_expression_is_worth_more_than_its_fix() -> None:
    lines = ["import torch", "def shuffle(x, g):", "    N, C, H, W = x.size()"]
    plain = "    return x.view(N, g, C // g, H, W).permute(0, 2, 1, 3, 4).reshape(N, C, H, W)"
    noted = plain.replace("(N, g,", "(N, g,  # groups\n       ")
    rearranges = [one for one in fuzz.TECHNIQUES if one.id == "einops-rearrange"]
    for expression, is_fixed in ((plain, True), (noted, False)):
        text = "\n".join([*lines, expression, ""])
        source = fuzz.Source(text, "net.py", fuzz.Project())
        assert (fuzz.rewritten(source, [(rearranges[0], None)], unsafe=True).text != text) is is_fixed
