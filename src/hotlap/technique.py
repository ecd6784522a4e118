"""The contract. Everything else in hotlap serves it.

A technique is one class in one file of `hotlap.catalogue`. Its docstring is its explanation; its methods are the
verbs it knows. A verb that makes no sense for a technique is simply not defined.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run
    from hotlap.source.edits import Edit
    from hotlap.source.module import Site, Source

Setting = Mapping[str, "int | float | str | bool"]
"""What a technique is set to: plain data, since it is written to hotlap.toml."""

Values = Mapping[str, "tuple[str, ...] | Numbers"]
"""What settings may be, by their names: these words, or these numbers. What is true or false needs no more said."""

VERBS = ("spot", "seen", "settings", "apply", "rewrite")
_IN_WORDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
HEADINGS = ("Why it is faster", "When it does not help", "What changes numerically", "Claims")


class Parity(Enum):
    """How far the training stays the same. Decides what is verified and what may be applied unasked."""

    IDENTICAL = "identical"  # the same bits
    EQUIVALENT = "equivalent"  # the same mathematics: other rounding, or other draws of the same distribution
    DIFFERENT = "different"  # another training: batch size, schedule, optimizer


class Family(Enum):
    """The share of the step a technique saves from; the names are those of `Run.shares`."""

    WAIT = "wait"
    COPY = "copy"
    COMPUTE = "compute"  # forward and backward
    UPDATE = "update"
    SYNC = "sync"
    MEMORY = "memory"
    CONVERGENCE = "convergence"

    @property
    def shares(self) -> tuple[str, ...]:
        return ("forward", "backward") if self is Family.COMPUTE else (self.value,)


@dataclass(frozen=True)
class Needs:
    """What must be there before a technique can be applied at all."""

    device: str | None = None
    torch: str | None = None  # the oldest release, as "2.11"
    package: str | None = None  # an optional import name
    install: str | None = None  # what pip is to be given for it, where that is another name


@dataclass(frozen=True)
class Numbers:
    """All from the least to the most."""

    least: int
    most: int | None = None

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, (int, float)):
            return False
        return self.least <= value and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        return f"{self.least} or more" if self.most is None else f"from {self.least} to {self.most}"


@dataclass(frozen=True)
class Try:
    """One setting worth a trial, and the largest share of the step it could save."""

    setting: Setting
    most: float


@dataclass(frozen=True)
class CannotHelp:
    reason: str


class Technique:
    """Base of every technique: facts as class attributes, verbs as methods."""

    family: ClassVar[Family]
    needs: ClassVar[Needs] = Needs()
    aliases: ClassVar[tuple[str, ...]] = ()
    suits: ClassVar[str] = "any"
    traits: ClassVar[frozenset[str]] = frozenset()  # what it brings: "low precision", "image layout", ...
    helps_with: ClassVar[frozenset[str]] = frozenset()  # traits of others that make it worth more
    excludes: ClassVar[frozenset[str]] = frozenset()  # traits of others it cannot live with
    comes_with: ClassVar[frozenset[str]] = frozenset()  # traits it is taken in with: no step shows what it saves
    between_steps: ClassVar[bool] = False  # saves in tests or where epochs start, which only whole epochs show
    written_otherwise: ClassVar[bool] = False  # into source: not what a trial measures, so a plan does not vouch for it
    written_last: ClassVar[bool] = False  # into source: it moves statements that others look for
    start_up_seconds: ClassVar[float] = 0.0  # what it may take to get going, once in every run
    fills_in_an_epoch: ClassVar[bool] = False  # gains only once every sample has been seen
    adjustable: ClassVar[bool] = False  # a script that has it may have it set badly: tried although it is in use
    batch_tolerance: ClassVar[float] = 0.0  # how far its batches may be from the script's, as a share of their spread
    rounding: ClassVar[float] = 0.0  # the coarsest it computes with, of a number; 0: as the script does
    default: ClassVar[Setting] = {}  # what `fix` writes where no plan says otherwise
    more_settings: ClassVar[Setting] = {}  # what else it can be told, each with an example
    values: ClassVar[Values] = {}  # of each of these that is a word or a number: what it may be

    def parity(self, run: Run | None) -> Parity:
        """The level promised for this run; without a run, the weakest that this technique may need."""
        raise TypeError(f"{type(self).__name__} does not say its parity")

    def spot(self, source: Source) -> Iterator[Site]:
        """Places in the source that lack the technique. Silent when it cannot be sure."""
        return iter(())

    def named(self, given: Setting) -> Setting:
        """What is meant where a user names it by hand, with these settings or none."""
        return {**self.default, **given}

    def why_not(self, given: Mapping[str, object]) -> str:
        """Why it cannot be set to what somebody wrote, in a plan or by hand, with what can be written; or ""."""
        known = {**self.default, **self.more_settings}
        for name, value in given.items():
            if name not in known:
                takes = ", ".join(f"{one}={example}" for one, example in known.items())
                is_said = f"{takes}, several joined by colons" if known else "no settings: write its name alone"
                return f"it takes {is_said}"
            kind, values = type(known[name]), self.values.get(name)
            if type(value) is not kind or (values is not None and value not in values):
                return f"{name} is {_may_be(kind, values)}, as in {name}={known[name]}"
        return ""

    def seen(self, run: Run) -> bool | None:
        """Whether the process really did it; None for cannot tell."""
        return None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        """The settings worth trying here, or why none is."""
        return CannotHelp("this technique is advice: it cannot be tried from outside")

    def brings(self, setting: Setting) -> frozenset[str]:
        """The traits it has with this setting, where that is more than `traits`."""
        return self.traits

    def starts_after(self, setting: Setting) -> float:
        """Seconds it may take to get going with this setting, where that is not `start_up_seconds`."""
        return self.start_up_seconds

    def apply(self, patch: Patch, setting: Setting) -> None:
        """Change the process, only through `patch`, which also undoes it."""
        raise TypeError(f"{self.id} cannot be applied to a running script")

    def places(self, source: Source, setting: Setting) -> Iterator[Site]:
        """Where a setting is to be written: places that lack the technique, unless it is for some that have it."""
        return self.spot(source)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        """The source edits that write the technique at one of its places."""
        raise TypeError(f"{self.id} cannot be written into source")

    @property
    def id(self) -> str:
        return re.sub(r"(?<!^)(?=[A-Z])", "-", type(self).__name__).lower()

    @property
    def verbs(self) -> tuple[str, ...]:
        return tuple(verb for verb in VERBS if getattr(type(self), verb) is not getattr(Technique, verb))

    @property
    def summary(self) -> str:
        return (type(self).__doc__ or "").strip().split("\n", 1)[0]

    @property
    def weakest_parity(self) -> Parity:
        return self.parity(None)


def _may_be(kind: type, values: tuple[str, ...] | Numbers | None) -> str:
    if isinstance(values, tuple):
        return " or ".join(filter(None, (", ".join(values[:-1]), values[-1])))
    return ", ".join([_IN_WORDS[kind], *([str(values)] if values else [])])


@dataclass(frozen=True)
class Choice:
    """A technique with its setting: what a trial applies and a plan keeps."""

    technique: Technique
    setting: Setting

    def __str__(self) -> str:
        inside = ", ".join(f"{key} {value}" for key, value in self.setting.items())
        return f"{self.technique.id} ({inside})" if inside else self.technique.id

    @property
    def device(self) -> str | None:
        """What it must have, be it by its setting."""
        return str(self.setting.get("device") or self.technique.needs.device or "") or None

    @property
    def start_up_seconds(self) -> float:
        return self.technique.starts_after(self.setting)

    @property
    def traits(self) -> frozenset[str]:
        return self.technique.brings(self.setting)

    def to_json(self) -> dict[str, Any]:
        """By import path, so that a trial process finds it and the engine needs no list of names."""
        kind = type(self.technique)
        return {"technique": f"{kind.__module__}:{kind.__qualname__}", "setting": dict(self.setting)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Choice:
        module, _, name = str(data["technique"]).partition(":")
        return cls(getattr(importlib.import_module(module), name)(), data["setting"])
