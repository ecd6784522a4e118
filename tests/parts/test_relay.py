"""Two threads in a row: what one draws the other works on, in order, and nothing is lost on the way."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest
import torch
from torch.utils.data import DataLoader

from hotlap.parts.drawing_ahead import Drawing, Paused, Relay
from hotlap.parts.early_batches import Pass

PATIENCE_SECONDS = 20.0


def relay(draw, work, ahead: int = 2) -> Relay:
    return Relay(Drawing(draw, 1), work, ahead)


def taken(drawing: Drawing) -> list:
    found = []
    while True:
        result, error = drawing.take()
        if error is not None:
            return [*found, type(error)]
        found.append(result)
        drawing.more()


def test_all_of_it_in_order_and_then_the_end() -> None:
    numbers = iter(range(50))
    assert taken(relay(lambda: next(numbers), lambda number: -number)) == [*(-n for n in range(50)), StopIteration]


@pytest.mark.parametrize("where", ["draw", "work"])
def test_an_error_comes_where_it_was(where: str) -> None:
    numbers = iter(range(50))

    def draw() -> int:
        number = next(numbers)
        if where == "draw" and number == 7:
            raise ValueError("seven")
        return number

    def work(number: int) -> int:
        if where == "work" and number == 7:
            raise ValueError("seven")
        return number

    assert taken(relay(draw, work)) == [*range(7), ValueError]


def test_the_next_is_drawn_while_one_is_worked_on() -> None:
    numbers, second = iter(range(9)), threading.Event()

    def draw() -> int:
        number = next(numbers)
        if number == 1:
            second.set()
        return number

    def work(number: int) -> int:
        assert number or second.wait(PATIENCE_SECONDS), "the second was not drawn meanwhile"
        return number

    assert taken(relay(draw, work)) == [*range(9), StopIteration]


def test_stopped_while_it_waits_for_the_first() -> None:
    go_on = threading.Event()
    drawing = relay(lambda: go_on.wait(PATIENCE_SECONDS), lambda result: result)
    threading.Timer(0.1, go_on.set).start()
    drawing.stop(None)
    assert not drawing._thread.is_alive() and not drawing._source._thread.is_alive()


def test_one_that_is_let_go_ends_both_threads() -> None:
    drawing = relay(lambda: 1, lambda result: result)
    threads, gone = (drawing._thread, drawing._source._thread), weakref.ref(drawing)
    del drawing
    gc.collect()
    assert gone() is None
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 2), (2, 1), (2, 3)])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_loaders_with_little_on_the_way(workers: int, prefetch: int, ahead: int) -> None:
    """Whoever waits for a batch must not keep its indices from being sent."""
    loader = DataLoader(range(40), batch_size=2, num_workers=workers, prefetch_factor=prefetch)
    iterator = iter(loader)
    begun: list[int] = []
    Pass(iterator, torch.Tensor.tolist, ahead, lambda batch: begun.append(len(begun)) or batch)
    assert list(iterator) == [[number, number + 1] for number in range(0, 40, 2)]
    assert len(begun) == 20 * (workers * prefetch > 1)


def test_paused_is_what_follows_a_stop() -> None:
    drawing = Drawing(lambda: 1, 1)
    drawing.stop(None)
    while (error := drawing.take()[1]) is None:
        pass
    assert isinstance(error, Paused)


LEFT_EARLY = """
import threading, torch
from hotlap.parts.drawing_ahead import Drawing, Relay

begun = threading.Event()

def work(number):
    begun.set()
    for _ in range(400):
        torch.mm(weights, weights)  # back and forth between Python and torch, as transforms are
    print("worked", flush=True)

weights = torch.randn(128, 128)
relay = Relay(Drawing(lambda: 1, 1), work, 2)
begun.wait()
del relay  # as a loop does that is left early; the script ends right after it
print("left", flush=True)
"""


def test_a_script_that_leaves_its_loop_early_ends_as_it_would() -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", LEFT_EARLY], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split() == ["left", "worked"], "what is at work is waited for, and nothing more is begun"


@pytest.mark.parametrize("kind", ["drawing", "relay"])
def test_one_that_lives_to_the_very_end_says_nothing(kind: str) -> None:
    """By then Python may have emptied this module: a word of it would stand at the end of the script's own."""
    text = f"""
    import atexit
    def emptied():
        global kept
        drawing_ahead.__dict__.update(dict.fromkeys(drawing_ahead.__dict__))
        del kept
    atexit.register(emptied)  # goes last: the module's own is registered when it is imported

    from hotlap.parts import drawing_ahead
    from hotlap.parts.drawing_ahead import Drawing, Relay
    kept = Drawing(lambda: 1, 2)
    if {kind == "relay"}:
        kept = Relay(kept, lambda one: one, 2)
    kept.take()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
