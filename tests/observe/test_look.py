"""A closer look at real, tiny models: against what is known of them, and without a trace in their training."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils import _python_dispatch as modes
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from hotlap.observe.look import Look, why_not
from hotlap.observe.look.counting import Tally
from hotlap.observe.look.roofline import measure
from hotlap.observe.look.shape import is_elementwise, notes, remarks, unequal_traffic
from hotlap.observe.look.timeline import Kernel, Node, Op, device_seconds, idle_seconds, nest, pieces
from hotlap.observe.look.timing import Trace, _read, times
from hotlap.observe.look.tracks import Top, Tracks
from hotlap.observe.scrutiny_facts import LayerFacts, LookFacts

STEPS_OF_A_LOOK = 5
Step = Callable[[], object]


def looked_at(step: Step, roots: Sequence[nn.Module], optimizers: Sequence[Any] = (), steps: int = 99) -> LookFacts:
    """A loop as the profile drives it: a boundary before each step."""
    look = Look(roots, optimizers, "cpu")
    try:
        for _ in range(steps):
            if not look.next():
                break
            step()
    finally:
        look.close()
    assert nothing_hangs()
    return look.facts([])


def nothing_hangs() -> bool:
    return not (
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_forward_hooks_always_called
        or modes._len_torch_dispatch_stack()
        or torch.autograd._profiler_enabled()
    )


def training(model: nn.Module, make_batch: Callable[[], torch.Tensor]) -> tuple[Step, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(make_batch()).square().mean().backward()
        optimizer.step()

    return step, optimizer


def layers(facts: LookFacts) -> dict[str, LayerFacts]:
    return {layer.name: layer for layer in facts.layers}


class ConvNet(nn.Module):
    def __init__(self, groups: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.wide = nn.Conv2d(16, 16, 3, padding=1)
        self.depth = nn.Conv2d(16, 16, 3, padding=1, groups=groups)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(x)))
        return self.head(self.drop(self.depth(self.wide(x))).mean((2, 3)))


def images() -> torch.Tensor:
    return torch.randn(4, 3, 8, 8)


class Block(nn.Module):
    """Attention by hand, so that its products are the block's own work."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.to_all = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.to_all(self.norm(x)).chunk(3, -1)
        return x + self.out((q @ k.transpose(1, 2)).softmax(-1) @ v)


class Transformer(nn.Module):
    def __init__(self, again: bool | None = None) -> None:
        super().__init__()
        self.again = again  # None: no checkpoint; otherwise whether it is the reentrant kind
        self.words = nn.Embedding(100, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(2))
        self.head = nn.Linear(16, 100)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x) if self.again is None else checkpoint(block, x, use_reentrant=self.again)
        return self.head(x)


def words() -> torch.Tensor:
    return torch.randint(100, (2, 12))


# nothing changes for the script --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "batch"),
    [(ConvNet, images), (Transformer, words), (lambda: Transformer(True), words), (lambda: Transformer(False), words)],
)
def test_training_is_the_same_bit_for_bit(make, batch) -> None:
    def run(with_look: bool) -> list[Any]:
        torch.manual_seed(3)
        random.seed(3)
        numpy.random.seed(3)
        model = make()
        step, optimizer = training(model, batch)
        look = Look([model], [optimizer], "cpu")
        for _ in range(STEPS_OF_A_LOOK + 2):
            if with_look:
                look.next()
            step()
        look.close()
        gradients = [p.grad for p in model.parameters()]
        return [*model.state_dict().values(), *gradients, torch.get_rng_state(), random.random(), numpy.random.rand()]

    plain, watched = run(False), run(True)
    assert len(plain) == len(watched) > 5
    for one, other in zip(plain, watched, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_a_look_takes_so_many_steps_and_leaves_nothing() -> None:
    model = ConvNet()
    step, optimizer = training(model, images)
    look = Look([model], [optimizer], "cpu")
    answers = []
    while True:
        answers.append(look.next())
        if not answers[-1]:
            break
        assert not nothing_hangs()
        step()
    assert answers == [True] * STEPS_OF_A_LOOK + [False]
    assert nothing_hangs() and not optimizer._optimizer_step_pre_hooks
    assert look.next() is False
    assert look.facts([]).steps == 3


@pytest.mark.parametrize("steps", range(STEPS_OF_A_LOOK + 1))
def test_it_can_be_closed_at_any_time(steps: int) -> None:
    model = ConvNet()
    step, optimizer = training(model, images)
    facts = looked_at(step, [model], [optimizer], steps=steps)
    assert facts.steps == max(0, (steps - 1 if steps < 3 else steps - 2) if steps < 5 else 3)
    assert bool(facts.skipped) == (steps < 2)
    assert bool(facts.layers) == (steps >= 2)
    if 2 <= steps <= STEPS_OF_A_LOOK:  # the step that is counted has not ended
        assert all(layer.flops == 0 and layer.calls == 1 for layer in facts.layers)


def test_a_script_that_dies_inside_a_module_leaves_nothing() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    model = nn.Sequential(nn.Linear(4, 4), Failing())
    for steps_before in (0, 4):  # under the profiler, and under the mode
        look = Look([model], [], "cpu")
        for _ in range(steps_before):
            look.next()
        look.next()
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 4))
        look.close()
        look.close()
        assert nothing_hangs()


def test_our_own_mistakes_do_not_reach_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ConvNet()
    step, optimizer = training(model, images)
    look = Look([model], [optimizer], "cpu")
    monkeypatch.setattr(look._counter, "start", lambda: 1 / 0)
    while look.next():
        step()
    assert nothing_hangs()
    assert "ZeroDivisionError" in look.facts([]).skipped


def test_a_mode_of_the_scripts_above_ours_stays() -> None:
    model = nn.Linear(4, 4)
    step, optimizer = training(model, lambda: torch.ones(2, 4))
    look = Look([model], [optimizer], "cpu")
    for _ in range(4):
        look.next()
        step()
    look.next()
    theirs = FlopCounterMode(display=False)
    with theirs:
        step()
        assert look.next() is False
        assert modes._len_torch_dispatch_stack() == 1
        step()
    assert look.facts([]).peak_flops == {}  # it would have been counted as the script's
    assert nothing_hangs() and theirs.get_total_flops() == 2 * 2 * 2 * 4 * 4 * 2  # no gradient for the input


def test_a_forked_worker_carries_nothing() -> None:
    model = nn.Linear(4, 4)
    step, optimizer = training(model, lambda: torch.ones(2, 4))
    for boundaries in (2, STEPS_OF_A_LOOK):  # under the profiler, and under the mode
        look = Look([model], [optimizer], "cpu")
        for _ in range(boundaries):
            assert look.next()
            step()
        child = os.fork()
        if child == 0:
            hooks, stack = torch_module._global_forward_hooks, modes._len_torch_dispatch_stack()
            os._exit(1 if hooks or stack or optimizer._optimizer_step_pre_hooks else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not nothing_hangs()
        look.close()


def test_nothing_imports_torch_or_speaks() -> None:
    code = "import sys, hotlap.observe.look, hotlap.observe.look.timing; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = """if True:
        import torch
        from hotlap.observe.look import Look
        model = torch.nn.Linear(2, 2)
        look = Look([model], [], "cpu")
        while look.next():
            model(torch.ones(1, 2)).sum().backward()
        assert look.facts([]).steps == 3
    """
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == done.stderr == ""


def test_why_not() -> None:
    assert why_not() == ""
    with torch.autograd.profiler.profile():
        assert "running" in why_not()
    theirs = torch.profiler.profile()
    assert "of its own" in why_not()
    del theirs
    gc.collect()
    assert why_not() == ""


# flops, bytes, what is kept ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (lambda: ConvNet(1), images),
        (Transformer, words),
        (lambda: Transformer(True), words),
        (lambda: Transformer(False), words),
    ],
)
def test_flops_are_torchs_own(make, batch) -> None:
    model = make()
    step, optimizer = training(model, batch)
    with FlopCounterMode(display=False) as torchs:
        step()
    facts = looked_at(step, [model], [optimizer])
    assert sum(layer.flops for layer in facts.layers) == torchs.get_total_flops() > 0


def test_flops_outside_every_module_are_counted_apart() -> None:
    model, extra = nn.Linear(8, 8), torch.randn(8, 8, requires_grad=True)
    step, _ = training(model, lambda: torch.ones(4, 8) @ extra)
    look = Look([model], [], "cpu")
    while look.next():
        step()
    product = 2 * 4 * 8 * 8
    assert look._counter.tallies[None].flops == 2 * product  # forward, and the gradient of `extra`
    assert layers(look.facts([]))[""].flops == 3 * product
    assert look._counter.mistakes == 0


def test_four_times_the_work_is_four_times_the_flops() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    step, optimizer = training(model, lambda: torch.randn(6, 8, requires_grad=True))
    found = layers(looked_at(step, [model], [optimizer]))
    assert found["2"].flops == 4 * found["0"].flops == 4 * found["4"].flops
    assert found["0"].flops == 3 * 2 * 6 * 8 * 32  # forward, and the gradients of input and weight
    assert found["1"].flops == 0 and found["1"].moved_bytes == 6 * 32 * 4 * (2 + 3)
    assert found["1"].kind == "ReLU" and found["2"].parameters == 32 * 33
    assert all(layer.calls == 1 and layer.dtype == "float32" and layer.root == "Sequential" for layer in found.values())
    assert all(layer.forward_seconds > 0 and layer.backward_seconds > 0 for layer in found.values())


def test_bytes_moved() -> None:
    class Moves(nn.Module):
        def __init__(self, work: Callable[[torch.Tensor], torch.Tensor]) -> None:
            super().__init__()
            self.work = work

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.work(x)

    def moved(work: Callable[[torch.Tensor], torch.Tensor]) -> float:
        model = Moves(work)
        facts = looked_at(lambda: model(torch.ones(8, 8)), [model])
        return sum(layer.moved_bytes for layer in facts.layers)

    one = 8 * 8 * 4
    assert moved(lambda x: x.view(64).t()) == 0
    assert moved(lambda x: x + 1) == 2 * one
    assert moved(lambda x: x.add_(1)) == 2 * one
    assert moved(lambda x: x.zero_()) == one
    assert moved(lambda x: x + x) == 2 * one
    row = torch.ones(8)
    assert moved(lambda x: row.expand(8, 8) + 0) == 8 * 4 + one
    table, rows = torch.ones(1000, 8), torch.zeros(2, dtype=torch.long)
    assert moved(lambda x: F.embedding(rows, table)) == 2 * 2 * 8 * 4 + 2 * 8


def test_what_is_kept_for_backward() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Linear(32, 4))
    step, optimizer = training(model, lambda: torch.randn(16, 8))
    facts = looked_at(step, [model], [optimizer])
    found = layers(facts)
    wide = 16 * 32 * 4
    assert found["0"].saved_bytes == 0  # tanh keeps its result, not what it was given
    assert found["1"].saved_bytes == wide and found["2"].saved_bytes == wide
    assert 2 * wide < facts.activations < 3 * wide  # and the batch, and what the loss keeps


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_keeps_less_and_computes_more(reentrant: bool) -> None:
    def look_at(model: nn.Module) -> LookFacts:
        step, optimizer = training(model, words)
        return looked_at(step, [model], [optimizer])

    plain, again = look_at(Transformer()), look_at(Transformer(reentrant))
    assert again.activations < 0.7 * plain.activations
    before, after = layers(plain), layers(again)
    for name in ("blocks.0.to_all", "blocks.1.to_all", "blocks.0"):
        assert after[name].flops * 3 == before[name].flops * 4, name  # forward once more
        assert after[name].calls == 1 and after[name].backward_seconds > 0
    stops_early = not reentrant  # once all that backward needs is there again
    assert (after["blocks.1.out"].flops == before["blocks.1.out"].flops) == stops_early
    assert after["head"].flops == before["head"].flops
    assert again.unused == []


# whose work it is ----------------------------------------------------------------------------------------------------


def test_hand_written_attention_is_its_blocks_own_work() -> None:
    model = Transformer()
    step, optimizer = training(model, words)
    found = layers(looked_at(step, [model], [optimizer]))
    batch, length, width = 2, 12, 16
    assert found["blocks.1"].kind == "Block" and found["blocks.1"].parameters == 0
    assert found["blocks.1"].flops == 6 * 2 * batch * length * length * width  # two products, with two gradients each
    assert found["blocks.0.to_all"].flops == 3 * 2 * batch * length * width * 3 * width
    assert found["blocks.1"].forward_seconds > 0 and found["blocks.1"].backward_seconds > 0
    assert "blocks" not in found and found["words"].moved_bytes > 0
    assert found["blocks.0"].dtype == "float32"


def test_gradient_accumulation_and_calls() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(3):
            model(torch.ones(2, 8)).sum().backward()
        optimizer.step()

    found = layers(looked_at(step, [model], [optimizer]))["0"]
    assert found.calls == 3 and found.flops == 3 * 2 * (2 * 2 * 8 * 8)


def test_two_roots() -> None:
    class Maker(nn.Linear):
        pass

    class Judge(nn.Linear):
        pass

    maker, judge = Maker(4, 8), Judge(8, 1)
    one, other = (torch.optim.SGD(root.parameters(), lr=0.01) for root in (maker, judge))

    def step() -> None:
        other.zero_grad()
        judge(maker(torch.ones(2, 4)).detach()).sum().backward()
        other.step()
        one.zero_grad()
        judge(maker(torch.ones(2, 4))).sum().backward()
        one.step()

    facts = looked_at(step, [maker, judge], [one, other])
    found = {layer.root: layer for layer in facts.layers}
    assert set(found) == {"Maker", "Judge"} and found["Judge"].calls == found["Maker"].calls == 2
    product = 2 * 2 * 4 * 8
    assert found["Maker"].flops == 3 * product  # two forwards, one gradient of the weight
    assert facts.unused == []


# unused --------------------------------------------------------------------------------------------------------------


class Wasteful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.functional = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 10))
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 3)])
        self.spare = nn.Parameter(torch.zeros(7))
        self.cut = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.body:
            x = layer(x)
        x = F.linear(x, self.functional.weight, self.functional.bias)
        x = self.frozen(x) + self.cut(x).detach()
        return self.heads[0](x)


@pytest.mark.parametrize("clears_at_the_end", [False, True])
def test_unused(clears_at_the_end: bool) -> None:
    model = Wasteful()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if clears_at_the_end:
            model.zero_grad()

    facts = looked_at(step, [model], [optimizer])
    assert {(fact.name, fact.kind, fact.elements) for fact in facts.unused} == {
        ("head", "Sequential", 50 + 110),
        ("heads.1", "Linear", 15),
        ("spare", "parameter", 7),
        ("cut.weight", "parameter", 16),
        ("cut.bias", "parameter", 4),
    }


def test_nothing_is_called_unused_that_had_no_turn() -> None:
    idle, busy = nn.Linear(2, 2), nn.Linear(2, 2)
    step, optimizer = training(busy, lambda: torch.ones(1, 2))
    assert looked_at(step, [idle, busy], [optimizer]).unused == []
    assert looked_at(lambda: None, [idle]).unused == []


# remarks -------------------------------------------------------------------------------------------------------------


def test_notes_on_layers() -> None:
    busy = Tally(forward_flops=1000, flops=3000, moved_bytes=1000)
    assert notes(nn.Linear(512, 33708), busy, 0.5) == ["out 33708 is not a multiple of 8 (33712 is)"]
    assert notes(nn.Linear(259, 512), busy, 0.5) == ["in 259 is not a multiple of 8 (264 is)"]
    assert notes(nn.Linear(512, 33708), busy, 0.001) == []
    assert notes(nn.Linear(512, 10), busy, 0.5) == notes(nn.Conv2d(3, 64, 7), busy, 0.5) == []
    assert notes(nn.Conv2d(32, 32, 3, groups=32), busy, 0.5) == ["depthwise: 3.0 flops a byte"]
    assert notes(nn.Conv2d(64, 64, 3, groups=8), busy, 0.5) == ["8 groups: 3.0 flops a byte"]
    assert notes(nn.Conv2d(64, 64, 3, groups=2), busy, 0.5) == []
    assert notes(nn.Identity(), Tally(head_sizes={20}), 0.5) == ["head size 20 is not a multiple of 8 (24 is)"]


def test_unequal_widths() -> None:
    assert unequal_traffic(64, 64, 1e6) == 1
    assert unequal_traffic(16, 256, 1e9) == pytest.approx((16 + 256) / (2 * 64))

    def of(conv: nn.Conv2d) -> list[str]:
        positions = 1e6
        return notes(conv, Tally(int(positions * 2 * conv.in_channels * conv.out_channels), 1, 1), 0.5)

    assert of(nn.Conv2d(16, 256, 1)) == ["16 in, 256 out: 2.1 times the traffic of equal widths"]
    assert of(nn.Conv2d(64, 256, 1)) == of(nn.Conv2d(256, 64, 1)) == of(nn.Conv2d(16, 256, 3)) == []


def test_depthwise_is_named_in_a_real_look() -> None:
    model = ConvNet()
    step, optimizer = training(model, images)
    found = layers(looked_at(step, [model], [optimizer]))
    assert [note.partition(":")[0] for note in found["depth"].notes] == ["depthwise"]
    assert found["wide"].notes == found["first"].notes == []
    assert (
        found["wide"].flops == 16 * found["depth"].flops == 3 * 2 * 4 * 8 * 8 * 9 * 16 * 16
    )  # torch says more: #183405


def test_remarks_on_the_model() -> None:
    tiny, long = [2e-6] * 1000, [1e-3] * 1000
    few = {"aten::mm": 9.0, "aten::add": 1.0}
    many = {"aten::mm": 5.0, "aten::add": 3.0, "aten::copy_": 2.0}
    assert remarks(few, tiny[:50], 1, 1e-4, False) == remarks(few, long, 1, 1.0, True) == []
    assert remarks(few, tiny, 2, 1.0, True) == []  # it does not matter in so long a step
    (fragmented,) = remarks(few, tiny, 2, 5e-3, True)
    assert "500 kernels a step" in fragmented and "2.0 us" in fragmented
    assert remarks(many, long, 1, 1.0, False) == ["element-wise operations take 50% of the layers' time"]
    assert is_elementwise("aten::threshold_backward") and not is_elementwise("aten::convolution")
    assert not is_elementwise("mine::add") and not is_elementwise("aten::no_such_thing")


def test_peaks_are_measured_without_a_trace() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    flops, bandwidth = measure("cpu")
    assert set(flops) == {"float32"} and flops["float32"] > 1e8 and bandwidth > 1e7
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)
    assert measure("cuda") == ({}, 0.0) or torch.cuda.is_available()


# the device, without one ---------------------------------------------------------------------------------------------


def test_the_innermost_interval_counts() -> None:
    host = [("backward", 5.0, 8.0), ("forward", 1.0, 4.0), ("sync", 2.0, 3.0), ("wait", -1.0, 0.5)]
    assert pieces(host, 0.0, 10.0) == [
        (0.0, 0.5, "wait"),
        (0.5, 1.0, "other"),
        (1.0, 2.0, "forward"),
        (2.0, 3.0, "sync"),
        (3.0, 4.0, "forward"),
        (4.0, 5.0, "other"),
        (5.0, 8.0, "backward"),
        (8.0, 10.0, "other"),
    ]
    assert pieces([("update", 8.0, 12.0)], 0.0, 10.0)[-1] == (8.0, 10.0, "update")
    assert pieces([], 0.0, 1.0) == [(0.0, 1.0, "other")]


def test_the_devices_work_and_rest_by_share() -> None:
    host = pieces([("forward", 0.0, 2.0), ("backward", 2.0, 4.0)], 0.0, 6.0)
    kernels = [
        Kernel(1, -0.5, -0.4, 0.5),  # launched before the window, still running in it
        Kernel(1, 0.5, 1.0, 2.5),  # launched in forward, running into backward
        Kernel(1, 0.6, 2.0, 2.2),  # another stream
        Kernel(2, 2.5, 3.0, 3.5),
        Kernel(3, 3.0, 5.0, 7.0),  # launched in backward, past the end
    ]
    assert device_seconds(kernels, host) == pytest.approx({"forward": 1.7, "backward": 2.5})
    assert idle_seconds(kernels, host) == pytest.approx({"forward": 0.5, "backward": 1.0, "other": 1.0})
    assert idle_seconds([], host) == pytest.approx({"forward": 2.0, "backward": 2.0, "other": 2.0})


def op(number: int, start: float, end: float, name: str = "aten::x", sequence: int = -1, thread: int = 1) -> Op:
    return Op(number, thread, start, end, name, sequence, 1 if sequence >= 0 else 0)


def test_operations_are_nested_and_belong_to_nodes() -> None:
    run = "autograd::engine::evaluate_function: "
    found = nest(
        [
            op(1, 0, 10, "aten::linear", 5),
            op(2, 1, 3),
            op(3, 4, 9),
            op(4, 5, 6),
            op(5, 20, 30, run + "MmBackward0", 5, thread=2),
            op(6, 21, 29, thread=2),
            op(7, 31, 33, run + "torch::autograd::AccumulateGrad", -1, thread=2),
            op(8, 40, 41, thread=2),
        ]
    )
    assert {nested.op.id: nested.self_seconds for nested in found} == {1: 3, 2: 2, 3: 4, 4: 1, 5: 2, 6: 8, 7: 2, 8: 1}
    assert {nested.op.id for nested in found if nested.node == Node(5, 1)} == {5, 6, 7}
    assert {nested.op.id for nested in found if nested.node is None} == {1, 2, 3, 4, 8}
    assert {nested.op.id for nested in found if nested.is_outermost} == {1, 5, 7, 8}


class Event:
    """A kineto event as torch hands it out."""

    def __init__(self, name: str, start_us: int, end_us: int, kind: str = "cpu_op", **rest: Any) -> None:
        self._facts = {"thread": 1, "id": 0, "linked": 0, "sequence": -1, "origin": 0, **rest}
        self._name, self._start, self._end, self._type = name, start_us * 1000, end_us * 1000, kind
        self.name = lambda: name
        self.start_ns, self.end_ns = lambda: self._start, lambda: self._end
        self.duration_ns = lambda: self._end - self._start
        self.start_thread_id = lambda: self._facts["thread"]
        self.correlation_id = lambda: self._facts["id"]
        self.linked_correlation_id = lambda: self._facts["linked"]
        self.sequence_nr = lambda: self._facts["sequence"]
        self.fwd_thread_id = lambda: self._facts["origin"]
        self.is_user_annotation = lambda: "annotation" in kind
        on_host = kind in ("cpu_op", "user_annotation", "cuda_runtime")
        self.device_type = lambda: "DeviceType.CPU" if on_host else "DeviceType.CUDA"


@pytest.mark.parametrize("tells_its_kind", [True, False])
def test_kernels_find_their_operation_and_its_module(tells_its_kind: bool) -> None:
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    events = [
        Event("hotlap::0", 500, 510, "user_annotation", id=1),
        Event("hotlap::0", 500, 510, "gpu_user_annotation", id=1),
        Event("theirs", 0, 9000, "user_annotation", id=9),
        Event("aten::addmm", 1100, 1200, id=2, sequence=7),
        Event("cudaLaunchKernel", 1150, 1160, "cuda_runtime", id=2, linked=2),  # its own count, which may collide
        Event("gemm", 5000, 5300, "kernel", id=2, linked=2),
        Event(node, 2000, 2100, id=3, sequence=7, origin=1, thread=2),
        Event("aten::mm", 2010, 2090, id=4, thread=2),
        Event("cudaLaunchKernel", 2020, 2030, "cuda_runtime", id=5, linked=4, thread=2),
        Event("gemm", 6000, 6500, "kernel", id=5, linked=4),
        Event("Memcpy HtoD (Pageable -> Device)", 6600, 6610, "gpu_memcpy", id=8),
        Event("theirs", 5000, 6500, "gpu_user_annotation", id=9),
    ]
    if tells_its_kind:
        for event in events:
            event.activity_type = lambda event=event: event._type
    trace = _read(events, [(0, 100.0, 100.00002)])
    assert trace.threads == {1: 0}
    assert [o.name for o in trace.ops] == ["aten::addmm", node, "aten::mm"]
    zero = 100.000005 - 500e-6  # the mark of 10 us sits in the middle of the 20 us around it
    assert [kernel.launched - zero for kernel in trace.kernels] == pytest.approx([1150e-6, 2020e-6, 6600e-6])
    assert [kernel.op for kernel in trace.kernels] == [2, 4, 0]
    assert [kernel.is_transfer for kernel in trace.kernels] == [False, False, True]

    tracks = Tracks([nn.Sequential(nn.Linear(2, 2))])
    track = tracks.here()
    track.stamp(zero, 0)
    for stack, when, next_node in (([tracks.index[id(tracks.places[1].module)]], 1000e-6, 6), ([], 1300e-6, 8)):
        track.stack[:] = [Top(place, -1) for place in stack]
        track.stamp(zero + when, next_node)
    spent = times(trace, tracks, zero, zero + 1, on_device=True)
    assert spent.forward == pytest.approx({1: 300e-6}) and spent.backward[1] == pytest.approx(500e-6)
    assert spent.pieces == pytest.approx([300e-6, 500e-6])
    assert times(trace, tracks, zero + 1500e-6, zero + 1, on_device=True).forward == {}
    assert times(Trace(), tracks, 0, 1, on_device=True).pieces == []


def test_boundaries_inside_an_optimizers_hook() -> None:
    model = ConvNet()
    step, optimizer = training(model, images)
    look = Look([model], [optimizer], "cpu")
    answers = []
    handle = optimizer.register_step_post_hook(lambda *_: answers.append(look.next()))
    for _ in range(STEPS_OF_A_LOOK + 2):
        step()
    handle.remove()
    assert answers == [True] * STEPS_OF_A_LOOK + [False, False]
    assert nothing_hangs()
    facts = look.facts([])
    assert not facts.skipped and facts.unused == []
    assert layers(facts)["wide"].forward_seconds > 0 and layers(facts)["wide"].flops > 0


def test_a_script_that_compiles_is_looked_at_from_outside() -> None:
    """No hook, no mode: nothing that a compiler would find, or start again for."""
    torch._dynamo.reset()
    model = nn.Linear(3, 1)
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    look = Look([model], [optimizer], "cpu", script_compiles=True)

    def step() -> None:
        optimizer.zero_grad()
        compiled(torch.ones(2, 3)).sum().backward()
        optimizer.step()

    step()
    frames = torch._dynamo.utils.counters["frames"].copy()
    steps = 0
    while look.next():
        assert not torch_module._global_forward_pre_hooks and not torch_module._global_forward_hooks
        step()
        steps += 1
    assert torch._dynamo.utils.counters["frames"] == frames
    facts = look.facts([])
    assert steps == 4 and facts.steps == 3 and facts.layers == [] and "compiles" in facts.remarks[0]
