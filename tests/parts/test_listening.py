"""Whatever a call says, in whatever way, is heard; what is said only once, or by others, is no reason."""

from __future__ import annotations

import io
import logging
import sys
import threading
import warnings

import pytest
import torch
from played_graphs import PlayedGraphs
from torch import nn

from hotlap.parts import listening as part
from hotlap.parts.captured_calls import CapturedCalls
from hotlap.parts.listening import listening

log = logging.getLogger("forward")
log.addHandler(logging.StreamHandler(io.StringIO()))  # its own stream, which nobody redirects
log.propagate = False

WAYS = {
    "print": lambda: print("forward"),
    "stderr": lambda: print("forward", file=sys.stderr),
    "logging": lambda: log.warning("forward"),
    "warnings": lambda: warnings.warn("forward", stacklevel=1),
}
NO_WAYS = {
    "a level too low": lambda: log.debug("forward"),
    "nothing": lambda: None,
    "another thread": lambda: _in_a_thread(lambda: log.warning("elsewhere")),
}


def _in_a_thread(work) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class Telling(nn.Linear):
    def __init__(self, way) -> None:
        super().__init__(4, 2)
        self.way = [way]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.way[0]()
        return super().forward(x)


def calls(way, times: int = 12) -> CapturedCalls:
    model = Telling(way)
    captured = CapturedCalls(PlayedGraphs(model))
    for _ in range(times):
        captured.call(model, (torch.ones(3, 4),), {}).sum().backward()
    return captured


@pytest.mark.parametrize("way", WAYS)
def test_what_a_call_says_is_heard_each_time(way: str, capsys) -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert calls(WAYS[way]).replays == 0
    said = capsys.readouterr()
    assert {"print": said.out.count("forward"), "stderr": said.err.count("forward")}.get(way, 12) == 12
    assert len(shown) == (12 if way == "warnings" else 0), "none is lost, none comes twice"


@pytest.mark.parametrize("way", NO_WAYS)
def test_what_says_nothing_is_replayed(way: str) -> None:
    assert calls(NO_WAYS[way]).replays == 9


def test_a_warning_that_is_shown_once_is_no_reason() -> None:
    part._warned.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        shown = list[str]()
        warnings.showwarning = lambda message, *rest: shown.append(str(message))
        assert calls(WAYS["warnings"]).replays == 9
    assert 1 <= shown.count("forward") <= 2, "while it is listened to, and Python forgets that it has shown it"


def test_what_is_heard_leaves_everything_as_it_was() -> None:
    before = sys.stdout, sys.stderr, logging.getLogRecordFactory(), warnings.showwarning, warnings.filters[:]
    with pytest.raises(ValueError, match="mine"), listening():
        raise ValueError("mine")
    assert before == (sys.stdout, sys.stderr, logging.getLogRecordFactory(), warnings.showwarning, warnings.filters)


def test_a_process_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with listening() as heard:
        print("forward")
    assert heard == []
