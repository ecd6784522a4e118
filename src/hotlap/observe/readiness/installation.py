"""Checks of what is installed: do the pieces fit one another, and is each there once."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from hotlap.observe.readiness.outcome import Readiness

# the usual two families: packages of one are not built against those of the other
CHANNELS = {"defaults": "defaults", "main": "defaults", "conda-forge": "conda-forge"}


def torchvision_matches(torch: str | None, torchvision: str | None) -> Readiness:
    """Release 2.N of torch goes with 0.(N + 15) of torchvision, and both must be built for the same device."""
    name = "torchvision"
    if torch is None or torchvision is None:
        return Readiness(name, None, "not installed")
    found = re.match(r"2\.(\d+)", torch)
    if not found:
        return Readiness(name, None, f"torch {torch}: not in the table")
    wanted = f"0.{int(found[1]) + 15}"
    said = f"torchvision {torchvision} with torch {torch}"
    if not torchvision.startswith(wanted + "."):
        return Readiness(name, False, f"{said}, which needs {wanted}", f"pip install 'torchvision=={wanted}.*'")
    builds = [version.partition("+")[2] for version in (torch, torchvision)]
    if all(builds) and builds[0] != builds[1]:
        remedy = "uv pip install --reinstall torch torchvision --torch-backend=auto"
        return Readiness(name, False, f"{said}: built for different devices", remedy)
    return Readiness(name, True, said)


def one_torch(search: Sequence[str]) -> Readiness:
    """`search` is sys.path: the first torch on it wins, a second one waits for another order."""
    name = "one torch"
    folders = list(dict.fromkeys(Path(entry or ".").resolve() for entry in search))
    torches = [folder for folder in folders if (folder / "torch/version.py").is_file()]
    if len(torches) > 1:
        remedy = f"{_pip(torches[1])} uninstall torch   # or take {torches[1]} off PYTHONPATH"
        return Readiness(name, False, f"torch is in {torches[0]} and in {torches[1]}; the first is used", remedy)
    for folder in torches:
        records = sorted(path.name for path in folder.glob("torch-*.dist-info"))
        if len(records) > 1:
            remedy = "pip uninstall -y torch && pip uninstall -y torch && pip install torch"
            return Readiness(name, False, f"two torches were installed over one another: {', '.join(records)}", remedy)
    return Readiness(name, True, "there is one torch") if torches else Readiness(name, None, "torch is not installed")


def conda_and_pip(prefix: Path) -> Readiness:
    """A package that conda and pip both installed has the files of either, whoever wrote last."""
    name = "conda and pip"
    if not (prefix / "conda-meta").is_dir():
        return Readiness(name, None, "not a conda environment")
    by_conda = {"torch" if record["name"] == "pytorch" else record["name"] for record in _conda_records(prefix)}
    twice = sorted(by_conda & _installed_by_pip(prefix))
    if twice:
        said = f"both installed {', '.join(twice[:5])}" + (f" and {len(twice) - 5} more" if len(twice) > 5 else "")
        from_pip = " ".join(twice)
        from_conda = " ".join("pytorch" if package == "torch" else package for package in twice)
        remedy = f"pip uninstall -y {from_pip} && conda install --force-reinstall {from_conda}"
        return Readiness(name, False, said, remedy)
    return Readiness(name, True, "no package was installed by both")


def one_channel(prefix: Path) -> Readiness:
    name = "conda channels"
    if not (prefix / "conda-meta").is_dir():
        return Readiness(name, None, "not a conda environment")
    counts: dict[str, int] = {}
    for record in _conda_records(prefix):
        parts = str(record.get("channel", "")).split("/")
        family = next((CHANNELS[part] for part in parts if part in CHANNELS), None)
        if family:
            counts[family] = counts.get(family, 0) + 1
    said = ", ".join(f"{count} packages from {family}" for family, count in sorted(counts.items()))
    if len(counts) > 1:
        remedy = "conda config --set channel_priority strict && conda update --all"
        return Readiness(name, False, f"channels are mixed: {said}", remedy)
    return Readiness(name, True, said or "no packages")


def _conda_records(prefix: Path) -> list[dict[str, str]]:
    records = []
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError):  # half-written by an interrupted install
            continue
        if isinstance(record, dict) and "name" in record:
            records.append(record)
    return records


def _installed_by_pip(prefix: Path) -> set[str]:
    names = set()
    for installer in prefix.glob("lib/python*/site-packages/*.dist-info/INSTALLER"):
        try:
            by_pip = installer.read_text().strip() in ("pip", "uv")  # conda writes its own name here
        except OSError:
            continue
        if by_pip:
            names.add(installer.parent.name.partition("-")[0].lower().replace("_", "-"))
    return names


def _pip(site: Path) -> str:
    """The pip that owns a site-packages folder, where it can be told."""
    own = site.parents[2] / "bin" / "pip" if len(site.parents) > 2 else None
    return str(own) if own and own.is_file() else "pip"
