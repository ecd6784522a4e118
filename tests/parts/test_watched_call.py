"""What a watched call is seen to do that a graph could not repeat. The meta device stands for one whose memory is not
the host's."""

from __future__ import annotations

import pytest
import torch

from hotlap.parts.watched_call import _reading

META = torch.device("meta")


@pytest.mark.parametrize(
    ("work", "is_brought"),
    [
        (lambda x: x + torch.arange(4).to(META, non_blocking=True), True),
        (lambda x: torch.empty(4, device=META).copy_(torch.ones(4)) + x, True),
        (lambda x: x * torch.tensor(2.0), False),
        (lambda x: x + torch.arange(4, device=META), False),
        (lambda x: (x, torch.ones(4) + 1)[0], False),
    ],
    ids=["a range", "a copy", "a number", "made on the device", "host work for itself"],
)
def test_what_comes_from_main_memory_is_seen(work, is_brought: bool) -> None:
    x = torch.ones(4, device=META)
    with _reading([x], [], META, []) as reads:
        work(x)
    assert reads.has_brought is is_brought


def test_on_a_processor_everything_is_in_main_memory() -> None:
    x = torch.ones(4)
    with _reading([x], [], torch.device("cpu"), []) as reads:
        x + torch.arange(4)
    assert reads.has_brought is False
