"""What source says of the data set behind a loader."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotlap.source.calls import Call
    from hotlap.source.module import Source

DATASET, SHUFFLE, SAMPLER = 0, 2, 3  # positions of DataLoader's parameters
_WRAPPERS = tuple(f"torch.utils.data.{name}" for name in ("Subset", "ConcatDataset", "random_split"))
_CHEAP = {"len", "int", "float", "torch.tensor", "torch.as_tensor", "torch.from_numpy"}


def is_worth_loading(call: Call) -> bool:
    """Whether the data set is surely map-style and does some work for a sample."""
    source, dataset = call.source, call.setting("dataset", DATASET)
    if not isinstance(dataset, ast.expr):
        return False
    built = source.value_of(dataset)
    while isinstance(built, ast.Call) and source.name_of(built.func) in _WRAPPERS and built.args:
        built = source.value_of(built.args[0])
    if not isinstance(built, ast.Call):
        # A parameter or a part of something unpacked: it could be anything, tensors in memory too.
        return False
    definition = source.definition(built.func)
    if isinstance(definition, ast.ClassDef):
        return _works_per_sample(source, definition)
    name = source.name_of(built.func) or ""
    if name.startswith("torchvision.datasets."):
        return True
    # An imported class: torch itself refuses to shuffle or sample an iterable data set, so this one is map-style.
    shuffle = call.setting("shuffle", SHUFFLE)
    is_shuffled = isinstance(shuffle, ast.Constant) and shuffle.value is True
    is_sampled = isinstance(call.setting("sampler", SAMPLER), ast.Call)
    looks_like_class = "." in name and name.rpartition(".")[2][:1].isupper() and not name.startswith("torch.")
    return looks_like_class and (is_shuffled or is_sampled)


def _works_per_sample(source: Source, definition: ast.ClassDef) -> bool:
    """A class that only indexes what it holds in memory gains nothing from workers."""
    getters = [one for one in definition.body if isinstance(one, ast.FunctionDef) and one.name == "__getitem__"]
    bases = [source.name_of(base) for base in definition.bases]
    if not getters or any(base is None or base.endswith("IterableDataset") for base in bases):
        return False
    called = [node.func for node in ast.walk(getters[0]) if isinstance(node, ast.Call)]
    return any(source.name_of(function) not in _CHEAP for function in called)
