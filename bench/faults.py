"""Planted faults over many seeds: how often each is rejected, by what, and how often what is right is accepted.

    python bench/faults.py [--seeds 20] [--network cnn] [--only LabelSmoothing]

Three small trainings with the techniques of tests/measure/planted.py. Correctness only: nothing here is timed."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_TESTS = str(Path(__file__).resolve().parent.parent / "tests" / "measure")
sys.path.insert(0, _TESTS)
os.environ["PYTHONPATH"] = os.pathsep.join([_TESTS, *filter(None, [os.environ.get("PYTHONPATH")])])  # for trials
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # some virtual machines announce matrix units they refuse

import planted  # noqa: E402
from networks import NETWORKS, script  # noqa: E402

from hotlap.catalogue import find  # noqa: E402
from hotlap.measure.order import Order  # noqa: E402
from hotlap.measure.parity import STEPS, judge  # noqa: E402
from hotlap.measure.trial import Trials  # noqa: E402
from hotlap.technique import Choice, Parity  # noqa: E402


def cases(network: str) -> Iterator[tuple[str, list[Choice], bool]]:
    """What to hold against the script, and whether it is right."""
    for kind in planted.RIGHT:
        yield kind.__name__, [Choice(kind(), {})], True
    yield "loader-workers", [Choice(find("loader-workers"), {"num_workers": 2})], True
    yield "mixed-precision", [Choice(find("mixed-precision"), {"dtype": "bfloat16"})], True
    yield "fused-optimizer", [Choice(find("fused-optimizer"), {})], True
    if network == "cnn":
        yield "channels-last", [Choice(find("channels-last"), {})], True
    for kind in planted.WRONG:
        if network in kind.applies_to:
            yield kind.__name__, [Choice(kind(), {})], False
    for kind in planted.BESIDE_OTHER_DRAWS:
        yield f"{kind.__name__} + other draws", [Choice(planted.DropoutDrawsOthers(), {}), Choice(kind(), {})], False


def main() -> None:
    wishes = argparse.ArgumentParser(description=__doc__)
    wishes.add_argument("--seeds", type=int, default=20)
    wishes.add_argument("--network", choices=NETWORKS)
    wishes.add_argument("--only", default="")
    wish = wishes.parse_args()
    print(f"{'network':12} {'technique':38} {'is':6} {'rejected':>9}  by")
    with Trials() as trials, tempfile.TemporaryDirectory() as folder:
        for network in [wish.network] if wish.network else NETWORKS:
            rejected: Counter[tuple[str, bool]] = Counter()
            reasons: dict[str, Counter[str]] = {}
            for seed in range(wish.seeds):
                path = Path(folder, f"{network}_{seed}.py")
                path.write_text(script(network, seed))
                order = {"name": str(path), "cwd": folder, "steps": STEPS, "limit_seconds": 120.0}
                order["parity_folder"] = trials.exchange(f"{network}-{seed}")
                reference = trials.run(Order(parity="reference", **order)).parity
                for name, choices, is_right in cases(network):
                    if wish.only not in name:
                        continue
                    trial = trials.run(Order(parity="candidate", choices=[c.to_json() for c in choices], **order))
                    assert trial.parity is not None, trial.log
                    failed = [c for c in judge(Parity.EQUIVALENT, reference, reference, trial.parity) if not c.passed]
                    rejected[name, is_right] += bool(failed)
                    seen = reasons.setdefault(name, Counter())
                    seen.update(re.sub(r" \(.*|, of \d+", "", check.what) for check in failed[:1])
            for (name, is_right), count in rejected.items():
                why = ", ".join(f"{reason} {times}" for reason, times in reasons[name].most_common(3))
                print(f"{network:12} {name:38} {'right' if is_right else 'wrong':6} {count:4} of {wish.seeds}  {why}")


if __name__ == "__main__":
    main()
