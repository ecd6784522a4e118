"""Numbers read late are those that `.item()` in every step would have given, to the bit and of the same type. The CPU
stands in for a device here: `tests/gpu` has the real one."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys

import numpy
import pytest
import torch

from hotlap.parts import late_reads
from hotlap.parts.late_reads import Later, read_later, read_now


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_reads, "DEVICES", {"cpu"})


def bits(number: object) -> object:
    return (type(number), struct.pack("d", number) if isinstance(number, float) else number)


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
LOOPS = {
    "sum": lambda total, value, step: total + value,
    "difference": lambda total, value, step: total - value,
    "reversed": lambda total, value, step: value - total,
    "weighted": lambda total, value, step: total + value * (step % 7 + 1),
    "divided": lambda total, value, step: total + value / (step % 7 + 1),
    "running average": lambda total, value, step: 0.9 * total + 0.1 * value,
    "running average, halved": lambda total, value, step: (total + -value) / 2,
    "two of them": lambda total, value, step: total + value * value,
    "host numbers in between": lambda total, value, step: total + value + step + True,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("start", [0, 0.0])
def test_thousands_of_steps(device: None, name: str, dtype: torch.dtype, start: float) -> None:
    torch.manual_seed(0)
    values = (torch.randn(2200) * 3).to(dtype)  # more numbers than are kept unread, where a step has three
    late, plain = start, start
    for step, value in enumerate(values):
        late, plain = LOOPS[name](late, read_later(value), step), LOOPS[name](plain, value.item(), step)
        if step % 1700 == 0:
            late = read_now(late)
            assert bits(late) == bits(plain)
    assert type(late) is Later or isinstance(late, int | float)
    assert bits(read_now(late)) == bits(plain)


def test_it_would_not_do_to_add_up_on_the_device() -> None:
    """The fault this is made to avoid, so that the tests above are known to see it."""
    torch.manual_seed(0)
    values = torch.rand(1000)
    total, plain = torch.zeros(()), 0.0
    for value in values:
        total, plain = total + value, plain + value.item()
    assert total.item() != plain
    assert (torch.tensor(3) * 0.1).item() != 3 * 0.1


def test_nothing_is_read_before_it_is_asked_for(device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[int] = []
    real = late_reads._fetch
    monkeypatch.setattr(late_reads, "_fetch", lambda values: (fetched.append(len(values)), real(values)))
    total, count = 0.0, 0
    for value in torch.arange(100.0):
        total += read_later(value)
        count += read_later(value > 50, int)
    assert fetched == []
    assert (read_now(total), read_now(count)) == (4950.0, 49)
    assert fetched == [100, 100]
    assert read_now(total) == 4950.0 and sum(fetched) == 200  # known by now
    for value in torch.ones(5000):
        total += read_later(value)
    assert max(fetched) < late_reads._LARGEST and sum(fetched) > 4000  # read in between: it does not grow for ever
    assert read_now(total) == 9950.0


def test_the_value_is_that_of_now(device: None) -> None:
    value = torch.ones(1, requires_grad=True)
    late = read_later(value)
    with torch.no_grad():
        value.mul_(7)
    assert read_now(late) == 1.0


def test_plain_numbers_on_the_host_and_elsewhere() -> None:
    assert "cpu" not in late_reads.DEVICES
    assert bits(read_later(torch.tensor(3))) == bits(3)
    assert bits(read_later(torch.tensor(3), float)) == bits(3.0)
    assert bits(read_later(torch.tensor(2.5), int)) == bits(2)
    assert read_later(numpy.float32(0.5)) == 0.5
    assert read_later("7", int) == 7
    assert read_now("text") == "text" and read_now(None) is None


def test_what_would_raise_raises_at_once(device: None) -> None:
    for tensor in (torch.ones(2), torch.ones(0)):
        with pytest.raises(RuntimeError) as plain:
            tensor.item()
        with pytest.raises(RuntimeError, match=str(plain.value)[:20]):
            read_later(tensor)
    with pytest.raises(ValueError):
        read_later(torch.tensor(math.nan), int)
    with pytest.raises(ZeroDivisionError):
        read_later(torch.ones(())) / 0
    with pytest.raises(ZeroDivisionError):
        1 / read_later(torch.zeros(()))
    with pytest.raises(TypeError):
        read_later(torch.ones(())) + "text"
    assert type(read_later(torch.ones((), dtype=torch.complex64))) is complex
    assert type(read_later(torch.tensor(2.5), int)) is int


@pytest.mark.parametrize(
    "other", [numpy.float64(0.1), numpy.float32(0.1), numpy.arange(3.0), torch.arange(3.0), numpy.int64(3)], ids=repr
)
def test_other_kinds_of_numbers_are_worked_with_at_once(device: None, other: object) -> None:
    value = torch.tensor(0.3)
    for work in (lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b):
        for late, plain in ((work(read_later(value), other), work(value.item(), other)),
                            (work(other, read_later(value)), work(other, value.item()))):  # fmt: skip
            assert type(late) is type(plain) and repr(late) == repr(plain)


def test_shown_without_being_asked(device: None) -> None:
    late = read_later(torch.tensor(2.5)) + 1
    assert (f"{late:.2f}", str(late), late > 3, late == 3.5, bool(late), float(late)) == (
        "3.50", "3.5", True, True, True, 3.5)  # fmt: skip
    with pytest.raises(TypeError):
        hash(late)
    assert json.dumps(read_now(late)) == "3.5"


def test_torch_is_left_to_the_script_to_import() -> None:
    """It is imported at the top of scripts that set CUDA_VISIBLE_DEVICES below."""
    text = "import sys, hotlap.parts.late_reads; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text]).returncode == 0
