from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotlap import plan as plans
from hotlap.catalogue import find
from hotlap.errors import HotlapError
from hotlap.plan import Entry, Plan


def plan_for(path: Path) -> Plan:
    path.write_text("import torch\n")
    entries = [
        Entry("loader-workers", {"num_workers": 4}, 1.5),
        Entry("sample-cache", {}, 2.0),
    ]
    return Plan(
        path.name,
        plans.fingerprint(str(path)),
        "--lr 3",
        'a "quoted"\\ word\n',
        "a machine",
        "2.13.0",
        "cpu",
        3.0,
        2.9,
        3.1,
        entries,
    )


def test_there_and_back(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    plan = plan_for(script)
    plans.write(str(script), plan)
    assert plans.read(str(script)) == plan
    assert [str(choice.technique.id) for choice in plan.choices(find)] == ["loader-workers", "sample-cache"]


def test_two_scripts_share_a_folder(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    plans.write(str(one), plan_for(one))
    plans.write(str(two), plan_for(two))
    plans.write(str(one), replace(plan_for(one), ratio=4.0))
    assert plans.read(str(one)).ratio == 4.0 and plans.read(str(two)).ratio == 3.0
    plans.remove(str(one))
    assert plans.read(str(one)) is None and plans.read(str(two)) is not None
    plans.remove(str(two))
    assert not (tmp_path / "hotlap.toml").exists()


def test_what_no_longer_matches_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    plan = plan_for(script)
    assert plan.mismatches(str(script), "--lr 3", "a machine", "2.13.0") == []
    script.write_text("import torch  # changed\n")
    assert plan.mismatches(str(script), "", "another", "2.12.0") == [
        "the script",
        "the arguments",
        "the machine",
        "torch",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "not = [toml",
        "version = 2\n",
        "version = 1\n[[plan]]\nscript = 'x'\n",
        "version = 1\nplan = 3\n",
        "version = 1\nplan = ['x']\n",
    ],
)
def test_a_file_that_is_no_plan_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "hotlap.toml").write_text(text)
    with pytest.raises(HotlapError, match="tune again"):
        plans.read(str(tmp_path / "train.py"))
