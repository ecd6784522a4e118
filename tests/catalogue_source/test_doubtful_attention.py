"""Attention by hand that is left as it is, since one call might compute something else; and what stands close to it but
can be written. Each is a body of `f(q, k, v, mask)` of a class; what it gives is compared where it is rewritten."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch

from hotlap.catalogue import find
from hotlap.source.fix import fix_source
from hotlap.source.module import Source

SCRIPT = """
import math
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

class Attention(nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(0, 1, 25).view(5, 5))
        self.learned = nn.Parameter(torch.tensor(0.7))
        self.scale = width ** -0.5
        self.heat = 2.0
        self.given = width
        self.drop = nn.Dropout(0.0)
        self.first = nn.Dropout(0.5)
        self.value = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)
        self.rate, self.wide = 0.0, True

    def f(self, q, k, v, mask):
{body}

    def warm(self):
        self.heat = 1.0

    def turned(self, x):
        return x
"""
END = "\nweights = F.softmax(scores, dim=-1)\nreturn weights @ v"
PLAIN = "weights = F.softmax(q @ k.mT, dim=-1)\n"
MIXED = PLAIN + "out = weights @ v\n"
FILLED = "scores = scores.masked_fill({}, float('-inf'))"
MASKED = "scores = (q @ k.mT).masked_fill({}, float('-inf'))" + END

LEFT = {
    # a bias and a scale
    "scaled after a bias": "scores = (q @ k.mT + self.bias) / 2" + END,
    "scaled after a bias, later": "scores = q @ k.mT\nscores = scores + self.bias\nscores *= 0.5" + END,
    "a constant added": "scores = q @ k.mT + 1e-6" + END,
    "a number added": "eps = 1e-6\nscores = q @ k.mT + eps" + END,
    "a bias or nothing": "scores = q @ k.mT + (self.bias if mask is None else 0)" + END,
    "a comparison added": "scores = q @ k.mT + (mask == mask)" + END,
    "a comparison added by name": "same = mask == mask\nscores = q @ k.mT + same" + END,
    "booleans added by name": "same = torch.eye(5, dtype=torch.bool)\nscores = q @ k.mT + same" + END,
    "whole numbers added": "scores = q @ k.mT + (1 - mask.long()) * -10000" + END,
    # scales
    "a learned scale": "scores = q @ k.mT * self.learned" + END,
    "a learned scale, put to work": "scores = q @ k.mT / self.learned.exp()" + END,
    "a scale that is a parameter": "scores = q @ k.mT * mask" + END,
    "a tensor by name": "root = torch.tensor(2.0)\nscores = q @ k.mT / root" + END,
    "a scale set twice": "scores = q @ k.mT / self.heat" + END,
    # text that can be read no more
    "a mask as large as the scores": "scores = q @ k.mT\n" + FILLED.format("mask[:scores.size(-2)]") + END,
    "a bias of the scores' type": "scores = q @ k.mT\nscores = scores + self.bias[:scores.size(-2)]" + END,
    "a scale by the scores": "scores = q @ k.mT\nscores = scores / math.sqrt(scores.size(-1))" + END,
    # changed on the way
    "a mask rebound": "scores = (q @ k.mT).masked_fill(mask, float('-inf'))\nmask = ~mask" + END,
    "a mask written to": "scores = (q @ k.mT).masked_fill(mask, float('-inf'))\nmask[:] = False" + END,
    "a key changed in place": PLAIN + "k.mul_(2)\nreturn weights @ v",
    "a query changed by another name": "other = q\n" + PLAIN + "other.mul_(2)\nreturn weights @ v",
    "a query written to": PLAIN + "q[:, 0] = 0\nreturn weights @ v",
    "a query added to": PLAIN + "q += 1\nreturn weights @ v",
    "an attribute set": "scores = q @ k.mT * self.scale\nself.scale = 2.0" + END,
    "an own method called": PLAIN + "self.warm()\nreturn weights @ v",
    "an unknown function called": PLAIN + "print(hash(q), iter(k))\nreturn weights @ v",
    "a mask by an own method": MASKED.format("self.turned(mask)"),
    "a value by an own method": PLAIN + "return weights @ self.turned(v)",
    "another key by a comprehension": PLAIN + "return [weights @ k for k in (v, v)][0]",
    "another value by a lambda": PLAIN + "return (lambda v: weights @ v)(v)",
    "read in every round": PLAIN + "while (weights @ v).sum() > 9:\n    q = q - 1\nreturn v",
    "named on the way": MASKED.format("(seen := mask)"),
    # read again
    "averaged and returned": MIXED + "weights = weights.mean(1)\nreturn out, weights",
    "scaled and returned": MIXED + "weights *= 2\nreturn out, weights",
    "scores beside the product": "scores = q @ k.mT\nweights = F.softmax(scores, dim=-1)\nreturn weights @ v, scores",
    "deleted": MIXED + "del weights\nreturn out",
    "set in one branch, then read": MIXED + "if mask is None:\n    weights = None\nreturn out, weights",
    "set in the other branch": """
        if mask is not None:
            weights = F.softmax(q @ k.mT, dim=-1)
            out = weights @ v
        else:
            weights, out = None, v
        return out, weights
    """,
    "read in the next round": """
        weights, seen = torch.zeros(()), []
        for _ in range(2):
            seen.append(weights.sum())
            weights = F.softmax(q @ k.mT, dim=-1)
            q = weights @ v
        return q, seen
    """,
    "read by a function": "def total():\n    return weights.sum()\n" + PLAIN + "return weights @ v * total()",
    "read by a lambda": MIXED + "return out * (lambda: weights.sum())()",
    "read by a comprehension": MIXED + "return out * sum([weights[i].max() for i in range(2)])",
    "read by a generator": MIXED + "tops = (weights[i].max() for i in range(2))\nreturn out * sum(tops)",
    "a global": "global weights\n" + PLAIN + "return weights @ v",
    "locals()": MIXED + "return out, sorted(locals())",
    # the result
    "a result added to": MIXED + "out += v\nreturn out",
    "a result multiplied in place": MIXED + "out.mul_(2)\nreturn out",
    "a result multiplied at once": PLAIN + "return (weights @ v).mul_(2)",
    "a result written to": MIXED + "out[:, 0] = 0\nreturn out",
    "a result beside another": PLAIN + "out, one = weights @ v, 1\nout += one\nreturn out",
    "a view of it added to": MIXED + "flat = out.transpose(1, 2).contiguous()\nflat *= 2\nreturn flat",
    "a layer in place": PLAIN + "return self.relu(weights @ v)",
    "seen as another shape": MIXED + "return out.view(2, 20)",
    # dropout, axes and options
    "two dropouts": PLAIN + "weights = self.first(weights)\nweights = self.drop(weights)\nreturn weights @ v",
    "two dropouts at once": "weights = F.dropout(self.drop(F.softmax(q @ k.mT, dim=-1)), 0.0)\nreturn weights @ v",
    "axes from the front, of three": "return F.softmax(q @ k.transpose(1, 2), dim=-1) @ v",
    "axes from the front, not seen": "k = k.unsqueeze(0)\nreturn F.softmax(q @ k.transpose(2, 3), dim=-1) @ v",
    "a softmax from the front": "return F.softmax(q[None] @ k.mT, dim=3) @ v",
    "a softmax of another type": "return F.softmax(q @ k.mT, dim=-1, dtype=torch.float64) @ v.double()",
    "a softmax by its own type": "weights = torch.softmax(q @ k.mT, -1, torch.float32)\nreturn weights @ v",
    "scores written elsewhere": "scores = torch.bmm(q, k.mT, out=torch.empty(2, 5, 5))" + END,
    "a result written elsewhere": PLAIN + "out = v * 0\ntorch.bmm(weights, v, out=out)\nreturn out",
}  # fmt: skip
WRITTEN = {
    "scaled before a bias": ("scores = q @ k.mT / 2\nscores = scores + self.bias" + END,
                             "q, k, v, attn_mask=self.bias, scale=1.0 / 2"),
    "a part of a bias": ("scores = q @ k.mT + self.bias[:5, :5]" + END,
                         "q, k, v, attn_mask=self.bias[:5, :5], scale=1.0"),
    "filled before it is scaled": ("scores = (q @ k.mT).masked_fill(mask, -math.inf) * self.scale" + END,
                                   "q, k, v, attn_mask=~mask, scale=self.scale"),
    "a numpy root": ("scores = q @ k.mT / np.sqrt(self.given)" + END, "q, k, v, scale=1.0 / np.sqrt(self.given)"),
    "a size": ("b, t, c = q.shape\nscores = q @ k.mT * c ** -0.5" + END, "q, k, v, scale=c ** -0.5"),
    "a number by name": ("root = float(k.size(-1))\nscores = q @ k.mT / root" + END, "q, k, v, scale=1.0 / root"),
    "its own root": ("scores = q @ k.mT / math.sqrt(k.size(-1))" + END, "q, k, v"),
    "a comparison == 0": (MASKED.format("(mask > 0) == 0"), "q, k, v, attn_mask=(mask > 0) != 0, scale=1.0"),
    "a choice == 0": (MASKED.format("(mask if self.wide else q) == 0"),
                      "q, k, v, attn_mask=(mask if self.wide else q) != 0, scale=1.0"),
    "a choice of shares": (PLAIN + "weights = F.dropout(weights, self.rate if self.wide else 0.1, self.training)\n"
                           "return weights @ v",
                           "q, k, v, dropout_p=(self.rate if self.wide else 0.1) if self.training else 0.0, scale=1.0"),
    "a choice when to drop": (PLAIN + "weights = F.dropout(weights, 0.0, self.training if self.wide else False)\n"
                              "return weights @ v",
                              "q, k, v, dropout_p=0.0 if (self.training if self.wide else False) else 0.0, scale=1.0"),
    "dropout whatever happens": (PLAIN + "weights = F.dropout(weights, p=self.rate)\nreturn weights @ v",
                                 "q, k, v, dropout_p=self.rate, scale=1.0"),
    "a layer of its own": ("weights = self.drop(F.softmax(q @ k.mT, dim=-1))\nreturn weights @ v",
                           "q, k, v, dropout_p=self.drop.p if self.drop.training else 0.0, scale=1.0"),
    "a value made on the way": (PLAIN + "v = self.value(v)\nreturn weights @ v", "q, k, v, scale=1.0"),
    "the query's own name": (PLAIN + "q = weights @ v\nreturn q", "q, k, v, scale=1.0"),
    "twice under one name": (PLAIN + "q = weights @ v\n" + PLAIN + "return weights @ v", "q, k, v, scale=1.0"),
    "a bmm": ("weights = F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1)\nreturn torch.bmm(weights, v).view(2, 20)",
              "q, k, v, scale=1.0"),
    "four axes": ("q, k = q.view(2, 5, 2, 2).transpose(1, 2), k.view(2, 5, 2, 2).transpose(1, 2)\n"
                  "v = v.view(2, 5, 2, 2).transpose(1, 2)\n"
                  "weights = F.softmax(q @ k.transpose(2, 3), dim=3)\nreturn weights @ v", "q, k, v, scale=1.0"),
    "a name that was read before": ("mask = mask.float() * -9\nmask = F.softmax(q @ k.mT, dim=-1)\nreturn mask @ v",
                                    "q, k, v, scale=1.0"),
    "four axes, scaled": ("q, k = q.view(2, 5, 2, 2) * self.scale, k.view(2, 5, 2, 2) / 2\nv = v.view(2, 5, 2, 2)\n"
                          "return F.softmax(q @ k.transpose(2, 3), dim=3) @ v", "q, k, v, scale=1.0"),
    "in a comprehension": ("return torch.stack([F.softmax(a @ b.mT, dim=-1) @ c for a, b, c in zip(q, k, v)])",
                           "a, b, c, scale=1.0"),
}  # fmt: skip


def script(body: str) -> str:
    return SCRIPT.format(body=textwrap.indent(textwrap.dedent(body).strip("\n"), 8 * " "))


def fixed(text: str) -> str:
    return fix_source(Source(text), [(find("fused-attention"), {})], unsafe=True)


def outcome(text: str) -> tuple[Any, torch.Tensor]:
    names: dict[str, Any] = {}
    exec(compile(text, "script", "exec"), names)
    torch.manual_seed(0)
    model = names["Attention"]()
    q, k, v = torch.randn(3, 2, 5, 4).requires_grad_().unbind()
    return model.f(q, k, v, torch.eye(5).flip(0) > 0), model


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT.keys())
def test_it_is_left_alone(body: str) -> None:
    assert fixed(script(body)) == script(body)


@pytest.mark.parametrize(("body", "call"), WRITTEN.values(), ids=WRITTEN.keys())
def test_it_is_written(body: str, call: str) -> None:
    written = fixed(script(body))
    assert f"F.scaled_dot_product_attention({call})" in written and "softmax" not in written
    torch.testing.assert_close(outcome(written)[0], outcome(script(body))[0])


LAYERED = "weights = self.drop(F.softmax(q @ k.mT, dim=-1))\nreturn weights @ v"


@pytest.mark.parametrize(
    "outside",
    [
        "def change(model):\n    model.drop = nn.Identity()",
        "class Other(Attention):\n    def change(self):\n        self.drop = nn.Identity()",
        "def change(model):\n    model.drop.register_forward_hook(print)",
        "def change(model):\n    setattr(model, 'drop', nn.Identity())",
        "def change(model):\n    model._modules['drop'] = nn.Identity()",
    ],
)
def test_a_layer_that_is_replaced_or_listened_to_stays(outside: str) -> None:
    text = script(LAYERED) + "\n" + outside + "\n"
    assert fixed(text) == text
    elsewhere = "class Unlike(nn.Module):\n    def change(self):\n        self.drop = nn.Identity()\n"
    assert "scaled_dot_product_attention" in fixed(script(LAYERED) + "\n" + elsewhere)
