"""Batches on their way: where they are drawn from a loader, and where they are copied to a device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.source.loops import Function, Loop
from hotlap.source.names import spelling
from hotlap.source.origins import is_called, iterated

if TYPE_CHECKING:
    from hotlap.source.module import Source


# These put a network on a device without saying so at the place.
_PLACING = ("set_default_device", "set_device", "Accelerator", "Fabric", "DataParallel", "DistributedDataParallel")


@dataclass(frozen=True, eq=False)
class Draw:
    """One place where batches are taken: a `for` over a loader, or `next` of its iterator."""

    place: Loop | Function
    node: ast.AST  # the loop, or the call of `next`
    loader: ast.expr
    names: frozenset[str]  # what the batch and its parts are called there


def draws(source: Source) -> Iterator[Draw]:
    """Every place that could draw batches, whatever is iterated: who asks must know that it is a loader."""
    for loop in source.names.parents:
        if isinstance(loop, ast.For | ast.AsyncFor):
            target, loader = iterated(source, loop)
            yield Draw(loop, loop, loader, _batch_names(loop, _stored(target)))
    for call in source.names.call_nodes:
        holder = source.parent(call)
        if is_called(source, call, "next") and call.args and isinstance(holder, ast.Assign):
            place = next((above for above in source.ancestors(call) if isinstance(above, Loop | Function)), None)
            names = {name for target in holder.targets for name in _stored(target)}
            if place is not None:
                yield Draw(place, call, call.args[0], _batch_names(place, names))


def changes_its_data(source: Source) -> bool:
    """`dataset.set_epoch(...)`, `loader.dataset.x = ...`, or whatever else is done to a data set once it has a loader:
    workers that live on would not see it. A sampler lives in the script's own process, so its epoch is no matter."""
    told = [call.func.value for call in source.method_calls("set_epoch") if isinstance(call.func, ast.Attribute)]
    if any("sampler" not in source.segment(receiver).lower() for receiver in told):
        return True
    attributes = [node for node in source.names.parents if isinstance(node, ast.Attribute)]
    stored = [node.value for node in attributes if isinstance(node.ctx, ast.Store)]
    if any(isinstance(holder, ast.Attribute) and holder.attr == "dataset" for holder in stored):
        return True
    return any(_is_done_to(source, node, name, call) for call, name in _data_of_loaders(source) for node in attributes)


def _data_of_loaders(source: Source) -> Iterator[tuple[ast.Call, str]]:
    for call in source.calls("torch.utils.data.DataLoader"):
        given = call.setting("dataset", 0)
        name = spelling(given) if isinstance(given, ast.Name | ast.Attribute) else None
        if name is not None:
            yield call.node, name


def _is_done_to(source: Source, node: ast.Attribute, name: str, loader: ast.Call) -> bool:
    """`data.size = 16`, `data.rows[0] = row`, or `data.resample()` by itself, after its loader was built or in another
    function; a method in a loop only, since others prepare it."""
    if spelling(node.value) != name or (
        source.function_of(node) is source.function_of(loader) and _is_before(node, loader)
    ):
        return False
    above: ast.AST | None = source.parent(node)
    if isinstance(above, ast.Call) and above.func is node and isinstance(source.parent(above), ast.Expr):
        return source.enclosing(node, (ast.For, ast.While)) is not None
    target: ast.AST | None = node
    while isinstance(above, ast.Subscript | ast.Attribute) and above.value is target:
        target, above = above, source.parent(above)
    return isinstance(getattr(target, "ctx", None), ast.Store)


def _is_before(node: ast.AST, call: ast.Call) -> bool:
    return getattr(node, "lineno", 0) <= call.lineno


def opens_two_passes(source: Source) -> bool:
    """`zip(loader, loader)`, a pass within another, or an iterator that is kept beside one. Where workers live on,
    torch has one iterator for all of them, which each pass would start anew."""
    loops = [node for node in source.names.parents if isinstance(node, ast.For | ast.AsyncFor)]
    calls = source.names.call_nodes
    gone_through: dict[ast.AST, str | None] = {loop: spelling(iterated(source, loop)[1]) for loop in loops}
    begun = {call: spelling(call.args[0]) for call in calls if is_called(source, call, "iter") and call.args}
    kept = {name for call, name in begun.items() if isinstance(source.parent(call), ast.Assign)}
    zipped = [[spelling(one) for one in call.args] for call in calls if is_called(source, call, "zip")]
    return (
        any(name and names.count(name) > 1 for names in zipped for name in names)
        or any(name and name in kept for name in gone_through.values())
        or any(
            name and name == gone_through.get(above)
            for node, name in {**gone_through, **begun}.items()
            for above in source.ancestors(node)
        )
    )


def device_moves(source: Source, draw: Draw) -> Iterator[ast.Call]:
    """The copies of a drawn batch, as it came, to a device: not of what was computed from it."""
    for call in source.method_calls("to", "cuda"):
        assert isinstance(call.func, ast.Attribute)
        name = _root(call.func.value)
        is_batch = name in draw.names and draw.place in source.ancestors(call)
        if is_batch and is_device_move(source, call) and not _is_changed_before(source, draw, name, call):
            yield call


def is_device_move(source: Source, call: ast.Call) -> bool:
    """`x.cuda()`, or `x.to(...)` with something that is no dtype, no tensor known as one, and not the CPU."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda":
        return True
    device = device_argument(call)
    if device is None:
        return False
    if isinstance(device, ast.Constant):
        return isinstance(device.value, int) or (isinstance(device.value, str) and not device.value.startswith("cpu"))
    if "dtype" in (spelling(device) or "").lower() or (source.name_of(device) or "").startswith("torch."):
        return False
    built = source.value_of(device)
    name = source.name_of(built.func) if isinstance(built, ast.Call) else None
    first = built.args[0] if isinstance(built, ast.Call) and name == "torch.device" and built.args else built
    return not (isinstance(first, ast.Constant) and str(first.value).startswith("cpu"))


def device_argument(call: ast.Call) -> ast.expr | None:
    """The device of `x.to(device)` or `x.to(device=device)`, as far as its place tells."""
    named = [given.value for given in call.keywords if given.arg == "device"]
    first = call.args[0] if call.args and not isinstance(call.args[0], ast.Starred) else None
    return named[0] if named else first


def names_device(source: Source, node: ast.expr) -> bool:
    """Whether an expression surely says a device: by its value, or by its name."""
    built = source.value_of(node)
    if isinstance(built, ast.Call) and source.name_of(built.func) in ("torch.device", "int"):
        return True
    if isinstance(built, ast.Constant):
        return isinstance(built.value, str | int) and not str(built.value).startswith("cpu")
    last = (spelling(node) or "").rpartition(".")[2].lower()
    return "device" in last or "rank" in last.split("_") or "gpu" in last.split("_")


def uses_device(source: Source) -> bool:
    """Whether a file speaks of a device at all: without one, nothing is copied and nobody waits."""
    if any(is_device_move(source, call) for call in source.method_calls("to", "cuda")):
        return True
    is_given = any(given.arg == "device" for call in source.names.call_nodes for given in call.keywords)
    return is_given or source.mentions(*_PLACING)


def _batch_names(place: ast.AST, names: set[str]) -> frozenset[str]:
    """The names given to parts of the batch too: `x, y = batch`, `x = batch["x"]`, `for t in batch`."""
    names = set(names)
    for node in ast.walk(place):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.comprehension | ast.For):
            is_items = isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Attribute)
            within = node.iter.func.value if is_items else node.iter  # type: ignore[attr-defined]
            pairs = [(node.target, within)]
        for target, value in pairs:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                pairs += zip(target.elts, value.elts, strict=True)
            elif _root(value) in names:
                names |= _stored(target)
    return frozenset(names)


def _is_changed_before(source: Source, draw: Draw, name: str | None, call: ast.Call) -> bool:
    """Whether the name was given something computed (`x = x.float()`) before it is moved."""
    here = source.statement(call)
    for node in ast.walk(draw.place):
        if isinstance(node, ast.Assign) and node is not here and node.lineno < here.lineno:
            is_same = any(name in _stored(target) for target in node.targets)
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if is_same and draw.node not in values and not all(_root(value) in draw.names for value in values):
                is_other_branch = source.block(node) is not source.block(here) and _are_branches(source, node, here)
                if not is_other_branch:
                    return True
    return False


def _are_branches(source: Source, one: ast.stmt, other: ast.stmt) -> bool:
    """Whether two statements stand in different branches of one `if`."""
    for above in source.ancestors(one):
        if isinstance(above, ast.If) and above in source.ancestors(other):
            inside = {node for part in above.body for node in ast.walk(part)}
            return (one in inside) != (other in inside)
    return False


def _stored(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _root(node: ast.AST) -> str | None:
    """The name that a chain of subscripts and attributes begins with."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
