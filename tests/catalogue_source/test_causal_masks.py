"""Which masks are written as `is_causal`: those that surely are; all others stay tensors. Either way the result is that
of the attention by hand, at several lengths."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch

from hotlap.catalogue import find
from hotlap.source.fix import fix_source
from hotlap.source.module import Source

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F

class Attention(nn.Module):
    def __init__(self, n=8):
        super().__init__()
        self.mix = nn.Linear(4, 12)
        {init}

    def forward(self, x, cache=None):
        B, T, C = x.size()
        q, k, v = self.mix(x).split(C, dim=2)
        k = k.view(B, T, 2, 2).transpose(1, 2)
        q = q.view(B, T, 2, 2).transpose(1, 2)
        v = v.view(B, T, 2, 2).transpose(1, 2)
        {before}
        att = q @ k.transpose(-2, -1)
        att = att.masked_fill({fill}, float("-inf"))
        att = F.softmax(att, dim=-1)
        return att @ v

    def more(self):
        {more}

{outside}
"""
PLAIN = "torch.tril(torch.ones(n, n))"
FOUR = f"{PLAIN}.view(1, 1, n, n)"
SLICED = "self.m[:T, :T] == 0"
BASE = "class Base(nn.Module):\n    def widen(self):\n        self.m = self.m + 1\n\nclass Attention(Base):"
WIDEN = "def widen(block):\n    "


def script(fill: str, kept: str = "", before: str = "", init: str = "", more: str = "", outside: str = "") -> str:
    init = init or f"self.register_buffer('m', {kept or PLAIN})"
    parts = {"init": init, "before": before or "pass", "more": more or "pass"}
    lines = {name: textwrap.dedent(text).strip().replace("\n", "\n" + 8 * " ") for name, text in parts.items()}
    return SCRIPT.format(fill=fill, outside=textwrap.dedent(outside), **lines)


CAUSAL = {
    "two axes": script(SLICED),
    "four axes": script("self.m[:, :, :T, :T] == 0", FOUR),
    "four axes by an ellipsis": script("self.m[..., :T, :T] == 0", FOUR),
    "four axes by None": script("self.m[:,:,:T,:T] == 0", f"{PLAIN}[None, None]"),
    "axes by None when sliced": script("self.m[None, None, :T, :T] == 0"),
    "a size in a tuple": script(SLICED, "torch.ones((n, n)).tril()"),
    "from 0, by the size": script("self.m[0:x.size(1), 0:x.size(1)] == 0"),
    "truths": script("~self.m[:T, :T]", "torch.tril(torch.ones(n, n, dtype=torch.bool))"),
    "truths by name": script("self.m[:T, :T] == False", "torch.tril(torch.ones((n, n), dtype=bool))"),
    "made truths": script("~self.m[:T, :T]", "torch.tril(torch.ones(n, n)).bool()"),
    "logical_not": script("self.m[:T, :T].logical_not()", f"{PLAIN}.to(torch.bool)"),
    "the future": script("self.m[:T, :T]", "torch.triu(torch.ones(n, n), diagonal=1).bool()"),
    "the future == 1": script("self.m[:T, :T] == 1", "torch.triu(torch.ones(n, n), 1)"),
    "at once": script("torch.triu(torch.ones(T, T), diagonal=1).bool()"),
    "moved": script("torch.triu(torch.ones(T, T), diagonal=1).to(x.device) == 1"),
    "by name": script("m == 0", before="m = torch.tril(torch.ones(T, T, device=x.device))"),
    "by name from a buffer": script("m == 0", before="m = self.m[:T, :T]"),
    "an attribute": script(SLICED, init=f"self.m = {PLAIN}"),
    "a buffer by keywords": script(SLICED, init=f"self.register_buffer(name='m', tensor={PLAIN}, persistent=False)"),
    "a buffer by name": script(SLICED, init=f"mask = {PLAIN}\nself.register_buffer('m', mask)"),
    "its shape asked for": script(SLICED, more="assert self.m.size(0) > self.m.shape[1]"),
    "cropped elsewhere": script(SLICED, outside="def crop(block, n):\n    block.m = block.m[:n, :n]"),
    "another class has one, too": script(
        SLICED, outside="class Other(nn.Module):\n    def f(self):\n        self.m = 1"
    ),
}
CACHED = {  # a single query sees all of them
    "a cache of keys": script(SLICED, before="if cache is not None:\n    k = v = torch.cat((cache, k), dim=2)"),
    "keys that are given": script(SLICED, before="if cache is not None:\n    k = v = cache"),
    "keys of another input": script(SLICED, before="k = v = k if cache is None else cache"),
}
TENSORS = {
    "one ahead": script(SLICED, "torch.tril(torch.ones(n, n), diagonal=1)"),
    "one ahead by place": script(SLICED, "torch.ones(n, n).tril(1)"),
    "an unknown diagonal": script(SLICED, "torch.tril(torch.ones(n, n), diagonal=n // 8)"),
    "strictly below": script(SLICED, "torch.tril(torch.ones(n, n), -1)"),
    "the future with the diagonal": script("self.m[:T, :T] == 1", "torch.triu(torch.ones(n, n))"),
    "the other way round": script("self.m[:T, :T] == 1"),
    "not turned round": script("self.m[:T, :T]", f"{PLAIN}.bool()"),
    "turned twice": script("~(self.m[:T, :T] == 0)"),
    "numbers turned round": script("~self.m[:T, :T] == 1", f"{PLAIN}.int()"),
    "another number": script("self.m[:T, :T] == 2", "torch.triu(torch.ones(n, n), 1)"),
    "more axes than are seen": script("self.m[:, :, :T, :T] == 0", FOUR, before="q = q.float() + 0"),
    "a query that works": script(SLICED).replace("q @ k", "(q + 0) @ k"),
    "not square": script(SLICED, "torch.tril(torch.ones(n, 2 * n))"),
    "written out": script(SLICED, "torch.tril(torch.ones(n, n), out=torch.empty(n, n))"),
    "no ones": script(SLICED, "torch.tril(torch.eye(n, n) + torch.ones(n, n))"),
    "random": script(SLICED, "torch.tril(torch.rand(n, n))"),
    "cut in front": script("self.m[:T, :, :T, :T] == 0", FOUR),
    "unequal": script("self.m[:T, :1] == 0"),
    "rows only": script("self.m[:T, :] == 0", "torch.tril(torch.ones(1, 1))"),
    "the last rows": script("self.m[-T:, :T] == 0"),
    "shifted rows": script("self.m[1:T + 1, :T] == 0", "torch.tril(torch.ones(2 * n, 2 * n))"),
    "the last row": script("self.m[T - 1:T, :T] == 0"),
    "counted from the end": script("self.m[:-1, :-1] == 0", "torch.tril(torch.ones(2, 2))"),
    "every second": script("self.m[:2 * T:2, :2 * T:2] == 0", "torch.tril(torch.ones(2 * n, 2 * n))"),
    "the wrong axes": script("self.m[:T, :T] == 0", "torch.tril(torch.ones(1, 1)).view(1, 1, 1, 1)"),
    "another view": script("self.m[:, :, :T, :T] == 0", f"{PLAIN}.view(1, 1, 1, n * n)"),
    "turned over": script(SLICED, f"{PLAIN}.T"),
    "flipped": script(SLICED, f"{PLAIN}.flip(0)"),
    "assigned again": script(SLICED, more="self.m = self.m + 1"),
    "added to": script(SLICED, more="self.m += 1"),
    "written to": script(SLICED, more="self.m[0] = 1"),
    "filled": script(SLICED, more="self.m.fill_(1)"),
    "given away": script(SLICED, more="nn.init.ones_(self.m)"),
    "given away by another name": script(SLICED, more="m = self.m\nm.fill_(1)"),
    "registered twice": script(SLICED, more="self.register_buffer('m', None)"),
    "registered under any name": script(SLICED, more="for name in 'm':\n    self.register_buffer(name, None)"),
    "registered elsewhere": script(SLICED, init="self.more()", more=f"n = 8\nself.register_buffer('m', {PLAIN})"),
    "registered with another": script(
        SLICED,
        init=f"""
            self.inner = nn.Module()
            self.inner.register_buffer('m', {PLAIN})
            self.__dict__['m'] = torch.ones(n, n)
        """,
    ),
    "made by two statements": script(SLICED, init=f"m = {PLAIN}\nm[:1] = 1\nself.register_buffer('m', m)"),
    "widened by a subclass": script(
        SLICED, outside="class Wide(Attention):\n    def more(self):\n        self.m = torch.ones(8, 8)"
    ),
    "registered by a subclass": script(
        SLICED, outside="class Wide(Attention):\n    def more(self):\n        self.register_buffer('m', None)"
    ),
    "widened by a subclass by another name": script(
        SLICED, outside="Base = Attention\nclass Wide(Base):\n    def more(self):\n        self.m = torch.ones(8, 8)"
    ),
    "written to by a subclass": script(
        SLICED, outside="class Wide(Attention):\n    def more(self):\n        self.m[:, 0] = 1"
    ),
    "given away by a subclass": script(
        SLICED, outside="class Wide(Attention):\n    def more(self):\n        nn.init.ones_(self.m)"
    ),
    "set by a class it is made of": script(SLICED).replace("class Attention(nn.Module):", BASE),
    "written to by others": script(SLICED, outside=WIDEN + "block.m[:, :3] = 1"),
    "filled by others": script(SLICED, outside=WIDEN + "block.m.fill_(1)"),
    "its data set by others": script(SLICED, outside=WIDEN + "block.m.data = torch.ones(8, 8)"),
    "made again by others": script(SLICED, outside=WIDEN + "torch.tril(torch.ones(8, 8), 3, out=block.m)"),
    "set by its name": script(SLICED, outside=WIDEN + "setattr(block, 'm', torch.ones(8, 8))"),
    "registered by others": script(SLICED, outside=WIDEN + "block.register_buffer('m', torch.ones(8, 8))"),
    "put among its buffers": script(SLICED, outside=WIDEN + "block._buffers['m'] = torch.ones(8, 8)"),
    "put into its state": script(
        SLICED, outside=WIDEN + "state = block.state_dict()\n    state['m'] = torch.ones(8, 8)"
    ),
    "set by others": script(SLICED, outside="def widen(block):\n    block.m = torch.ones(8, 8)"),
    "rebuilt under a condition": script(
        "m == 0", before="m = torch.tril(torch.ones(T, T))\nif cache is not None:\n    m = m + cache"
    ),
    "given or built": script(
        "cache == 0", before="if cache is None:\n    cache = torch.tril(torch.ones(T, T))"
    ),
    "written to by name": script("m == 0", before="m = torch.tril(torch.ones(T, T))\nm[:, 0] = 1"),
    "written to by another name": script("m == 0", before="m = other = torch.tril(torch.ones(T, T))\nother.fill_(1)"),
    "the last query": script("self.m[:1, :1] == 0", before="q = q[:, :, -1:]"),
    "queries parted by place": script("self.m[:1, :1] == 0", before="q, _ = q.split([1, T - 1], dim=-2)"),
    "keys of one place": script(
        "self.m[:1, :1] == 0",
        before="""
            k, _, _ = self.mix(x[:, 0]).split(C, dim=-1)
            k, v = k.view(B, 1, 2, 2).transpose(1, 2), v[:, :, :1]
        """,
    ),
}  # fmt: skip


def fixed(text: str) -> str:
    return fix_source(Source(text), [(find("fused-attention"), {})], unsafe=True)


def outputs(text: str, *cache: torch.Tensor, lengths: tuple[int, ...] = (1, 5, 8)) -> list[torch.Tensor]:
    names: dict[str, Any] = {}
    exec(compile(text, "script", "exec"), names)
    torch.manual_seed(0)
    model = names["Attention"]()
    return [model(torch.randn(2, length, 4), *cache) for length in lengths]


@pytest.mark.parametrize("text", CAUSAL.values(), ids=CAUSAL.keys())
def test_a_causal_mask_is_said_in_a_word(text: str) -> None:
    written = fixed(text)
    assert "F.scaled_dot_product_attention(q, k, v, is_causal=q.size(-2) > 1, scale=1.0)" in written
    assert "attn_mask" not in written and " m = " not in written
    torch.testing.assert_close(outputs(written), outputs(text))


@pytest.mark.parametrize("text", TENSORS.values(), ids=TENSORS.keys())
def test_any_other_mask_stays_a_tensor(text: str) -> None:
    written = fixed(text)
    assert "attn_mask=" in written and "is_causal" not in written
    for before, after in zip(outputs(text), outputs(written), strict=True):
        seen = ~before.isnan()  # a row that sees nothing has no value by hand
        torch.testing.assert_close(after[seen], before[seen])


@pytest.mark.parametrize("text", CACHED.values(), ids=CACHED.keys())
def test_a_single_query_sees_a_whole_cache_as_before(text: str) -> None:
    written, cache = fixed(text), torch.randn(2, 2, 6, 2)
    assert "F.scaled_dot_product_attention(q, k, v, is_causal=q.size(-2) > 1, scale=1.0)" in written
    torch.testing.assert_close(outputs(written), outputs(text))
    torch.testing.assert_close(outputs(written, cache, lengths=(1,)), outputs(text, cache, lengths=(1,)))


def test_a_mask_that_is_commented_stays_beside_it() -> None:
    text = script("m == 0", before="m = torch.tril(torch.ones(T, T))  # the past")
    assert "# the past" in fixed(text) and "is_causal=" in fixed(text)


def test_a_mask_that_others_may_see_stays() -> None:
    assert "future =" in fixed(AT_THE_TOP) and "is_causal=" in fixed(AT_THE_TOP)
    text = script("m == 0", before="m = torch.tril(torch.ones(T, T))\nprint(locals())")
    assert fixed(text) == text


AT_THE_TOP = """
import torch
x = torch.randn(2, 4, 8)
future = torch.triu(torch.ones(4, 4), diagonal=1).bool()
print(torch.softmax((x @ x.mT).masked_fill(future, float("-inf")), dim=-1) @ x)
"""
