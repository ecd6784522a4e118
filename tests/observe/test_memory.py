"""What is told of memory against tensors whose sizes are known, and growth against series made for it."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from hotlap.observe import memory
from hotlap.observe.memory import Memory, batch_that_fits, free_memory, trend
from hotlap.observe.scrutiny_facts import GrowthFacts, MemoryFacts

MIB = 2**20


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    def closure():
        optimizer.zero_grad()
        loss = model(torch.randn(4, 10)).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20))


WEIGHTS = (10 * 20 + 20 + 20 + 20) * 4
BUFFERS = (20 + 20) * 4 + 8


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_what_memory_holds(options) -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    train(model, optimizer)
    growth = [GrowthFacts("x.py", 1, "losses", 3, 4.0, "why")]
    facts = Memory().facts([model], [optimizer], activations=77, growth=growth)
    assert (facts.weights, facts.buffers, facts.gradients) == (WEIGHTS, BUFFERS, WEIGHTS)
    assert facts.optimizer_state == 2 * WEIGHTS + 4 * 4  # and a count of steps for each of four parameters
    assert facts.activations == 77 and facts.growth == growth
    assert facts.reserved == 0 and 0 < facts.free <= facts.total and facts.weights < facts.peak < facts.total


def test_what_is_shared_is_counted_once() -> None:
    inner = small()
    outer = nn.Sequential(inner, nn.Linear(20, 10, bias=False))
    tied = nn.Linear(10, 20, bias=False)
    tied.weight = inner[0].weight
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (outer, inner)]
    facts = Memory().facts([inner, outer, tied], optimizers)
    assert facts.weights == WEIGHTS + 20 * 10 * 4
    assert facts.buffers == BUFFERS


def test_gradients_that_were_just_dropped_count_as_large_as_their_parameters() -> None:
    model = small()
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    held = Memory().facts([model], [optimizer]).gradients
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    assert Memory().facts([model], [optimizer]).gradients == held == WEIGHTS - 20 * 4


def test_state_in_lists_is_counted() -> None:
    model = small()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=5)
    train(model, optimizer, steps=2)
    history = len(next(iter(optimizer.state.values()))["old_dirs"])
    assert history >= 2
    assert Memory().facts([model], [optimizer]).optimizer_state >= 2 * history * WEIGHTS


def test_sparse_gradients_and_uninitialised_parameters_do_no_harm() -> None:
    table = nn.Embedding(100, 8, sparse=True)
    table(torch.tensor([1, 2, 3])).sum().backward()
    facts = Memory().facts([nn.Sequential(table, nn.LazyLinear(3))], [])
    assert facts.weights == 100 * 8 * 4
    assert facts.gradients == 3 * 8 + 3 * 8 * 4  # indices and values


def test_no_parameters_at_all() -> None:
    facts = Memory().facts([], [])
    assert facts.weights == facts.gradients == facts.optimizer_state == 0 and facts.peak > 0


def test_readings_are_taken_early_and_then_now_and_then() -> None:
    watched = Memory()
    for step in range(1, 101):
        watched.step(step)
    assert [step for step, _ in watched.levels] == [1, 2, 4, 8, 16, 32, 48, 64, 80, 96]
    assert all(level > 10 * MIB for _, level in watched.levels)  # torch is in this process


def test_readings_are_thinned_but_span_the_run(monkeypatch) -> None:
    monkeypatch.setattr(memory, "resident_bytes", lambda: 1)
    watched = Memory()
    for step in range(1, 100_001):
        watched.step(step)
        assert len(watched.levels) <= 256
    steps = [step for step, _ in watched.levels]
    assert len(steps) > 64 and steps == sorted(set(steps))
    assert steps[0] == 1 and steps[-1] > 99_000
    gaps = [after - before for before, after in itertools.pairwise(steps[20:])]
    assert max(gaps) <= 4 * min(gaps)


def test_levels_of_the_process_and_of_the_device_are_not_mixed(monkeypatch) -> None:
    watched = Memory()
    watched.step(1)
    monkeypatch.setattr(memory, "_cuda_index", lambda device: 0)
    monkeypatch.setattr(memory, "_stat", lambda index, name, which: 5)
    watched.step(2)
    watched.step(4)
    assert watched.levels == [[2, 5], [4, 5]]


def readings(level, steps: int = 1600) -> list[list[float]]:
    return [[step, float(level(step))] for step in (1, 2, 4, 8, *range(16, steps, 16))]


def test_growth_is_told_in_bytes_a_step() -> None:
    chance = random.Random(1)
    assert trend(readings(lambda step: 100 * MIB + 50_000 * step)) == pytest.approx(50_000)
    noisy = readings(lambda step: 100 * MIB + 50_000 * step + chance.uniform(-1, 1) * MIB)
    assert trend(noisy) == pytest.approx(50_000, rel=0.1)
    pages = readings(lambda step: 100 * MIB + step // 100 * 5 * MIB)  # an allocator that asks for much at a time
    assert trend(pages) == pytest.approx(5 * MIB / 100, rel=0.1)
    after_warm_up = readings(lambda step: min(step, 500) * MIB + 50_000 * step)
    assert trend(after_warm_up) == pytest.approx(50_000, rel=0.01)


@pytest.mark.parametrize(
    "level",
    [
        lambda step: 100 * MIB,
        lambda step: min(step, 400) * MIB,  # warm-up
        lambda step: 500 * MIB * (1 - 0.998**step),  # warm-up that fades
        lambda step: (100 if step < 1000 else 300) * MIB,  # a jump
        lambda step: (100 if step < 700 else 200 if step < 1200 else 300) * MIB,  # two
        lambda step: (step % 100) * MIB,  # saw-teeth
        lambda step: (step % 900) * MIB,
        lambda step: (100 + random.Random(step).random()) * MIB,  # noise
        lambda step: 1000 * MIB - step * 50_000,  # less and less
        lambda step: 100 * MIB + 500 * step,  # our own record
    ],
)
def test_what_is_not_growth(level) -> None:
    assert trend(readings(level)) == 0.0


def test_noise_whose_quarters_happen_to_rise_is_no_growth() -> None:
    chance = random.Random(114)
    assert trend(readings(lambda step: (100 + chance.uniform(0, 50)) * MIB)) == 0.0


def test_too_few_readings_tell_nothing() -> None:
    grows = readings(lambda step: 50_000 * step, steps=160)
    assert trend([]) == trend(grows[:1]) == trend(grows[:8]) == 0.0


DEVICE = MemoryFacts(
    peak=3000, weights=500, buffers=0, gradients=500, optimizer_state=1000, activations=1000, reserved=3500,
    total=20_000, free=16_000,
)  # fmt: skip


def test_the_batch_that_fits() -> None:
    # 18,000 with the reserve, 2,000 fixed, 500 held by others: 15,500 for samples of 100 or 62.5
    assert batch_that_fits(DEVICE, 10) == 152
    assert batch_that_fits(DEVICE, 16) == 248
    assert batch_that_fits(DEVICE, 3) == 45  # in whole batches: 15,500 / 333.3 = 46
    assert batch_that_fits(replace(DEVICE, activations=2000), 10) == 72
    assert batch_that_fits(replace(DEVICE, peak=6000), 10) == 32  # what a step needs for moments counts


def test_no_batch_is_named_where_something_is_not_known() -> None:
    assert batch_that_fits(replace(DEVICE, activations=0), 10) is None
    assert batch_that_fits(replace(DEVICE, total=0), 10) is None
    assert batch_that_fits(replace(DEVICE, reserved=0), 10) is None  # not on a device
    assert batch_that_fits(DEVICE, 0) is None
    assert batch_that_fits(replace(DEVICE, weights=18_000), 10) is None


def test_what_is_free_is_cut_by_control_groups(tmp_path) -> None:
    for name, text in {
        "proc/meminfo": "MemTotal: 16000 kB\nMemAvailable:    8000 kB\n",
        "proc/self/cgroup": "0::/job\n",
        "sys/fs/cgroup/job/memory.current": "3000000\n",
        "sys/fs/cgroup/job/memory.stat": "anon 5\ninactive_file 500000\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    limit = tmp_path / "sys/fs/cgroup/job/memory.max"
    limit.write_text("max\n")
    assert free_memory(tmp_path) == 8000 * 1024
    limit.write_text("5000000\n")
    assert free_memory(tmp_path) == 5_000_000 - 3_000_000 + 500_000
    limit.write_text("1000000\n")
    assert free_memory(tmp_path) == 0
