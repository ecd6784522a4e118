"""Attention in one kernel."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hotlap.source.attention import hand_written_attention, is_certain
from hotlap.source.bodies import remove_statement
from hotlap.source.causal_masks import is_causal_fill, made_for
from hotlap.source.edits import Edit, add_import, replace_node
from hotlap.source.moving import are_own
from hotlap.source.score_terms import scale_argument
from hotlap.technique import Family, Parity, Setting, Technique

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source


class FusedAttention(Technique):
    """Attention runs as one kernel that never writes the matrix of weights to memory.

    ## Why it is faster
    Written by hand, attention makes a matrix of sequence by sequence for every head, writes it, reads it back to scale
    it, to mask it, for the softmax, for dropout and for the product, and keeps several of these for backward. The fused
    kernel goes through it in tiles that stay on the chip: its traffic and memory grow with the length of the sequence,
    not with its square.

    ## When it does not help
    Short sequences have small matrices. A mask given as a tensor rules out the fastest kernel. Where a mask surely is
    causal, `is_causal` takes its place: a triangle of ones, kept by `__init__` and never changed by it, or made on the
    spot, cut to a square from 0; but for a single query, which sees all keys of a cache. Any other mask stays a tensor.
    The weights themselves are no longer there, so nothing is reported where they are returned or looked at. In fp32 on
    older chips only the memory is saved. On a CPU dropout rules the fused kernel out.

    Only written into source, for a person to look at, and marked unsafe: no file can tell what other files, checkpoints
    and hooks do to masks and submodules, so `tune` does not try it. Look for these: a mask that is loaded or changed
    from outside; a dropout or softmax that is replaced, or has a hook which wants the weights; a mask of one axis, of
    more than the scores have, or of another type than the query; booleans or whole numbers that are added; a row that
    is masked altogether, which gives zeros instead of NaN; derivatives of second order, which fused kernels lack.

    ## What changes numerically
    The same mathematics with other rounding: the softmax is computed tile by tile. Dropout draws another, equally
    distributed mask.

    ## Claims
    The lists are older than the kernel and do not have it. It came with torch 2.0, as
    `F.scaled_dot_product_attention`, and chooses among several kernels by chip, type and mask.
    """

    family = Family.COMPUTE
    aliases = ("sdpa", "scaled_dot_product_attention", "flash attention", "attention")
    suits = "transformer"

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

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
