"""Frozen dataclasses to plain JSON data and back: how records travel between processes and into files."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

Record = TypeVar("Record")


def to_json(record: Any) -> Any:
    return dataclasses.asdict(record)


def from_json(kind: type[Record], data: Any) -> Record:
    return typing.cast(Record, _read(kind, data))


def _read(kind: Any, data: Any) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{f.name: _read(hints[f.name], data[f.name]) for f in dataclasses.fields(kind) if f.name in data})
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return [_read(inside[0], item) for item in data]
    if origin is tuple:
        return tuple(_read(inside[0], item) for item in data)
    if origin in (typing.Union, types.UnionType):
        return None if data is None else _read(inside[0], data)
    return data
