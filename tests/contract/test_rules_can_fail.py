"""The rules themselves are tested: a planted violation turns each one red."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from contract_rules import broken_promises

from hotlap.catalogue.fused_optimizer import FusedOptimizer
from hotlap.technique import Family, Parity, Setting, Technique

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


def test_a_heading_too_few_is_red() -> None:
    class FusedOptimizerCopy(FusedOptimizer):
        __doc__ = (FusedOptimizer.__doc__ or "").replace("## Claims", "## Rumours")

    assert any("headings" in line for line in broken_promises(FusedOptimizerCopy(), FIXTURES))
