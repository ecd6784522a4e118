"""Copies made early, on a real device: the right values, the right memory, no wait; and whole trainings that are the
same bit by bit. Kernels that sleep stand for a device that is behind the host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hotlap.catalogue import find
from hotlap.parts.cuda_copier import CudaCopier, pinned
from hotlap.parts.drawing_ahead import Prefetched
from hotlap.parts.early_copies import copy_early
from hotlap.technique import Choice, Parity

pytestmark = pytest.mark.gpu

LONG, SHORT = 2_000_000_000, 4_000_000  # cycles: about a second, about two milliseconds


class Recorded(CudaCopier):
    """Remembers the copies it made."""

    def __init__(self) -> None:
        super().__init__(here())
        self.made: list = []

    def copy(self, tensors):
        found = super().copy(tensors)
        self.made += found
        return found


class Unrecorded(CudaCopier):
    """The planted fault: the allocator is not told that the script's stream uses the copy too."""

    def hand_over(self, made, blocking):
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(made.flight.event)
        return made.copy


@pytest.fixture
def copier() -> Recorded:
    return Recorded()


SOURCES = {
    "plain": lambda: torch.randn(8, 3, 16, 16),
    "channels last": lambda: torch.randn(8, 3, 16, 16).contiguous(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(32, 8).t(),
    "with gaps": lambda: torch.randn(64, 8)[::2, :3],
    "expanded": lambda: torch.randn(8, 1).expand(8, 4),
    "offset": lambda: torch.randn(100)[7:],
    "number": lambda: torch.tensor(3),
    "bool": lambda: torch.randn(33) > 0,
    "bfloat16": lambda: torch.randn(33).bfloat16(),
    "int64": lambda: torch.arange(33),
    "complex": lambda: torch.randn(9, dtype=torch.complex64),
    "pinned": lambda: torch.randn(8, 3, 16, 16).clone().pin_memory(),
    "pinned, with gaps": lambda: torch.randn(64, 8).pin_memory()[::2, :3],
}


@pytest.mark.parametrize("kind", SOURCES)
def test_the_early_copy_is_what_torch_would_have_made(copier: Recorded, kind: str) -> None:
    tensor = SOURCES[kind]()
    expected = tensor.to("cuda")
    copy_early([tensor], copier)
    moved = tensor.to("cuda")
    assert moved is copier.made[0].copy, "not another copy"
    assert torch.equal(moved, expected)
    assert (moved.dtype, moved.device, moved.stride()) == (expected.dtype, expected.device, expected.stride())
    again = tensor.cuda()
    assert again.data_ptr() != moved.data_ptr() and torch.equal(again, expected)


def test_what_was_not_pinned_is_copied_from_pinned_memory() -> None:
    tensor = torch.randn(4, 5)
    room = pinned(tensor)
    assert room.is_pinned() and torch.equal(room, tensor)


def test_another_device_index_or_dtype_is_torchs(copier: Recorded) -> None:
    for call in (lambda x: x.to("cuda", torch.float64), lambda x: x.add_(1).cuda(), lambda x: x.half().cuda()):
        tensor = torch.randn(16)
        expected = call(tensor.clone())
        copy_early([tensor], copier)
        moved = call(tensor)
        assert moved is not copier.made[-1].copy and torch.equal(moved, expected)


def test_moving_waits_neither_for_the_device_nor_for_the_copy(copier: Recorded) -> None:
    for tensor, options in (
        (torch.randn(1000), {}),
        (torch.randn(1000), {"non_blocking": True}),
        (torch.randn(1000).pin_memory(), {"non_blocking": True}),
    ):
        copy_early([tensor], copier)  # once before, since new memory for either side may have to wait
        tensor.to("cuda", **options)
        torch.cuda.synchronize()
        with torch.cuda.stream(copier._stream):
            torch.cuda._sleep(LONG)  # the copy has not even begun
        torch.cuda._sleep(LONG)  # and the device is busy
        copy_early([tensor], copier)
        moved = tensor.to("cuda", **options)
        assert not copier._stream.query() and not torch.cuda.current_stream().query(), "the host has waited"
        assert torch.equal(moved.cpu(), tensor), "whoever reads it waits for it"


def test_the_original_may_be_written_to_once_it_was_moved(copier: Recorded) -> None:
    """Where the script did not ask for `non_blocking`."""
    for tensor in (torch.ones(1 << 20), torch.ones(1 << 20).pin_memory()):
        torch.cuda.synchronize()
        with torch.cuda.stream(copier._stream):
            torch.cuda._sleep(LONG // 4)
        copy_early([tensor], copier)
        moved = tensor.to("cuda")
        tensor.zero_()
        assert moved.min().item() == 1.0


def run(copier: CudaCopier, steps: int = 200, elements: int = 1 << 20) -> torch.Tensor:
    """A loop whose device is always behind, and which drops each batch as soon as its use is queued. Gives smallest
    and largest value of each batch as the device saw them, which must both be the batch's number."""
    seen = torch.full((2, steps), -1.0, device="cuda")

    def batches():
        for step in range(steps):
            yield (
                torch.full((elements,), float(step)) if step % 2 else torch.full((elements,), float(step)).pin_memory()
            )

    loop = iter(Prefetched(batches(), "cuda", copier=copier))
    for step in range(steps):
        batch = next(loop)
        torch.cuda._sleep(SHORT)
        seen[0, step] = batch.min()
        seen[1, step] = batch.max()
        del batch  # nobody else holds it
    return seen.cpu()


def here() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def test_memory_is_not_given_away_while_the_device_still_needs_it() -> None:
    assert torch.equal(run(CudaCopier(here())), torch.arange(200.0).expand(2, 200))


def test_and_that_test_can_fail() -> None:
    assert not torch.equal(run(Unrecorded(here())), torch.arange(200.0).expand(2, 200))


def test_a_host_that_is_far_ahead_does_not_fill_the_device() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    run(CudaCopier(here()), elements=16 << 20)  # 64 MiB each
    assert torch.cuda.max_memory_reserved() - before < 16 * (64 << 20)


def test_small_batches_do_not_hold_it_up() -> None:
    copier = CudaCopier(here())
    for is_asleep in (False, True):  # new memory may have to wait for the device
        torch.cuda.synchronize()
        if is_asleep:
            torch.cuda._sleep(LONG)
        totals = [
            batch.sum() for batch in Prefetched([torch.full((8,), float(n)) for n in range(20)], "cuda", copier=copier)
        ]
        assert is_asleep != torch.cuda.current_stream().query()
        assert [total.item() for total in totals] == [8.0 * number for number in range(20)]


def test_used_on_a_stream_of_the_scripts_own(copier: Recorded) -> None:
    tensor, stream = torch.arange(1000.0), torch.cuda.Stream()
    copy_early([tensor], copier)
    with torch.cuda.stream(stream):
        total = tensor.to("cuda").sum()
    stream.synchronize()
    assert total.item() == tensor.sum().item()


def test_a_device_without_memory_is_no_trouble_of_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotlap.parts.batch_habits import Habits

    habits = Habits(CudaCopier)
    for _ in range(3):
        batch = [torch.ones(8)]
        habits.learn(batch)
        batch[0].cuda()
    assert habits.known

    def out_of_memory(self, tensors):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(CudaCopier, "copy", out_of_memory)
    habits.begin_copies([torch.ones(8)], 2)
    assert "out of memory" in habits.refused and not habits.known


# whole trainings ------------------------------------------------------------------------------------------------------

SCRIPT = """
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        x = torch.sin(torch.arange(256) * (index + 1) / 64)
        return {"x": x, "more": [index % 10]}

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Rows(), batch_size=32, shuffle=True, num_workers=2)
for epoch in range(4):
    for batch in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch["x"].to("cuda")), batch["more"][0].cuda())
        loss.backward()
        optimizer.step()
"""
PREFETCH = Choice(find("device-prefetch"), {"ahead": 2})
SAME_BITS = {
    "alone": [PREFETCH],
    "pinned": [Choice(find("pinned-batches"), {}), PREFETCH],
    "lasting workers": [Choice(find("persistent-workers"), {}), PREFETCH],
    "kept samples": [Choice(find("resident-dataset"), {}), PREFETCH],
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("choices", SAME_BITS.values(), ids=SAME_BITS)
def test_the_losses_are_the_same(run_script, script: Path, choices: list[Choice]) -> None:
    plain, applied = run_script(script), run_script(script, choices)
    assert plain.good and applied.good, applied.log
    assert applied.run.withdrawn == [] and applied.run.steps == plain.run.steps == 64
    assert PREFETCH.technique.seen(plain.run) is False and PREFETCH.technique.seen(applied.run) is True
    assert len(plain.run.losses) == 64 and applied.run.losses == plain.run.losses


def test_beside_a_compiled_model_with_graphs(run_script, script: Path) -> None:
    compiled = Choice(find("compiled-model"), {"mode": "reduce-overhead"})
    for choices in ([PREFETCH, compiled], [compiled, PREFETCH]):
        applied = run_script(script, choices)
        assert applied.good and applied.run.withdrawn == [], applied.log
        assert PREFETCH.technique.seen(applied.run) is True and applied.run.steps == 64


@pytest.mark.parametrize("choices", SAME_BITS.values(), ids=SAME_BITS)
def test_forced_steps_agree(check_same, script: Path, choices: list[Choice]) -> None:
    check_same(script, choices, Parity.IDENTICAL)
