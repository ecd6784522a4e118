"""On a real device: the written loop shows what the plain one does, and waits for nothing until it shows it."""

from __future__ import annotations

import contextlib
import io
import threading
import time

import pytest
import torch

from hotlap.catalogue import find
from hotlap.parts.late_reads import Later, read_later, read_now
from hotlap.source.fix import fix_source
from hotlap.source.module import Source

pytestmark = pytest.mark.gpu

LOOP = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Linear(8, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(n, 8, device=device), torch.randint(0, 3, (n,), device=device)) for n in [16, 12, 7] * 40]


def train(watched):
    total, smooth, right = 0.0, 0.0, 0
    torch.cuda.set_sync_debug_mode("error" if watched else "default")
    for i, (x, y) in enumerate(data):
        optimizer.zero_grad()
        out = model(x.to(device))
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y) / 3
        smooth = 0.9 * smooth + 0.1 * loss.item()
        right += (out.argmax(1) == y).sum().item()
    torch.cuda.set_sync_debug_mode("default")
    print(repr(total), f"{smooth!r} {right}", type(right), right / 7)
    return total
"""


def run(text: str, watched: bool) -> str:
    names: dict[str, object] = {"__name__": "train"}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(text, "train.py", "exec"), names)
            names["train"](watched)  # type: ignore[operator]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return printed.getvalue()


def test_the_written_loop_waits_for_nothing_and_shows_the_same() -> None:
    written = fix_source(Source(LOOP), [(find("sync-free-loop"), {})], unsafe=True)
    assert "item()" not in written
    plain = run(LOOP, watched=False)
    assert run(written, watched=True) == plain
    with pytest.raises(RuntimeError, match="synchronizing"):
        run(LOOP, watched=True)


def test_a_value_of_another_stream_is_read_at_once() -> None:
    value = torch.ones((), device="cuda")
    assert type(read_later(value)) is Later
    with torch.cuda.stream(torch.cuda.Stream()):
        assert type(read_later(value)) is float
        late = Later(value)
        assert read_now(late) == 1.0


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]
)
def test_the_same_bits(dtype: torch.dtype) -> None:
    values = (torch.randn(3000, device="cuda") * 3).to(dtype)
    late, plain = 0, 0
    for step, value in enumerate(values):
        late, plain = late + read_later(value) / (step % 7 + 1), plain + value.item() / (step % 7 + 1)
    assert read_now(late) == plain


def test_nobody_else_is_kept_from_the_device_while_a_number_is_waited_for() -> None:
    """As whoever makes the next batches in a thread of its own: what it asks for is begun while the device still works
    on what the number waits for."""
    value, other, over = torch.ones((), device="cuda"), torch.cuda.Stream(), torch.cuda.Event()
    place, has_begun, was_over = torch.zeros(16, device="cuda"), threading.Event(), []

    def work() -> None:
        has_begun.wait()
        time.sleep(0.1)  # the number is waited for by then
        with torch.cuda.stream(other):
            place.add_(1)
        was_over.append(over.query())

    thread = threading.Thread(target=work)
    thread.start()
    torch.cuda._sleep(2_000_000_000)  # more than a second of the device's own
    over.record()
    number = read_later(value + 1)
    has_begun.set()
    assert read_now(number) == 2.0
    thread.join()
    assert was_over == [False]
