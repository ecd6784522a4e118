"""Nothing keeps a graph alive."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hotlap.source.bodies import body_of, method, own_calls, own_nodes, receiver
from hotlap.source.edits import Edit, replace_node
from hotlap.source.models import model_spellings
from hotlap.source.names import spelling
from hotlap.technique import Family, Parity, Setting, Technique

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.loops import Loop
    from hotlap.source.module import Fix, Site, Source

# What takes a tensor and gives something that no longer holds its graph.
RELEASING = ("item", "detach", "tolist", "numpy", "format")
NUMBERS = ("float", "int", "len", "str", "repr", "bool")


class FreedMemory(Technique):
    """Losses and outputs kept for a report no longer keep the whole graph of their step alive.

    ## Why it is faster
    A loss holds the graph it came from, and the graph holds whatever backward has not freed. `losses.append(loss)` and
    `total += loss` therefore keep something of every step until the epoch's end: memory grows step by step, the sum's
    own graph becomes longer and longer, and in the end the batch that used to fit does not. `loss.detach()` keeps the
    number alone, on its device, and unlike `.item()` it does not make the host wait.

    ## When it does not help
    Backward frees what the graph has saved; what stays after it is a skeleton of some kilobytes a step. All of it stays
    where backward did not go: after `retain_graph=True`, or for an output that is no part of the loss. Where the sum
    itself is sent backward the graph is needed, and nothing is reported. Values kept under `no_grad` hold no graph. The
    fix is marked unsafe where what is kept outlives the function in an attribute: another file may go back through it.

    ## What changes numerically
    Nothing: a detached tensor has the same value.

    ## Claims
    Torch's own manual gives `total_loss += loss` as the first of its memory mistakes and mends it with `float(loss)`.
    The memory is right; but `float` makes the host wait for the device in every step, which `.detach()` does not.
    """

    family = Family.MEMORY
    aliases = ("del", "leak", "memory leak", "detach")

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def spot(self, source: Source) -> Iterator[Site]:
        for loop in source.training_loops():
            grown = _with_graph(source, loop)
            for holder, value in _kept(source, loop):
                for name in [node for node in _holding(value) if node.id in grown]:
                    owner = spelling(holder)
                    if not source.under_no_grad(name) and not _is_needed(source, loop, holder, owner):
                        message = f"{owner or source.segment(holder)} keeps the graph of every step alive"
                        yield source.site(name, f"{message}; keep {name.id}.detach()", _fix(source, holder))
                        break

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        return replace_node(site.source, site.node, f"{site.source.segment(site.node)}.detach()")


def _fix(source: Source, holder: ast.expr) -> Fix:
    """Backward has used the graph up, so nobody can go through it again, unless it was asked to stay."""
    is_used_up = not source.mentions("retain_graph", "create_graph")
    return "safe" if isinstance(holder, ast.Name) and is_used_up else "unsafe"


def _with_graph(source: Source, loop: Loop) -> set[str]:
    """The names of the loop that hold a graph: what is sent backward, and what a model returned."""
    models = model_spellings(source)
    found: set[str] = set()
    for call in own_calls(source, loop):
        if method(call) == "backward":
            loss: ast.AST = receiver(call)
            while isinstance(loss, ast.Call) and method(loss) == "scale" and len(loss.args) == 1:
                loss = loss.args[0]
            if isinstance(loss, ast.Name):
                found.add(loss.id)
        made = source.parent(call)
        if spelling(call.func) in models and isinstance(made, ast.Assign) and made.value is call:
            found |= {target.id for target in made.targets if isinstance(target, ast.Name)}
        if isinstance(made, ast.Assign) and made.value is call and _returns_loss(source, call):
            found |= {target.id for target in made.targets if isinstance(target, ast.Name)}
    stores = [node for node in own_nodes(source, loop) if isinstance(node, ast.Assign)]
    made_here = {spelling(one.targets[0]) for one in stores if isinstance(one.value, ast.Call)}
    for _ in range(2):  # the parts of a sum hold graphs as well
        sums = [one.value for one in stores if spelling(one.targets[0]) in found and isinstance(one.value, ast.BinOp)]
        found |= {part.id for value in sums for part in _holding(value) if part.id in made_here}
    freed = {spelling(one.targets[0]) for one in stores if method(one.value) in RELEASING}
    return found - {name for name in freed if name is not None}


def _returns_loss(source: Source, call: ast.Call) -> bool:
    """Whether a function of this file sends something backward and returns it as it is."""
    inside = source.definition(call.func)
    nodes = list(own_nodes(source, inside)) if isinstance(inside, ast.FunctionDef) else []
    sent = {spelling(receiver(node)) for node in nodes if isinstance(node, ast.Call) and method(node) == "backward"}
    returned = [spelling(node.value) for node in nodes if isinstance(node, ast.Return) and node.value is not None]
    return bool(returned) and all(name is not None and name in sent for name in returned)


def _kept(source: Source, loop: Loop) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What outlives a step, and what is put into it: `xs.append(v)`, `x += v`, `x = x + v`."""
    for node in own_nodes(source, loop):
        if method(node) == "append" and isinstance(node, ast.Call) and len(node.args) == 1:
            holder = receiver(node)
            yield (holder.value if isinstance(holder, ast.Subscript) else holder), node.args[0]
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            yield node.target, node.value
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
            target, added = node.targets[0], node.value
            if spelling(target) is not None and spelling(added.left) == spelling(target):
                yield target, added.right


def _holding(value: ast.expr) -> Iterator[ast.Name]:
    """The names in an expression whose graph its value would hold."""
    if isinstance(value, ast.Name):
        yield value
    elif isinstance(value, ast.BinOp):
        yield from _holding(value.left)
        yield from _holding(value.right)
    elif isinstance(value, ast.Call) and method(value) in ("mean", "sum", "clone", "cpu", "to", "view", "softmax"):
        yield from _holding(receiver(value))


def _is_needed(source: Source, loop: Loop, holder: ast.expr, owner: str | None) -> bool:
    """Whether what is kept is begun anew in each step, is sent backward itself, or goes into what is."""
    if owner is None:
        return True
    body = body_of(source, loop)
    for node in own_nodes(source, body):
        inside = loop in source.ancestors(node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and inside:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            written = {spelling(one) for target in targets for one in ast.walk(target)}
            reads = {spelling(one) for one in ast.walk(node.value)} if node.value is not None else set()
            if owner in written and owner not in reads:
                return True  # begun anew
            if owner in reads and owner not in written and not _is_number(node.value):
                return True  # taken up again in the step
        if method(node) == "backward" and any(spelling(one) == owner for one in ast.walk(node)):
            return True
    drawn = ast.walk(loop.target) if isinstance(loop, ast.For) else ()
    is_drawn = any(spelling(one) == owner.split(".")[0] for one in drawn)
    return is_drawn or (isinstance(holder, ast.Name) and not _is_begun_outside(source, loop, holder))


def _is_begun_outside(source: Source, loop: Loop, holder: ast.Name) -> bool:
    """Whether the name was given its first value before the loop, here or in the function around it."""
    stores = [use for use in source.uses(holder) if isinstance(use.ctx, ast.Store)]
    return any(loop not in source.ancestors(use) for use in stores)


def _is_number(value: ast.AST | None) -> bool:
    if isinstance(value, ast.Call):
        return method(value) in RELEASING or spelling(value.func) in NUMBERS
    return isinstance(value, ast.JoinedStr)
