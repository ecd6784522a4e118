"""An update written by hand becomes one call with the same bits, or is left alone."""

from __future__ import annotations

import pytest
import torch

from hotlap.catalogue import find
from hotlap.source.fix import fix_source
from hotlap.source.module import Source

LOOP = """import torch
lr = 0.3
for x in data:
    loss(x).backward()
    with {context}:
        for p in model.parameters():
            {update}
"""
PLAIN, NO_GRAD = "open(__file__)", "torch.no_grad()"


def fixed(text: str) -> str:
    technique = find("fused-optimizer")
    return fix_source(Source(text), [(technique, technique.default)], unsafe=True)


def written(update: str, context: str) -> str:
    return LOOP.format(context=context, update=update)


@pytest.mark.parametrize(
    ("update", "context"),
    [
        ("p.data.add_(p.grad, alpha=-lr)", PLAIN),
        ("p.data.add_(p.grad.data, alpha=-0.3)", PLAIN),
        ("p.data.sub_(p.grad, alpha=lr)", PLAIN),
        ("p.data.sub_(lr * p.grad)", PLAIN),
        ("p.data.add_(-lr * p.grad.data)", PLAIN),
        ("p.data.add_(p.grad * -lr)", PLAIN),
        ("p.data -= lr * p.grad", PLAIN),
        ("p.data.sub_(p.grad)", PLAIN),
        ("p -= lr * p.grad", NO_GRAD),
        ("p.sub_(lr * p.grad)", NO_GRAD),
        ("if p.grad is not None:\n                p.data.add_(p.grad, alpha=-lr)", PLAIN),
        ("if p.grad is not None:\n                p -= p.grad * lr", NO_GRAD),
    ],
)
def test_the_same_bits(update: str, context: str) -> None:
    before = written(update, context)
    after = fixed(before)
    assert "_foreach_" in after and "for p in model.parameters():" not in after
    assert fixed(after) == after

    def trained(text: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
        if "is not None" in update:
            model[0].bias.requires_grad_(False)
        data = list(torch.randn(6, 9, 5))
        names = {"model": model, "data": data, "loss": lambda x: model(x).square().mean(), "__file__": __file__}
        exec(compile(text, "train.py", "exec"), names)
        return list(model.parameters())

    first, second = trained(before), trained(after)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("update", "context"),
    [
        ("p -= lr * p.grad", PLAIN),  # raises, and must go on raising
        ("p.data.add_(p.grad, alpha=rate())", PLAIN),
        ("p.data.add_(p.grad, alpha=-other)", PLAIN),
        ("p.data.sub_(lr * p.grad + 0.1 * p.data)", PLAIN),
        ("p.data.sub_(lr * p.grad / 2)", PLAIN),
        ("p.data = p.data - lr * p.grad", PLAIN),
        ("p.data.sub_(lr * p.grad)\n            p.grad.zero_()", PLAIN),
        ("p.data.sub_(lr * p.grad)\n        print(p)", PLAIN),
        ("if p.grad is None:\n                p.data.sub_(lr * p.grad)", PLAIN),
        ("if p.requires_grad:\n                p.data.sub_(lr * p.grad)", PLAIN),
        ("p.data.sub_(q.grad * lr); p.data.add_(p.grad)", PLAIN),
        ("p.data.add_(p.grad, lr)", PLAIN),
        ("# careful\n            p.data.sub_(lr * p.grad)", PLAIN),
    ],
)
def test_what_is_not_certain_is_left_alone(update: str, context: str) -> None:
    text = written(update, context)
    assert fixed(text) == text


def test_a_loop_with_an_end_of_its_own_is_left_alone() -> None:
    text = written("p.data.sub_(lr * p.grad)", PLAIN) + "        else:\n            print()\n"
    assert fixed(text) == text
    text = written("p.data.sub_(lr * p.grad)", PLAIN).replace("parameters()", "parameters(recurse=False)")
    assert fixed(text) == text
