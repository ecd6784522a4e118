"""Softmaxes that are no attention, and attentions whose weights are wanted."""

import torch
import torch.nn.functional as F


def with_weights(q, k, v):
    weights = F.softmax(q @ k.transpose(-2, -1), dim=-1)
    return weights @ v, weights


def looked_at(self, q, k, v):
    weights = F.softmax(q @ k.transpose(-2, -1), dim=-1)
    self.weights = weights
    return weights @ v


def other_axis(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1), dim=1) @ v


def from_edges(edges, h):
    attention = F.softmax(edges, dim=-1)  # a graph network: its scores are sums, not products
    return attention @ h


def classify(x, weight):
    return F.softmax(x @ weight.transpose(-2, -1), dim=-1).argmax(dim=-1)


def linear(q, k, v):
    return F.softmax(q, dim=-1) @ (k.transpose(-2, -1) @ v)


def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def causal_with_weights(x):
    future = torch.triu(torch.ones(x.size(1), x.size(1)), diagonal=1).bool()
    weights = F.softmax((x @ x.mT).masked_fill(future, float("-inf")), dim=-1)
    return weights @ x, weights


def already_causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def averaged(q, k, v):
    weights = F.softmax(q @ k.transpose(-2, -1), dim=-1)
    out = weights @ v
    weights = weights.mean(dim=1)
    return out, weights


def in_either_way(q, k, v, fast):
    if fast:
        weights = F.softmax(q @ k.transpose(-2, -1), dim=-1)
        out = weights @ v
    else:
        weights, out = None, v
    return out, weights


def next_time(q, k, v):
    weights = torch.zeros(())
    for _ in range(2):
        print(weights.sum())
        weights = F.softmax(q @ k.transpose(-2, -1), dim=-1)
        q = weights @ v
    return q


def hooked(q, k, v):
    weights = F.softmax(q @ k.transpose(-2, -1), dim=-1)
    out = weights @ v
    out.register_hook(lambda gradient: gradient * weights.sum())
    return out
