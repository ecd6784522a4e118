"""The catalogue in words, generated from the techniques themselves: nothing about one is written anywhere else."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from hotlap.technique import Needs, Technique


def row(technique: Technique) -> dict[str, Any]:
    """The stable interface of `hotlap explain --json`."""
    needs = technique.needs
    return {
        "id": technique.id,
        "family": technique.family.value,
        "parity": technique.weakest_parity.value,
        "summary": technique.summary,
        "needs": {name: value for name, value in vars(needs).items() if value},
        "aliases": list(technique.aliases),
        "verbs": list(technique.verbs),
    }


def page(technique: Technique) -> str:
    """One technique in full, as Markdown."""
    text = inspect.cleandoc(type(technique).__doc__ or "")
    summary, _, rest = text.partition("\n")
    also = f"Also known as: {', '.join(technique.aliases)}.\n\n" if technique.aliases else ""
    facts = f"Saves from: {technique.family.value}. Parity: {technique.weakest_parity.value}. {_needs(technique.needs)}"
    return f"# {technique.id}\n\n{summary}\n\n{also}{facts}{_settings(technique)}\n{rest}\n"


def table(techniques: Iterable[Technique]) -> str:
    """The catalogue as a Markdown table, for the README."""
    lines = ["| technique | what you gain | saves from | parity |", "|---|---|---|---|"]
    for one in techniques:
        lines.append(f"| [`{one.id}`](docs/techniques/{one.id}.md) | {one.summary} | {one.family.value} | "
                     f"{one.weakest_parity.value} |")  # fmt: skip
    return "\n".join(lines)


def _settings(technique: Technique) -> str:
    """As `run --with` takes them."""
    known = {**technique.default, **technique.more_settings}
    first, *others = (f"{name}={value}" for name, value in known.items()) if known else ("",)
    more = f"; also {', '.join(f'`{one}`' for one in others)}, joined by colons" if others else ""
    return f"\n\nSettings, for example: `--with {technique.id}:{first}`{more}." if known else ""


def _needs(needs: Needs) -> str:
    parts = [needs.device, needs.torch and f"torch {needs.torch}", needs.package]
    wanted = [part for part in parts if part]
    return f"Needs {', '.join(wanted)}." if wanted else "Needs nothing but torch."
