"""Does a tuning leave a trace? Many in a row, half of them killed at random moments, in both kinds of sandbox.

Each tunes a small script that writes wherever scripts write: beside itself, to an absolute path, home, the temporary
folder and shared memory. After each, the folders must be as they were, byte for byte; no process and no shared memory
may be left, and hotlap.toml must be absent or whole. A tuner that was killed outright cannot remove its own temporary
folder: the next one to run to its end must have done so. Exits
with 1 if anything was left."""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from hotlap import evidence, plan
from hotlap.errors import HotlapError
from hotlap.measure import landlock, sandbox
from hotlap.measure.scratch import PREFIX

WAYS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGKILL to its group")
OWN = {plan.FILE, evidence.FILE, "hotlap-report"}  # what a tuning is there to write
SHARED = re.compile(r"(torch_|psm_|sem\.mp-)")
GRACE_SECONDS, PATIENCE_SECONDS = 10.0, 300.0
MARK = "HOTLAP_KILLED_MARK"

SCRIPT = """
import os, sys, tempfile
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

torch.multiprocessing.set_sharing_strategy("file_system")
HERE = os.path.dirname(os.path.abspath(__file__))
LOGS = [sys.argv[1] + "/log.txt", os.path.expanduser("~/log.txt"), tempfile.gettempdir() + "/log.txt"]

class Photos(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        image = Image.open(f"{HERE}/photos/{i % 8}.png").convert("RGB").resize((8, 8), Image.NEAREST)
        return torch.from_numpy(np.asarray(image).astype("float32") / 255).flatten(), i % 2

model = torch.nn.Sequential(torch.nn.Linear(192, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(Photos(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
for epoch in range(int(sys.argv[2])):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), f"{HERE}/model.pt")
    os.makedirs(f"{HERE}/checkpoints", exist_ok=True)
    torch.save(model.state_dict(), f"{HERE}/checkpoints/{epoch}.pt")
    for path in LOGS:
        with open(path, "a") as log:
            log.write(f"{epoch} {loss.item()}\\n")
"""


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    """Every name below a folder with its kind and mode, and for what is no folder its time and bytes. A folder's own
    time says only that a name came or went, and hotlap.toml may."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        about = path.lstat()
        if stat.S_ISDIR(about.st_mode):
            found[str(path)] = (about.st_mode,)
        else:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(about.st_mode) else ""
            found[str(path)] = (about.st_mode, about.st_mtime_ns, content)
    return found


@dataclass
class Place:
    """A project with something to spoil, and a home, a temporary folder and an absolute path of its own. Their names
    are short: torch puts a socket into the temporary folder, and its path may have 107 characters."""

    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="k-", dir="/var/tmp")))
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    outright: set[int] = field(default_factory=set)  # tuners that had no chance to tidy up

    def __post_init__(self) -> None:
        for name in ("project/photos", "home", "t", "elsewhere"):
            (self.root / name).mkdir(parents=True)
        (self.project / "train.py").write_text(SCRIPT)
        (self.project / "model.pt").write_bytes(b"a checkpoint of last week")
        (self.root / "elsewhere" / "log.txt").write_text("a log of last week\n")
        _draw_photos(self.project / "photos")
        self.shared: set[str] = set()
        self.accept()

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def temp(self) -> Path:
        return self.root / "t"

    def environment(self, kind: str) -> dict[str, str]:
        own = {"HOME": str(self.root / "home"), "TMPDIR": str(self.temp), "HOTLAP_SANDBOX": kind, MARK: self.mark}
        # the tuner's own charts: where it keeps a list of fonts is no business of the script's home
        return {**os.environ, **own, "MPLCONFIGDIR": str(self.root / "fonts"), "OMP_NUM_THREADS": "1"}

    def folders(self) -> dict[str, tuple[object, ...]]:
        found = {}
        for name in ("project", "home", "elsewhere"):
            inside = tree(self.root / name)
            found |= {path: about for path, about in inside.items() if not OWN & set(Path(path).parts)}
        return found

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _environment(process).get(MARK) == self.mark]

    def traces(self, was_killed: bool) -> list[str]:
        """What is there that was not, and the other way round."""
        _until(lambda: not self.processes())
        found = [f"process {one.pid} is left: {' '.join(one.cmdline())[:80]}" for one in self.processes()]
        after = self.folders()
        for path in sorted(after.keys() | self.before.keys()):
            if after.get(path) != self.before.get(path):
                how = "changed" if path in after and path in self.before else "new" if path in after else "gone"
                found.append(f"{how}: {path}")
        left = [name for name in os.listdir(self.temp) if not self._is_torchs(name)]
        found += [f"temporary: {name}" for name in left if not was_killed or not self._is_swept_later(name)]
        _until(lambda: not self._shared_memory())
        found += [f"shared memory: {name}" for name in self._shared_memory()]
        try:
            plan.read(str(self.project / "train.py"))
            evidence.read(str(self.project / "train.py"))
        except HotlapError as error:
            found.append(str(error))
        return found

    def _shared_memory(self) -> list[str]:
        return [name for name in sorted(_shared_memory() - self.shared) if not _is_strangers(name)]

    def _is_torchs(self, name: str) -> bool:
        """Importing torch makes an empty folder for its compiler, in plain python too."""
        return name.startswith("torchinductor_") and not os.listdir(self.temp / name)

    def _is_swept_later(self, name: str) -> bool:
        return any(name.startswith(f"{PREFIX}{pid}-") for pid in self.outright)

    def accept(self) -> None:
        """As it is now, so that each trace is blamed on one tuning."""
        self.before, self.shared = self.folders(), self.shared | _shared_memory()

    def close(self) -> None:
        for process in self.processes():
            process.kill()
        shutil.rmtree(self.root)


@dataclass(frozen=True)
class Tuning:
    kind: str  # of sandbox
    way: str | None  # to be killed; None: runs to its end
    command: Sequence[str]

    def run(self, place: Place, after_seconds: float) -> tuple[str, list[str]]:
        """How it ended, and the traces it left."""
        with open(place.root / "output.txt", "w+") as output:
            started = time.monotonic()
            tuner = subprocess.Popen(
                self.command, cwd=place.project, env=place.environment(self.kind), stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            was_killed = False
            try:
                tuner.wait(after_seconds if self.way else PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                was_killed = True
                self._kill(tuner, place)
            seconds = time.monotonic() - started
            output.seek(0)
            last = output.read().strip().split("\n")[-1]
        traces = place.traces(was_killed)
        if not self.way and (was_killed or tuner.returncode):
            traces.append(f"it ended with {tuner.returncode}: {last}")
        return f"{self.way if was_killed else 'its own end'}, {seconds:.1f} s", traces

    def _kill(self, tuner: subprocess.Popen[bytes], place: Place) -> None:
        if self.way == "SIGKILL to its group":
            os.killpg(tuner.pid, signal.SIGKILL)
        else:
            tuner.send_signal(getattr(signal, self.way or "SIGKILL"))
        try:
            tuner.wait(PATIENCE_SECONDS)
        finally:
            tuner.kill()
        if tuner.returncode == -signal.SIGKILL:
            place.outright.add(tuner.pid)


def kinds() -> list[str]:
    """The sandboxes to be had here."""
    reasons = {"namespace": sandbox.available(), "redirect": landlock.available()}
    return [kind for kind, reason in reasons.items() if reason is None]


def check(
    tunings: int, budget: str, kill_share: float, seed: int, say: Callable[[str], None], epochs: int = 10**6
) -> list[str]:
    """All traces that were found, each with the tuning that left it. The first runs to its end, to show how long that
    takes, and the last, to sweep what the killed ones left."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # started in the background, it would be ignored below
    dice, place, here = random.Random(seed), Place(), kinds()
    command = [sys.executable, "-m", "hotlap", "tune", "--budget", budget]
    command += ["train.py", str(place.root / "elsewhere"), str(epochs)]
    to_kill = [WAYS[number % len(WAYS)] for number in range(min(round(tunings * kill_share), tunings - 2))]
    found: list[str] = []
    killed, longest = 0, 0.0
    try:
        for number in range(tunings):
            left = tunings - 1 - number  # that may still be killed, this one included
            is_to_be_killed = 0 < number < tunings - 1 and dice.random() < len(to_kill) / left
            way = to_kill.pop(0) if is_to_be_killed and to_kill else None
            started = time.monotonic()
            ending, traces = Tuning(here[number % len(here)], way, command).run(
                place, dice.uniform(0.05, 1.0) * longest
            )
            if not ending.startswith("SIG"):
                longest = max(longest, time.monotonic() - started)
                to_kill += [way] if way else []  # it was faster than its killer
            killed += ending.startswith("SIG")
            words = f"{number + 1:>3}/{tunings}  {here[number % len(here)]:<9}  {ending:<28}"
            say(f"{words}  {'; '.join(traces) or 'left nothing'}")
            found += [f"{' '.join(words.split())}: {trace}" for trace in traces]
            place.accept()
        say(f"{killed} of {tunings} were killed, {len(place.outright)} of them outright")
    finally:
        place.close()
    return found


def _draw_photos(folder: Path) -> None:
    """Noise, since it takes the longest to decode."""
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(0)
    for number in range(8):
        pixels = noise.integers(0, 256, (160, 160, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.1)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ()) if process.status() != psutil.STATUS_ZOMBIE else {}
    except (psutil.Error, OSError):
        return {}


def _shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if SHARED.match(name)}


def _is_strangers(name: str) -> bool:
    """Whether the process that made it, or one that has it open, is alive: none of ours is by then."""
    maker = re.match(r"torch_(\d+)_", name)
    if maker and psutil.pid_exists(int(maker[1])):
        return True
    for process in psutil.process_iter():
        try:
            if any(name in one.path for one in [*process.memory_maps(), *process.open_files()]):
                return True
        except (psutil.Error, OSError):
            continue
    return False


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tunings", type=int, default=50)
    options.add_argument("--budget", default="30s", help="of each; below about 30s there is no room for a proof")
    options.add_argument("--kill-share", type=float, default=0.5)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = options.parse_args()
    print(f"seed {given.seed}, sandboxes: {', '.join(kinds())}")
    found = check(given.tunings, given.budget, given.kill_share, given.seed, lambda line: print(line, flush=True))
    print(*found, f"{len(found)} traces in {given.tunings} tunings", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
