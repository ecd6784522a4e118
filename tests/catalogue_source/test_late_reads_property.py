"""Whatever loop is written, with whatever is done with its totals: what is written into it prints the same."""

from __future__ import annotations

import tempfile
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from late_loops import outcome, script, stand_in, written

from hotlap.source import running_totals

NAMES = ("a", "b")
READ = st.sampled_from(
    [
        "loss.item()",
        "(out.argmax(1) == y).sum().item()",
        "out.sum().item()",
        "int((out > 0).sum())",
        "out.half().max().item()",
    ]
)
HOST = st.sampled_from(["2", "0.1", "len(y)", "x.size(0)", "-3", "i"])
GATE = st.sampled_from(["i % 3 == 0", "not i % 2", "i == 2", "i % 2 == 1 and len(y) > 3", "i > 3"])


@st.composite
def term(draw: st.DrawFn) -> str:
    read = draw(READ)
    forms = ["{0}", "{0} * {1}", "{1} * {0}", "{0} / 7", "-{0}", "({0} + {1}) / 3", "{0} - {1} * 0.3"]
    forms += ["{0} ** 2"] if draw(st.integers(0, 7)) == 0 else []
    return draw(st.sampled_from(forms)).format(read, draw(HOST))


@st.composite
def addition(draw: st.DrawFn) -> str:
    name, more = draw(st.sampled_from(NAMES)), draw(term())
    forms = ["{0} += {1}", "{0} -= {1}", "{0} = {0} + {1}", "{0} = 0.9 * {0} + 0.1 * ({1})", "{0} = {1} - {0}"]
    return draw(st.sampled_from([*forms, "{0} += {2}", "{0}, n = {0} + {1}, {2}", "{0} *= 1 + {1}"])).format(
        name, more, draw(HOST)
    )


@st.composite
def use(draw: st.DrawFn) -> str:
    forms = ["print({0})", "shown({0})", "print(f'{{{0}:.12f}} {{{0}!r}}')", "{0} = 0", "{0} = 0.0", "kept.append({0})"]
    forms += ["print('%r' % ({0} / 3))", "a, b = 0, 0.0", "n = {0}", "{0} /= 2", "print(json.dumps({{'v': {0}}}))"]
    return draw(st.sampled_from(forms)).format(draw(st.sampled_from(NAMES)))


@st.composite
def gated(draw: st.DrawFn) -> str:
    inside = [draw(use()) for _ in range(draw(st.integers(1, 2)))]
    if draw(st.booleans()):
        inside.append(draw(st.sampled_from(["continue", "break", "return a, b", "raise ValueError(a)"])))
    return f"if {draw(GATE)}:\n" + textwrap.indent("\n".join(inside), "    ")


@st.composite
def loops(draw: st.DrawFn) -> str:
    inside = [*draw(st.lists(addition(), min_size=1, max_size=3)), *draw(st.lists(gated(), max_size=2))]
    inside = draw(st.permutations(inside))
    if draw(st.integers(0, 7)) == 0:
        inside.append(draw(use()))
    body = ["for i, (x, y) in enumerate(data):", "    STEP", *(textwrap.indent(one, "    ") for one in inside)]
    if draw(st.booleans()):
        again = draw(st.sampled_from(["a = 0", "print(b)", "pass"]))
        body = ["for epoch in range(2):", *(textwrap.indent(one, "    ") for one in [again, *body, draw(use())])]
    if draw(st.booleans()):
        body = ["try:", *(textwrap.indent(one, "    ") for one in body), "except ValueError as error:"]
        body += ["    print('failed', error, b)"]
    lines = ["a, b, n, kept = 0.0, 0, 0, []", *body, *(draw(use()) for _ in range(2)), "return a, b, n, kept"]
    return "def train():\n" + textwrap.indent("\n".join(lines), "    ")


def examine(examples: int, is_random: bool = False, shrinks: bool = True) -> tuple[int, int]:
    """How many loops were tried, and into how many something was written."""
    tried = [0, 0]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=not is_random,
        phases=[Phase.generate, *([Phase.shrink] if shrinks else [])],
        suppress_health_check=list(HealthCheck),
    )
    @given(loops())
    def prints_the_same(loop: str) -> None:
        before = script(loop)
        after = written(before)
        tried[0] += 1
        if after != before:
            tried[1] += 1
            with tempfile.TemporaryDirectory() as folder:
                expected = outcome(before, Path(folder) / "before")
                assert outcome(after, Path(folder) / "after") == expected, after

    prints_the_same()
    return tried[0], tried[1]


def test_it_prints_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    every, changed = examine(40)
    assert changed > every // 4, "most loops were left alone, so little was tested"


def test_a_total_that_is_not_read_again_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: what was read once is taken for a plain number for good."""
    stand_in(monkeypatch)
    monkeypatch.setattr(running_totals._Proof, "_is_read_before", lambda self, statement, shown: statement != shown[0])
    with pytest.raises(AssertionError):
        examine(40, shrinks=False)
