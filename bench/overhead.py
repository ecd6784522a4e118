"""What `hotlap run` with an empty plan costs a step: python and hotlap in turns, twenty pairs, the script's own clock.
The unit is the process. Writes bench/results/overhead.json."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

from hotlap.measure.stats import student_quantile
from hotlap.measure.tune import facts
from hotlap.observe.launch import Target

HERE = Path(__file__).resolve().parent
PAIRS = 20
LOOPS = {"short steps": ("64", "4000"), "longer steps": ("1024", "400")}
ARMS = {"python": [], "run": ["-m", "hotlap", "run", "--quiet", "--no-plan"]}


def step_seconds(arm: str, arguments: tuple[str, ...]) -> float:
    command = [sys.executable, *ARMS[arm], str(HERE / "loop.py"), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.strip().split("\n")[-1])


def main() -> None:
    results = {}
    for name, arguments in LOOPS.items():
        pairs = []
        for number in range(PAIRS):
            order = list(ARMS) if number % 2 == 0 else list(reversed(ARMS))
            taken = {arm: step_seconds(arm, arguments) for arm in order}
            pairs.append(taken)
            print(f"\r{name}: {number + 1} of {PAIRS}", end="", flush=True)
        differences = [pair["run"] - pair["python"] for pair in pairs]
        plain = statistics.median(pair["python"] for pair in pairs)
        mean = statistics.fmean(differences)
        reach = student_quantile(0.975, PAIRS - 1) * statistics.stdev(differences) / math.sqrt(PAIRS)
        allowed = max(0.01 * plain, 20e-6)
        verdict = "within" if mean + reach <= allowed else "not shown to be within"
        span = f"{1e6 * (mean - reach):.1f} to {1e6 * (mean + reach):.1f} us, 95 %"
        print(
            f"\r{name}: step {1e6 * plain:.0f} us, watching adds {1e6 * mean:.1f} us ({span}): "
            f"{verdict} the {1e6 * allowed:.0f} us allowed"
        )
        results[name] = {
            "step_seconds": plain,
            "added_seconds": mean,
            "low": mean - reach,
            "high": mean + reach,
            "allowed": allowed,
            "pairs": pairs,
        }
    about = facts(Target(str(Path("bench") / "loop.py")), 4 * PAIRS, "run --no-plan")
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "overhead.json").write_text(json.dumps({"facts": vars(about), "results": results}, indent=1))


if __name__ == "__main__":
    main()
