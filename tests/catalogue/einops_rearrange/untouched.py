"""Chains that one pattern cannot say for sure, and short ones that need none."""

import torch


def heads(q, n_head):
    B, T, C = q.shape
    return q.view(B, T, n_head, C // n_head).transpose(1, 2)


def together(y):
    B, H, T, D = y.shape
    return y.transpose(1, 2).contiguous().view(B, T, H * D)


def unknown_shape(x, B, H, W, k):
    return x.view(B, H // k, k, W // k, k).permute(0, 1, 3, 2, 4).reshape(B, -1, k * k)


def changed_shape(x, k):
    B, H, W, C = x.shape
    x = torch.cat([x, x], dim=1)
    return x.view(B, H // k, k, W // k, k, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, k, k, C)


def across(x, k):
    N, C, L = x.shape
    return x.view(N, k, C // k, L).permute(0, 2, 1, 3).reshape(C, N, L)  # joins what is not side by side


def order_by_name(x, order, k):
    N, C, L = x.shape
    return x.view(N, k, C // k, L).permute(*order).reshape(N, C, L)
