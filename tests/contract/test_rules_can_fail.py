"""The rules themselves are tested: a planted violation turns each one red."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from contract_rules import broken_promises

from hotlap.catalogue.fused_optimizer import FusedOptimizer
from hotlap.technique import Family, Numbers, Parity, Setting, Technique, Values

FIXTURES = Path(__file__).resolve().parent.parent / "catalogue"


class Nameless(Technique):
    """no sentence"""

    family = Family.WAIT

    def parity(self, run):
        return Parity.IDENTICAL

    def spot(self, source):
        yield from ()


def test_a_technique_without_explanation_or_fixtures_is_red() -> None:
    broken = " | ".join(broken_promises(Nameless(), FIXTURES))
    for part in ("first line", "headings", "lives in", "before.py is missing", "findings.txt is missing"):
        assert part in broken


def test_a_missing_fixture_folder_is_red(tmp_path: Path) -> None:
    assert any("after.py is missing" in line for line in broken_promises(FusedOptimizer(), tmp_path))


def test_a_setting_nobody_can_name_is_red() -> None:
    class FusedOptimizerCopy(FusedOptimizer):
        default: ClassVar[Setting] = {}

        __doc__ = FusedOptimizer.__doc__

        def apply(self, patch, setting):
            setting["kind"]

    assert "kind is in `default` or `more_settings`" in broken_promises(FusedOptimizerCopy(), FIXTURES)


@pytest.mark.parametrize("stated", [{}, {"kind": ("fused", "other"), "number": Numbers(1)}])
def test_a_setting_that_does_not_say_what_it_may_be_is_red(stated: Values) -> None:
    class FusedOptimizerCopy(FusedOptimizer):
        values: ClassVar[Values] = stated

        __doc__ = FusedOptimizer.__doc__

    name = "number" if stated else "kind"
    assert f"`values` says what {name} may be, and all in it are settings" in broken_promises(
        FusedOptimizerCopy(), FIXTURES
    )


def test_an_example_that_is_not_taken_is_red() -> None:
    class FusedOptimizerCopy(FusedOptimizer):
        values: ClassVar[Values] = {"kind": ("quick", "slow")}

        __doc__ = FusedOptimizer.__doc__

    assert any("kind is quick or slow" in line for line in broken_promises(FusedOptimizerCopy(), FIXTURES))


def test_a_heading_too_few_is_red() -> None:
    class FusedOptimizerCopy(FusedOptimizer):
        __doc__ = (FusedOptimizer.__doc__ or "").replace("## Claims", "## Rumours")

    assert any("headings" in line for line in broken_promises(FusedOptimizerCopy(), FIXTURES))
