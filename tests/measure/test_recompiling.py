"""A model that is compiled again and again is told from one whose shapes settle, by torch's own count."""

from __future__ import annotations

from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

from hotlap.measure.bench import Bench
from hotlap.measure.order import Order
from hotlap.measure.timed import Timed, Untimed
from hotlap.measure.trial import Trials
from hotlap.measure.warmup import recompiles
from hotlap.technique import Choice

SCRIPT = """
import torch
torch._dynamo.config.recompile_limit = 1000
torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
{compiled}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10**6):
    for number in range(16):
        optimizer.zero_grad()
        rows = {rows}
        model(torch.randn(rows, 4)).sum().backward()
        optimizer.step()
"""
COMPILED = "model = torch.compile(model, backend='eager', dynamic=False)"
RESTLESS, SETTLING = "2 + number + 16 * epoch", "4 if number < 15 else 3"


class Silent:
    def __getattr__(self, name: str):
        return lambda *_: None


def write(folder: Path, rows: str, compiled: str = COMPILED) -> str:
    (folder / "train.py").write_text(SCRIPT.format(compiled=compiled, rows=rows))
    return str(folder / "train.py")


@pytest.mark.parametrize(("rows", "steps", "storms"), [(RESTLESS, 20, True), (SETTLING, 40, False)])
def test_by_its_own_count(run_script, tmp_path: Path, rows: str, steps: int, storms: bool) -> None:
    run = run_script(write(tmp_path, rows), steps=steps).run
    assert bool(recompiles(run)) == storms, run.compiled_at
    assert run.compiled_at, "the first step compiles"
    assert (run.compiled.again >= 10) == storms and run.compiled.graphs == run.compiled.again + 1


def test_a_technique_that_does_it_is_rejected(trials: Trials, tmp_path: Path) -> None:
    from planted import Compiles

    plan = [Choice(Compiles(), {})]
    order = Order(name=write(tmp_path, RESTLESS, ""), cwd=str(tmp_path), limit_seconds=PATIENCE_SECONDS)
    bench = Bench(trials, order, 0.2, Silent())  # type: ignore[arg-type]
    assert isinstance(bench.time([], "the script", "baseline"), Timed) and not bench.storm
    timing = bench.time(plan, "compiles", "screen")
    assert isinstance(timing, Untimed) and timing.ending.startswith("recompiles again and again (")


def test_a_script_that_does_it_by_itself_is_measured_all_the_same(trials: Trials, tmp_path: Path) -> None:
    from planted import DoesNothing

    order = Order(name=write(tmp_path, RESTLESS), cwd=str(tmp_path), limit_seconds=PATIENCE_SECONDS)
    bench = Bench(trials, order, 0.2, Silent())  # type: ignore[arg-type]
    assert isinstance(bench.time([], "the script", "baseline"), Timed)
    assert bench.storm.startswith("recompiles again and again (")
    assert isinstance(bench.time([Choice(DoesNothing(), {})], "nothing", "screen"), Timed)
