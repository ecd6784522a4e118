"""What `profile` counted of layers and parameters, in one sentence with figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotlap.catalogue import find
from hotlap.measure.candidates import Skipped, consider
from hotlap.observe.run import Run
from hotlap.observe.scrutiny_facts import LayerFacts, LookFacts

FIXTURES = Path(__file__).resolve().parent.parent / "catalogue"


def reason(name: str, run: Run) -> str:
    found = consider(find(name), run)
    assert isinstance(found, Skipped)
    return found.reason


def layer(name: str, flops: float, moved: float, seconds: float = 1.0, notes: tuple[str, ...] = ()) -> LayerFacts:
    return LayerFacts("Net", name, "Conv2d", 1, seconds, 0.0, flops, moved, 0.0, 9, "float32", list(notes))


def looked(*layers: LayerFacts, remarks: tuple[str, ...] = ()) -> Run:
    look = LookFacts(1, list(layers), remarks=list(remarks), peak_flops={"float32": 1e12}, peak_bandwidth=1e11)
    return Run("2.11", "cpu", look=look)


def test_layers_that_wait_for_memory_are_named_with_figures() -> None:
    dense, thin = layer("dense", 5e8, 1e6, 3.0), layer("thin", 2e6, 1e6, notes=("depthwise: 2.0 flops a byte",))
    assert reason("lean-layers", looked(dense, thin)) == (
        "1 of 2 convolutions wait for memory, not for arithmetic:"
        " thin (2 MFLOP on 1 MB, 25% of the layers' time; depthwise: 2.0 flops a byte)"
    )
    assert reason("lean-layers", looked(dense)) == (
        "none of the 1 convolutions moves too many bytes for its arithmetic"
    )
    assert reason("lean-layers", looked(dense, remarks=("fragmented: 900 kernels a step",))).startswith("fragmented")
    short = layer("short", 2e6, 1e6, 0.001)
    assert "none of the 2" in reason("lean-layers", looked(dense, short)), "too short to be felt"


def test_a_profile_names_the_depthwise_layer(run_script) -> None:
    trial = run_script(FIXTURES / "lean_layers" / "before.py", steps=8, closely=True)
    assert trial.run is not None and trial.run.look.layers, trial.log
    depthwise = next(one for one in trial.run.look.layers if one.notes and "depthwise" in one.notes[0])
    said = reason("lean-layers", trial.run)
    if depthwise.moved_bytes * trial.run.look.peak_flops["float32"] > depthwise.flops * trial.run.look.peak_bandwidth:
        assert "depthwise" in said


@pytest.mark.parametrize("closely", [False, True])
def test_unused_parts_are_named_with_their_size(run_script, closely: bool) -> None:
    """Without a look from the gradients of the first updates; with one also which modules were never called."""
    trial = run_script(FIXTURES / "used_parameters" / "before.py", steps=8, closely=closely)
    assert trial.run is not None, trial.log
    said = reason("used-parameters", trial.run)
    assert said.startswith("60 of 192 parameters (31.2%) were never used: ")
    assert ("auxiliary (Linear, never called, 55), scale (5)" in said) == closely
    assert ("auxiliary.weight (50)" in said) != closely


def test_a_model_that_uses_all_it_has(run_script) -> None:
    trial = run_script(FIXTURES / "lean_layers" / "before.py")
    assert trial.run is not None
    assert reason("used-parameters", trial.run) == "no parameter was seen to go without a gradient"
