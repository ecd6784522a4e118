"""One contract over the whole catalogue. A technique is checked for the verbs it has, and for nothing else.

Expectations live in tests/catalogue/<technique>/ as files; `pytest --accept` writes them from what is produced."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from contract_rules import broken_promises, findings_text

from hotlap.catalogue import TECHNIQUES, find
from hotlap.measure.trial import Trial
from hotlap.source.fix import rewritten
from hotlap.source.module import Source
from hotlap.technique import Choice, Parity, Technique

FIXTURES = Path(__file__).resolve().parent.parent / "catalogue"
PARAMETERS = [pytest.param(technique, id=technique.id) for technique in TECHNIQUES]


def folder(technique: Technique) -> Path:
    return FIXTURES / technique.id.replace("-", "_")


def needs(technique: Technique, *verbs: str) -> None:
    missing = [verb for verb in verbs if verb not in technique.verbs]
    if missing:
        pytest.skip(f"{technique.id} does not {missing[0]}")


def written(technique: Technique, path: Path) -> str:
    """As a plan is: also where a technique only likely helps."""
    return rewritten(Source.read(path), [(technique, technique.default)], unsafe=True, doubtful=True).text


def runnable(technique: Technique) -> None:
    if technique.needs.device == "cuda" and not torch.cuda.is_available():
        pytest.skip(f"{technique.id} needs a CUDA device to run")
    if technique.needs.package:
        pytest.importorskip(technique.needs.package)


@pytest.fixture
def run_before(run_script) -> Callable[[Technique], Trial]:
    """What before.py does as it is, run once for all who ask."""

    def run(technique: Technique) -> Trial:
        if technique.id not in _ran:
            _ran[technique.id] = run_script(folder(technique) / "before.py")
        return _ran[technique.id]

    return run


_ran: dict[str, Trial] = {}


@pytest.mark.parametrize("technique", PARAMETERS)
def test_promises(technique: Technique) -> None:
    assert broken_promises(technique, FIXTURES) == []


@pytest.mark.parametrize("technique", PARAMETERS)
def test_before_is_spotted_exactly(technique: Technique, request: pytest.FixtureRequest) -> None:
    needs(technique, "spot")
    expected = folder(technique) / "findings.txt"
    produced = findings_text(technique, folder(technique) / "before.py")
    if request.config.getoption("--accept"):
        expected.write_text(produced)
    assert produced == expected.read_text()
    assert produced, "before.py shows a mistake, so something must be spotted"


@pytest.mark.parametrize("technique", PARAMETERS)
def test_untouched_is_left_alone(technique: Technique) -> None:
    needs(technique, "spot")
    path = folder(technique) / "untouched.py"
    assert findings_text(technique, path) == ""
    if "rewrite" in technique.verbs:
        assert written(technique, path) == path.read_text()


@pytest.mark.parametrize("technique", PARAMETERS)
def test_before_becomes_after(technique: Technique, request: pytest.FixtureRequest) -> None:
    needs(technique, "spot", "rewrite")
    after = folder(technique) / "after.py"
    produced = written(technique, folder(technique) / "before.py")
    if request.config.getoption("--accept"):
        after.write_text(produced)
    assert produced == after.read_text()
    ast.parse(produced)
    assert findings_text(technique, after) == "", "what was fixed must not be found again"
    assert written(technique, after) == produced


@pytest.mark.parametrize("technique", PARAMETERS)
def test_source_and_process_agree(technique: Technique, run_script, run_before) -> None:
    """Running before.py it is not seen; running after.py it is; running before.py with `apply` it is."""
    needs(technique, "seen")
    runnable(technique)
    before = run_before(technique)
    assert before.good, before.log
    assert technique.seen(before.run) is False
    if "rewrite" in technique.verbs:
        after = run_script(folder(technique) / "after.py")
        assert after.good, after.log
        assert technique.seen(after.run) is True
    if "apply" in technique.verbs:
        applied = run_script(folder(technique) / "before.py", [Choice(technique, technique.default)])
        assert applied.good, applied.log
        assert applied.run.withdrawn == []
        assert technique.seen(applied.run) is True
        assert applied.run.steps == before.run.steps


@pytest.mark.parametrize("technique", PARAMETERS)
def test_says_what_it_could_gain(technique: Technique, run_before) -> None:
    needs(technique, "settings")
    runnable(technique)
    before = run_before(technique)
    run = replace(before.run, instructions=())  # whatever processor this is
    tries = technique.settings(run)
    reason = folder(technique) / "cannot_help.txt"  # of advice that only gives figures
    if reason.exists():
        assert re.search(reason.read_text().strip(), getattr(tries, "reason", "")), tries
    elif technique.needs.device in (None, run.device):
        assert not hasattr(tries, "reason"), f"{tries}; its trial ended by {before.ending}: {before.log[-2000:]}"
        assert all(0 <= attempt.most <= 1 for attempt in tries)
        assert not any(technique.why_not(attempt.setting) for attempt in tries), "a plan may hold any of them"
        assert technique.parity(run) in Parity


@pytest.mark.parametrize("technique", PARAMETERS)
def test_undo_leaves_no_trace(technique: Technique, run_script, tmp_path: Path) -> None:
    """The fixture trains in a process with the technique applied; after undo, torch is as it was, object by object."""
    needs(technique, "apply")
    if technique.needs.package and find_spec(technique.needs.package) is None:
        pytest.skip(f"{technique.id} needs {technique.needs.package}")
    script = tmp_path / "undo.py"
    script.write_text(UNDO.format(before=str(folder(technique) / "before.py"), technique=technique.id))
    trial = run_script(script, watched=False)
    assert "left behind: []" in trial.log, trial.log


UNDO = f"""
import sys
sys.path.insert(0, {str(Path(__file__).resolve().parent)!r})
from attach_points import snapshot, changed
from hotlap.catalogue import find
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
import torch, torch.utils.data, PIL.Image

for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
    kind([torch.zeros(1, requires_grad=True)], lr=0.1)  # torch itself wraps `step` when the first one is built
technique = find({{technique!r}})
if technique.traits & {{{{"compiled", "traced"}}}}:  # what dynamo does to torch when first used is its own
    torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(1))
before = snapshot()
patch = Patch(Joints())
technique.apply(patch, technique.default)
assert changed(before, snapshot()), "nothing was attached, so this test could not fail"
names = {{{{"__name__": "__main__", "__file__": {{before!r}}}}}}
exec(compile(open({{before!r}}).read(), {{before!r}}, "exec"), names)
kept = [value for value in names.values() if isinstance(value, (torch.nn.Module, torch.optim.Optimizer))]
patch.undo()
left = changed(before, snapshot())
left += [type(one).__name__ for one in kept if "_compiled_call_impl" in vars(one)]
left += [type(one).__name__ for one in kept if getattr(one, "defaults", {{{{}}}}).get("fused")]
print("left behind:", left)
"""


def test_find_knows_ids_and_aliases() -> None:
    for technique in TECHNIQUES:
        assert find(technique.id) is technique
        for alias in technique.aliases:
            assert isinstance(find(alias), Technique)


def test_the_catalogue_is_read_without_torch() -> None:
    for technique in TECHNIQUES:
        top = ast.parse(Path(inspect.getfile(type(technique))).read_text()).body
        names = [alias.name for node in top if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in top if isinstance(node, ast.ImportFrom)]
        assert not any(name.split(".")[0] == "torch" for name in names), technique.id
