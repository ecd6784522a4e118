"""No float64 by accident."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hotlap.source.arrays import element_type
from hotlap.source.edits import Edit, replace_node
from hotlap.source.models import is_module, model_spellings
from hotlap.source.names import spelling
from hotlap.technique import Family, Parity, Setting, Technique

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.module import Fix, Site, Source

# Scripts that want all the digits: they say so, or solve to high accuracy.
MEANT = (
    "set_default_dtype",
    "set_default_tensor_type",
    "gradcheck",
    "gradgradcheck",
    "LBFGS",
    "allclose",
    "complex128",
)
DOUBLES = ("torch.float64", "torch.double")
_CASTS = ("float", "double", "half", "bfloat16", "to", "type", "type_as", "long", "int", "cuda", "astype")


class SinglePrecision(Technique):
    """Model and inputs are in float32; no float64, NumPy's default, slips in on the way.

    ## Why it is faster
    float64 takes twice the memory and the traffic of float32. Consumer GPUs compute it at one sixty-fourth of the rate,
    an A100 or H100 at half, and autocast leaves it as it is. It is rarely wanted: NumPy makes float64 unless told
    otherwise, the first layer then complains that it expected Float but found Double, and `model.double()` is the wrong
    way out.

    ## When it does not help
    Where the digits are needed: numerical checks of gradients, solvers run to convergence (L-BFGS), physics. A script
    that sets float64 as its default, or uses these, means it and is left alone. One tensor of doubles beside the model,
    such as a sum over an epoch, costs nothing and is not reported.

    ## What changes numerically
    Seven significant digits instead of sixteen: the same mathematics, other rounding. The fix is marked unsafe, since
    the model and all its inputs have to change together, and some of them may come from another file. Where the file
    has an array of a type that cannot be told from source, a double model is reported and not rewritten.

    ## Claims
    No list gives a figure. float64 moves twice the bytes, and most chips compute it at a fraction of the rate; a step
    that waits for data does not change.
    """

    family = Family.COMPUTE
    aliases = ("float64", "double", "float32")

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def spot(self, source: Source) -> Iterator[Site]:
        if source.mentions(*MEANT) or not source.training_loops():
            return
        models = [call for call in source.method_calls("double") if _is_model(source, call)]
        sites: dict[ast.expr, str] = {}
        for call in models:
            sites[call] = "the model computes in float64; float32 takes half the memory and far less time"
        fed = _fed_to_models(source) if models else set()
        for call in source.method_calls("double"):
            if models and call not in sites and (_leads_to(source, call) & fed or _is_argument(source, call)):
                sites[call] = "the model's input is made float64; float32 is half the bytes"
        for given in (one for call in source.names.call_nodes for one in call.keywords if one.arg == "dtype"):
            if source.name_of(given.value) in DOUBLES and _leads_to(source, given) & fed:
                sites[given.value] = "the model's input is made float64; float32 is half the bytes"
        is_unsure = False
        for made in source.calls("torch.from_numpy", "torch.as_tensor", "torch.tensor"):
            is_chosen = made.node.keywords or len(made.node.args) != 1 or _is_cast(source, made.node)
            kind = None if is_chosen else element_type(source, made.node.args[0])
            if kind == "float64":
                sites[made.node] = "NumPy's float64 goes on into the training; .float() halves it"
            is_unsure |= not is_chosen and kind is None and made.name == "torch.from_numpy"
        # An array of a type that cannot be told was perhaps what the model was made double for.
        fix: Fix | None = None if models and is_unsure else "unsafe"
        why = "" if fix else " (left alone: what else is made float64 cannot be told here)"
        for node in sorted(sites, key=lambda one: (one.lineno, one.col_offset)):
            yield source.site(node, f"{sites[node]}{why}", fix)

    def seen(self, run: Run) -> bool | None:
        if not run.roots:
            return None
        is_fed = any(one.dtype == "float64" for one in run.look.inputs)
        return not is_fed and not any("float64" in root.parameter_dtypes for root in run.roots)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source, node = site.source, site.node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "double":
            start, end = source.lines.span(node.func.value)[1], source.lines.span(node.func)[1]
            return [Edit(start, end, source.text[start:end].removesuffix("double") + "float")]
        if isinstance(node, ast.Call):
            end = source.lines.span(node)[1]
            return [Edit(end, end, ".float()")]
        return replace_node(source, node, f"{source.names.spelled('torch') or 'torch'}.float32")


def _is_model(source: Source, call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Attribute)
    receiver = call.func.value
    return spelling(receiver) in model_spellings(source) or is_module(source, receiver)


def _fed_to_models(source: Source) -> set[str]:
    """The names given to a model when it is called."""
    models = model_spellings(source)
    calls = [call for call in source.names.call_nodes if spelling(call.func) in models]
    given = [one for call in calls for one in (*call.args, *(named.value for named in call.keywords))]
    return {node.id for one in given for node in ast.walk(one) if isinstance(node, ast.Name)}


def _leads_to(source: Source, node: ast.AST) -> set[str]:
    """The names that the statement around a node assigns."""
    statement = source.statement(node)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}


def _is_argument(source: Source, call: ast.Call) -> bool:
    """`model(x.double())`"""
    holder = source.parent(call)
    return isinstance(holder, ast.Call) and spelling(holder.func) in model_spellings(source)


def _is_cast(source: Source, node: ast.Call) -> bool:
    """Whether a tensor is given another type later: in the same expression, or wherever its name is used."""
    above: ast.AST | None = source.parent(node)
    while isinstance(above, ast.Attribute | ast.Call | ast.Subscript):
        if isinstance(above, ast.Attribute) and above.attr in _CASTS:
            return True
        above = source.parent(above)
    names = _leads_to(source, node)
    uses = [use for use in source.names.parents if isinstance(use, ast.Name) and use.id in names]
    holders = [source.parent(use) for use in uses]
    return any(isinstance(holder, ast.Attribute) and holder.attr in _CASTS for holder in holders)
