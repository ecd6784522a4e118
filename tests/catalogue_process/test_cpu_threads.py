"""The number of threads on a processor: which are tried, what is set, and who has the last word."""

from __future__ import annotations

import pytest
import torch

from hotlap.catalogue import find
from hotlap.measure.candidates import Candidate, Skipped, consider
from hotlap.observe.run import LoaderFacts, RootFacts, Run


@pytest.fixture(autouse=True)
def as_many_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_set_and_put_back(apply) -> None:
    patch = apply("cpu-threads", {"threads": 1})
    assert torch.get_num_threads() == 1
    patch.undo()
    assert torch.get_num_threads() == 2


def test_the_script_has_the_last_word(apply) -> None:
    patch = apply("cpu-threads", {"threads": 1})
    torch.set_num_threads(3)
    assert torch.get_num_threads() == 3
    assert "the script sets the number" in patch.joints.withdrawn[0]


def test_loader_workers_do_not_count_as_the_script(apply) -> None:
    patch = apply("cpu-threads", {"threads": 1})
    space = {"torch": torch}
    exec(compile("torch.set_num_threads(1)", torch.__file__, "exec"), space)  # as torch's own worker loop does
    assert torch.get_num_threads() == 1 and patch.joints.withdrawn == []


def run(cores: int, threads: int, elements: int = 10**7, workers: int = 0, device: str = "cpu") -> Run:
    root = RootFacts("Net", elements, {}, False, False, (2,), ("float32",), None, False, None)
    loader = LoaderFacts("D", 8, workers, None, False, False, False, True, 9, False, "fork", trains=True)
    return Run("2.13", device, roots=[root], loaders=[loader], cores=cores, threads=threads,
               step_parts=[[0, 0, 1, 1, 1, 0, 0]])  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "tried"),
    [
        (run(2, 2, 1000), [1]),
        (run(8, 8, 1000, workers=2), [1, 6, 4]),
        (run(8, 8), [4]),
        (run(8, 1), [4, 8]),
        (run(8, 8, workers=8), [4]),
    ],
    ids=["small", "small with workers", "large", "held back", "workers on all cores"],
)
def test_which_are_tried(seen: Run, tried: list[int]) -> None:
    verdict = consider(find("set_num_threads"), seen)
    assert isinstance(verdict, Candidate) and [one.setting["threads"] for one in verdict.tries] == tried


def test_more_threads_promise_no_more_than_they_can_share() -> None:
    held_back, crowded = consider(find("cpu-threads"), run(8, 1)), consider(find("cpu-threads"), run(8, 8, 1000))
    assert isinstance(held_back, Candidate) and isinstance(crowded, Candidate)
    assert [one.most for one in held_back.tries] == pytest.approx([3 / 4, 7 / 8])
    assert [one.most for one in crowded.tries] == [1, 1], "how much crowding costs, nobody knows"


@pytest.mark.parametrize(
    ("seen", "reason"), [(run(2, 2), "no other number"), (run(8, 8, device="cuda"), "needs cpu")], ids=["large", "cuda"]
)
def test_where_it_is_not_tried(seen: Run, reason: str) -> None:
    verdict = consider(find("cpu-threads"), seen)
    assert isinstance(verdict, Skipped) and reason in verdict.reason
