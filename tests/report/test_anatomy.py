from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hotlap.report import anatomy, folder, wording
from hotlap.report.profile_findings import Bound, Growth, Sync

from . import samples


@pytest.mark.parametrize(
    ("count", "hit", "said"),
    [
        (400, 400, "every step"),
        (396, 396, "every step"),  # the last of an epoch may do without
        (1200, 400, "3 a step"),
        (600, 400, "1.5 a step"),
        (8, 8, "1 in 50 steps"),
        (24, 8, "1 in 50 steps, 3 each"),
        (300, 300, "in 75 % of steps"),
        (1, 1, "1 in 400 steps"),
        (0, 0, "evaluation only"),
        (400, 0, "every step"),  # in how many steps is not known
        (1200, 0, "3 a step"),
    ],
)
def test_how_often_a_line_waits(count: int, hit: int, said: str) -> None:
    assert anatomy.how_often(Sync("a.py", 1, count, 1.0, "item", hit), 400) == said


def test_without_steps_only_the_number_is_said() -> None:
    assert anatomy.how_often(Sync("a.py", 1, 7, 1.0), 0) == "7 times"
    assert anatomy.cost(Sync("a.py", 1, 7, 1.0), 0) == "not known"


def test_the_most_expensive_wait_is_first_and_evaluation_is_not_blamed() -> None:
    syncs = [Sync("a.py", 1, 1, 0.1), Sync("a.py", 2, 0, 9.0, "item", 0, 5), Sync("a.py", 3, 1, 0.7)]
    syncs.append(Sync("a.py", 4, 1, math.nan))
    report = replace(samples.profile(), syncs=syncs)
    assert [sync.line for sync in anatomy.waits(report)] == [3, 1, 4]
    assert [sync.line for sync in anatomy.not_blamed(report)] == [2]


def test_the_parts_of_the_peak_add_up_to_it() -> None:
    memory = {"peak": 100.0, "weights": 20.0, "activations": 50.0, "fragmentation": 40.0, "total": 900.0, "free": 700.0}
    assert anatomy.composition(memory) == [("activations", 50.0), ("weights", 20.0), (anatomy.REST, 30.0)]
    assert anatomy.composition({"peak": 100.0}) == []
    assert anatomy.composition({"peak": math.nan, "weights": 20.0, "activations": math.nan}) == [("weights", 20.0)]


def test_a_processor_launches_no_kernels() -> None:
    report = replace(samples.profile(), bound=Bound("launch", []))
    assert anatomy.headline(replace(report, device="cuda")).endswith("bound by kernel launches")
    assert anatomy.headline(replace(report, device="cpu")).endswith("bound by small operations")


def test_a_headline_claims_no_bound_that_is_not_known() -> None:
    assert anatomy.headline(samples.profile()) == "19.0 ms a step, bound by data"
    assert anatomy.headline(replace(samples.profile(), bound=Bound("unknown", []))) == "19.0 ms a step"


def test_a_bad_end_is_told_and_a_good_one_is_not_a_failure() -> None:
    report = samples.profile()
    assert anatomy.timed(report) == "391 steps, 8 of them warm-up, then stopped"
    assert anatomy.failure(report) == ""
    raised = replace(report, ending="raised: ValueError: no\nmore")
    assert anatomy.failure(replace(raised, ending="raised: KeyboardInterrupt:")).endswith(": KeyboardInterrupt")
    assert anatomy.failure(raised) == "the script ended early: ValueError: no more"
    for text in (folder.render(raised, format) for format in ("text", "html", "md", "tex")):
        assert "he script ended early: ValueError: no more" in text


def test_growth_names_the_line_where_it_is_known() -> None:
    assert anatomy.growth(Growth(2.0**20, "a.py", 3, "losses", "kept with its graph")) == (
        "1.0 MiB a step at a.py:3: losses, kept with its graph"
    )
    assert anatomy.growth(Growth(2.0**20, "", 0, "", "")) == "1.0 MiB a step"


def test_two_models_are_told_apart() -> None:
    report = samples.profile()
    first = report.layers[0]
    assert anatomy.layer_name(first, report) == first.name
    both = replace(report, layers=[first, replace(first, root="Discriminator")])
    assert [anatomy.layer_name(one, both) for one in both.layers] == [
        f"ResNet.{first.name}",
        f"Discriminator.{first.name}",
    ]
    assert anatomy.layer_name(replace(first, name=""), both) == "ResNet"


def test_evaluation_is_told_apart_from_the_steps() -> None:
    assert anatomy.evaluation(samples.profile()) == "1.61 s in 2 passes, 70 % of it wait"
    assert anatomy.evaluation(samples.cpu_profile()) == ""


def test_the_next_command_has_the_arguments() -> None:
    report = replace(samples.profile(), script="my train.py", arguments=["--name", "two words", "$HOME"])
    assert wording.next_commands(report) == ["hotlap tune 'my train.py' --name 'two words' '$HOME'"]
    assert wording.next_commands(replace(report, verdicts=[])) == []
    module = replace(report, script="-m package.train", arguments=["--fast"])
    assert wording.next_commands(module) == ["hotlap tune -m package.train --fast"]


def test_shared_memory_is_told_by_what_is_free_of_it() -> None:
    text = folder.render(samples.PROFILES["rich"](), "html")
    assert "Shared memory: 31.0 GiB of 32.0 GiB free." in text
