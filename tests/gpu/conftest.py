import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hotlap.measure.order import Order
from hotlap.measure.parity import STEPS, ParityCheck, judge
from hotlap.technique import Choice, Parity

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "measure"))  # for the planted techniques

Held = Callable[[Sequence[Choice]], list[ParityCheck]]


@pytest.fixture(scope="session")
def held_against(trials) -> Callable[..., Held]:
    """`held_against(script)` trains twice without any technique; what it gives trains with some, and judges that:
    `held_against(script)([choice])`."""
    scripts = 0

    def prepared(script: Path, expected: Parity = Parity.EQUIVALENT) -> Held:
        nonlocal scripts
        scripts += 1
        store = trials.exchange(f"parity-{scripts}")

        def run(role: str, choices: Sequence[Choice] = ()):
            order = Order(name=str(script), cwd=str(script.parent), steps=STEPS, parity=role, parity_folder=store,
                          limit_seconds=400.0, kept_folder=trials.exchange("compiled"),
                          choices=[one.to_json() for one in choices])  # fmt: skip
            trial = trials.run(order)
            assert trial.parity is not None and trial.run.withdrawn == [], trial.log
            return trial.parity

        reference, repeat = run("reference"), run("candidate")
        return lambda choices: judge(expected, reference, repeat, run("candidate", choices))

    return prepared


@pytest.fixture(scope="session")
def check_same(held_against) -> Callable[..., None]:
    """`check_same(script, [choice])`: it is the same training."""

    def check(script: Path, choices: Sequence[Choice], expected: Parity = Parity.EQUIVALENT) -> None:
        assert [one for one in held_against(script, expected)(choices) if not one.passed] == []

    return check
