"""What the contract demands of a technique, as a function, so that a planted violation can be shown to turn it red."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from hotlap.source.check import is_silenced
from hotlap.source.module import Source
from hotlap.technique import HEADINGS, Family, Parity, Technique

FILES = {"spot": ("before.py", "untouched.py", "findings.txt"), "rewrite": ("after.py",), "apply": ("before.py",)}


def broken_promises(technique: Technique, fixtures: Path) -> list[str]:
    kind, broken = type(technique), []
    text = inspect.cleandoc(kind.__doc__ or "")
    summary = text.split("\n")[0]
    if not summary.endswith(".") or len(summary) > 120:
        broken.append("the first line of the explanation is one sentence that says what you gain")
    if tuple(re.findall(r"^## (.+)$", text, re.MULTILINE)) != HEADINGS:
        broken.append(f"the explanation has the headings {HEADINGS}, in this order")
    if any(len(part.strip()) < 40 for part in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]):
        broken.append("each heading has something under it")
    if not isinstance(getattr(technique, "family", None), Family):
        broken.append("it names its family")
    if not isinstance(technique.weakest_parity, Parity):
        broken.append("it says its parity")
    asked = set(
        re.findall(r"""\bsetting(?:\.get\(|\[)["'](\w+)["']""", inspect.getsource(inspect.getmodule(kind) or kind))
    )
    broken += [f"{name} is in `default` or `more_settings`" for name in sorted(asked - set(_known(technique)))]
    stated = {name for name, example in _known(technique).items() if not isinstance(example, bool)}
    unlike = sorted(stated ^ set(technique.values))
    broken += [f"`values` says what {name} may be, and all in it are settings" for name in unlike]
    if why_not := technique.why_not(_known(technique)):
        broken.append(f"its own settings are such as it takes: {why_not}")
    module = kind.__module__.rpartition(".")[2]
    if module != technique.id.replace("-", "_"):
        broken.append(f"class {kind.__name__} lives in {technique.id.replace('-', '_')}.py")
    folder = fixtures / technique.id.replace("-", "_")
    wanted = {name for verb in technique.verbs for name in FILES.get(verb, ())}
    broken += [f"{folder.name}/{name} is missing" for name in sorted(wanted) if not (folder / name).exists()]
    return broken


def _known(technique: Technique) -> dict[str, Any]:
    return {**technique.default, **technique.more_settings}


def findings_text(technique: Technique, path: Path) -> str:
    """What is reported for a file, as findings.txt has it."""
    sites = [site for site in technique.spot(Source.read(path)) if not is_silenced(site, technique.id)]
    return "".join(f"{site.line}:{site.column} {site.message}\n" for site in sites)
