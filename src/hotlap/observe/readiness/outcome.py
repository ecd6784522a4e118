"""What one check of the machine says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Readiness:
    """`ok` is None where the question does not arise here or cannot be answered."""

    name: str
    ok: bool | None
    finding: str
    remedy: str | None = None  # the command that mends it here; every False has one
