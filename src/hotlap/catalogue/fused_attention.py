"""Attention in one kernel."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hotlap.source.attention import hand_written_attention, is_certain
from hotlap.source.bodies import remove_statement
from hotlap.source.causal_masks import is_causal_fill, made_for
from hotlap.source.edits import Edit, add_import, replace_node
from hotlap.source.moving import are_own
from hotlap.source.score_terms import scale_argument
from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source


class FusedAttention(Technique):
    """Attention runs as one kernel that never writes the matrix of weights to memory.

    ## Why it is faster
    Written by hand, attention makes a matrix of sequence by sequence for every head, writes it, reads it back to scale
    it, to mask it, for the softmax, for dropout and for the product, and keeps several of these for backward. The fused
    kernel goes through it in tiles that stay on the chip: its traffic and memory grow with the length of the sequence,
    not with its square.

    From outside, dynamo traces the model's forward, and attention is found in the graph by what it does with its
    tensors, however the script has written it: products, einsum, masks that fill or are added, in place or not. The
    rest of the graph runs as it is written, or goes to the compiler where `compiled-model` is on as well. Torch's own
    `nn.MultiheadAttention`, which makes its weights unless it is told that nobody wants them, is told.

    ## When it does not help
    Short sequences have small matrices. Masks stay tensors, since they may change, which rules out the fastest kernel;
    written into source, a mask that surely is causal becomes `is_causal`: a triangle of ones, kept by `__init__` and
    never changed by it, or made on the spot, cut to a square from 0; but for a single query, which sees all keys of a
    cache. On a CPU dropout rules the fused kernel out. In fp32 on older chips only the memory is saved.

    Left alone: attention whose scores or weights are read by anybody else, such as the caller they are given back to;
    masks with a number that leaves something of the scores; keys that several heads share; scores that are clamped or
    changed in any other way. Models that `compiled-model` would leave alone, such as those with hooks of the script's.

    Written into source it is for a person to look at, marked unsafe even where a plan holds it: no file can tell what
    other files, checkpoints and hooks do to masks and submodules. Look for these: a mask that is loaded or changed
    from outside; a dropout or softmax that is replaced, or has a hook which wants the weights; a mask of one axis, of
    more than the scores have, or of another type than the query; booleans or whole numbers that are added; a row that
    is masked altogether, which gives zeros instead of NaN; derivatives of second order, which fused kernels lack.

    ## What changes numerically
    The same mathematics with other rounding: the softmax is computed tile by tile. Dropout draws another, equally
    distributed mask. A row that -inf masks altogether gives zeros instead of NaN; one to which a low number is added
    altogether has the weights of its scores, which rounding otherwise makes more or less even.

    ## Claims
    The lists are older than the kernel and do not have it. It came with torch 2.0, as
    `F.scaled_dot_product_attention`, and chooses among several kernels by chip, type and mask.
    """

    family = Family.COMPUTE
    aliases = ("sdpa", "scaled_dot_product_attention", "flash attention", "attention")
    suits = "transformer"
    traits = frozenset({"traced"})
    helps_with = frozenset({"low precision"})
    start_up_seconds = 10.0
    written_otherwise = True

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if not any(root.attends for root in run.roots):
            return CannotHelp("no attention written by hand was found in its models")
        if run.script_compiles:
            return CannotHelp("the script compiles by itself")
        refused = next((why for root in run.roots if (why := root.stands_aside or root.not_compiled)), None)
        if refused:
            return CannotHelp(refused)
        if any(optimizer.closure for optimizer in run.optimizers):
            return CannotHelp("an optimizer that calls the model itself (a closure) has no steps of its own")
        return [Try({}, run.computing)]

    def apply(self, patch: Patch, setting: Setting) -> None:
        from hotlap.observe.compiled_calls import compile_roots
        from hotlap.parts.attention_in_graphs import Fused, fuse_attention
        from hotlap.parts.compiled_call import AS_WRITTEN

        total = Fused()

        def change(graph: Any) -> int:
            found = fuse_attention(graph)
            total.count += found.count
            total.left += found.left
            return found.count

        def missing() -> str:
            left = f" ({Counter(total.left).most_common(1)[0][0]})" if total.left else ""
            return "" if total.count else f"no attention was found that one kernel can do{left}"

        patch.item(patch.joints.graph_changes, self.id, change)
        compile_roots(patch, AS_WRITTEN, missing)

    def spot(self, source: Source) -> Iterator[Site]:
        for found in hand_written_attention(source):
            message = "attention written by hand stores its weights; scaled_dot_product_attention does not"
            yield source.site(found.softmax, message, "unsafe" if is_certain(source, found) else None)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source = site.source
        found = next(one for one in hand_written_attention(source) if one.softmax is site.node)
        functional = source.names.spelled("torch.nn.functional")
        torch = source.names.spelled("torch")
        given = [source.segment(one) for one in (found.query, found.key, found.value)]
        filled = found.filled
        is_named = isinstance(found.query, ast.Name)  # read twice, so nothing that works
        is_causal = is_named and filled is not None and is_causal_fill(source, filled, found.axes)
        options = {
            "attn_mask": None if is_causal else found.mask,
            "is_causal": f"{given[0]}.size(-2) > 1" if is_causal else None,
            "dropout_p": found.dropout,
            "scale": scale_argument(source, found.scales, found.query, found.key),
        }
        given += [f"{name}={text}" for name, text in options.items() if text is not None]
        owner = functional or f"{torch or 'torch'}.nn.functional"
        idle = list(made_for(source, filled)) if filled is not None and is_causal else []
        for statement in [*found.statements, *(idle if are_own(source, idle, found.product) else [])]:
            yield from remove_statement(source, statement)
        yield from replace_node(source, found.product, f"{owner}.scaled_dot_product_attention({', '.join(given)})")
        if functional is None and torch is None:
            yield from add_import(source, "import torch")
