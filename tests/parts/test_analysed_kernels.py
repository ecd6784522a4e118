"""What torch finds out about kernels while it compiles: the same as without us, and once for calls that are alike."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.parts.analysed_kernels import NAMES, analysed_once

WRAP = importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")
HERE = [name for name in NAMES if hasattr(WRAP, name)]


def test_this_torch_has_what_is_remembered() -> None:
    """Else compiling takes longer than it need, and nobody is told."""
    assert HERE


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    monkeypatch.setattr(WRAP, HERE[0], lambda *given, **more: (seen.append(given), [len(seen)])[1])
    return seen


def asked(*given: Any, **more: Any) -> Any:
    return getattr(WRAP, HERE[0])(*given, **more)


def test_calls_that_are_alike_are_looked_at_once(calls: list[Any]) -> None:
    plain, kernel = getattr(WRAP, HERE[0]), object()
    with analysed_once():
        first = asked(kernel, {"x": torch.ones(3), "rows": 7}, {})
        first.append("what somebody does with it")
        assert asked(kernel, {"x": torch.zeros(9), "rows": 7}, {}) == [1]
    assert len(calls) == 1 and getattr(WRAP, HERE[0]) is plain


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.ones(3).double(), "rows": 7},
        {"x": torch.ones(3), "rows": 8},
        {"x": torch.ones(3), "rows": True},
        {"x": None, "rows": 7},
        {"x": torch.ones(3), "lines": 7},
    ],
)
def test_others_are_looked_at_anew(other: dict[str, Any], calls: list[Any]) -> None:
    kernel = object()
    with analysed_once():
        asked(kernel, {"x": torch.ones(3), "rows": 7}, {})
        asked(kernel, other, {})
        asked(object(), {"x": torch.ones(3), "rows": 7}, {})
    assert len(calls) == 3


@pytest.mark.parametrize("odd", [SimpleNamespace(), [1], torch.ones])
def test_what_is_not_known_is_left_to_torch(odd: Any, calls: list[Any]) -> None:
    kernel = object()
    with analysed_once():
        for _ in range(2):
            asked(kernel, {"x": odd}, {})
            asked(kernel, {"x": 1}, {"x": "a descriptor"})
            asked(kernel, {"x": 1}, more=1)
    assert len(calls) == 6


def test_an_error_ends_it_too() -> None:
    plain = getattr(WRAP, HERE[0])
    with pytest.raises(ZeroDivisionError), analysed_once():
        raise ZeroDivisionError
    assert getattr(WRAP, HERE[0]) is plain


def test_a_network_is_traced_as_without() -> None:
    """In a process of its own, where no kernel was interpreted before."""
    pytest.importorskip("triton", reason="triton is not there: pip install triton")
    script = Path(__file__).with_name("traced_network.py")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert ended.returncode == 0 and "the same" in ended.stdout, ended.stdout + ended.stderr
