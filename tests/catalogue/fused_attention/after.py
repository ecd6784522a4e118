"""Attentions written by hand: causal in several spellings, with a mask that is added, in one line; and masks that only
look causal, which stay tensors."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Causal(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.mix = nn.Linear(width, 3 * width)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("past", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.mix(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        # every token looks back
        out = F.scaled_dot_product_attention(q, k, v, is_causal=q.size(-2) > 1, dropout_p=self.drop.p if self.drop.training else 0.0)  # mixed values
        return out.transpose(1, 2).reshape(batch, length, width)


class Head(nn.Module):
    def __init__(self, width, longest):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.register_buffer("seen", torch.tril(torch.ones(longest, longest, dtype=torch.bool)), persistent=False)

    def forward(self, x):
        k = self.key(x)
        q = self.query(x)
        return F.scaled_dot_product_attention(q, k, x, is_causal=q.size(-2) > 1, scale=1.0)


def looks_back(x):
    length = x.size(1)
    return F.scaled_dot_product_attention(x, x, x, is_causal=x.size(-2) > 1, scale=1.0)


class Padded(nn.Module):
    def __init__(self, width, heads, rate=0.0):
        super().__init__()
        self.heads, self.rate = heads, rate
        self.size = int(width / heads)
        self.query = nn.Linear(width, width)
        self.drop = nn.Dropout(rate)
        self.scale = width**-0.5

    def forward(self, x, mask):
        batch, length, width = x.size()
        q = self.query(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask, dropout_p=self.drop.p if self.drop.training else 0.0, scale=1.0 / math.sqrt(self.size))
        return out.permute(0, 2, 1, 3).contiguous().view(batch, length, width)

    def flat(self, x, mask):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=~(mask < 0), dropout_p=(self.rate if self.heads > 1 else 0.0) if self.training else 0.0, scale=self.scale)


class NearlyCausal(nn.Module):
    def __init__(self, longest):
        super().__init__()
        self.register_buffer("ahead", torch.tril(torch.ones(longest, longest), diagonal=1))
        self.register_buffer("strict", torch.tril(torch.ones(longest, longest), diagonal=-1))
        self.register_buffer("past", torch.tril(torch.ones(longest, longest)))
        self.register_buffer("changed", torch.tril(torch.ones(longest, longest)))

    def see_all(self):
        self.changed = torch.ones_like(self.changed)

    def one_ahead(self, x):
        t = x.size(1)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=self.ahead[:t, :t] != 0, scale=1.0)

    def without_itself(self, x):
        t = x.size(1)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=self.strict[:t, :t] != 0, scale=1.0)

    def looks_forth(self, x):
        t = x.size(1)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=~(self.past[:t, :t] == 1), scale=1.0)

    def unequal(self, x):
        t = x.size(1)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=self.past[:t, :1] != 0, scale=1.0)

    def last_rows(self, x):
        t = x.size(1)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=self.past[-t:, :t] != 0, scale=1.0)

    def reassigned(self, x):
        t = x.size(1)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=self.changed[:t, :t] != 0, scale=1.0)

    def with_a_cache(self, x, earlier):
        t, k = x.size(1), torch.cat((earlier, x), dim=1)  # a single position sees them all
        return F.scaled_dot_product_attention(x, k, k, is_causal=x.size(-2) > 1, scale=1.0)


def rebuilt(x, others=None):
    past = torch.tril(torch.ones(x.size(1), x.size(1)))
    if others is not None:
        past = past + others
    return F.scaled_dot_product_attention(x, x, x, attn_mask=past != 0, scale=1.0)


def scaled(q, k, v, bias, scale: float = 0.5):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)


def short(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, scale=1.0)


torch.manual_seed(0)
model = nn.Sequential(Causal(8, 2), Head(8, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    x = torch.randn(4, 16, 8)
    y = looks_back(model(x))
    loss = (scaled(y, x, x, torch.zeros(16, 16)) - short(x, y, y)).pow(2).mean()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")

nearly = NearlyCausal(32)
nearly.see_all()
outputs = [
    nearly.one_ahead(x),
    nearly.without_itself(x)[:, 1:],  # the first sees nothing
    nearly.looks_forth(x)[:, :-1],
    nearly.unequal(x),
    nearly.last_rows(x),
    nearly.reassigned(x),
    nearly.with_a_cache(x[:, -1:], x[:, :-1]),
    rebuilt(x, torch.eye(16).flip(0)),
    Padded(8, 2)(x, torch.eye(16)[:1] * -1e4),
    Padded(8, 2).flat(x, torch.eye(16) - 0.5),
]
for output in outputs:
    print(f"{output.pow(2).sum().item():.3f}")
