"""The few facts only torch itself can tell, asked in a process of its own.

A broken installation may hang, abort, or die of an instruction the processor announces but does not run; none of that
may reach the process that asks, and this process must not touch CUDA.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass

PROGRAM = """
import json, torch
facts = {"threads": torch.get_num_threads(), "cuda": None, "cuda_error": None, "cudnn": None}
try:
    torch.zeros(8, device="cuda").add_(1).sum().item()
    facts["cuda"] = True
except Exception as error:
    facts.update(cuda=False, cuda_error=(str(error).splitlines() or [type(error).__name__])[0])
if facts["cuda"]:
    facts["cudnn"] = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
print(json.dumps(facts), flush=True)
"""
# large enough that the library takes its matrix-tile path, where announced instructions have been seen to fail
HALF_PROGRAM = """
import torch
a = torch.ones(256, 256, dtype=torch.bfloat16)
(a @ a).sum().item()
"""


@dataclass(frozen=True)
class Probe:
    """What torch said. `cuda` is None where torch could not even be imported; `error` says why."""

    threads: int | None
    cuda: bool | None
    cuda_error: str | None
    cudnn: int | None
    half_ending: str | None  # how a bf16 product on the processor died, None for well
    error: str | None = None

    @classmethod
    def read(cls, seconds: float = 60.0) -> Probe:
        ending, output = _run(PROGRAM, seconds)
        half_ending, _ = _run(HALF_PROGRAM, seconds) if ending is None else (None, "")
        try:
            facts = json.loads(output.strip().splitlines()[-1])
        except (ValueError, IndexError):
            return cls(None, None, None, None, None, ending or "torch said nothing")
        return cls(facts["threads"], facts["cuda"], facts["cuda_error"], facts["cudnn"], half_ending)


def _run(program: str, seconds: float) -> tuple[str | None, str]:
    """How the program ended (None for well) and what it printed."""
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"no answer in {seconds:.0f} s", ""
    except OSError as error:
        return str(error), ""
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name, done.stdout
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1], done.stdout
    return None, done.stdout
