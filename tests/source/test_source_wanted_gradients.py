"""Evaluations whose gradients somebody wants after all are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotlap.catalogue import find
from hotlap.source.module import Source
from hotlap.source.project import Project

HEAD = "import torch\nfrom torch import nn\nmodel = nn.Linear(4, 2)\n"
EVALUATION = "def validate(model, batches):\n    model.eval()\n    return sum(model(x).sum().item() for x in batches)\n"
ASKING = "class Field(nn.Module):\n    def forward(self, x):\n        return {}\n"

LATER = {
    "a loss given to a function that goes back": (
        "def loss_of(x):\n    model.eval()\n    return model(x).sum()\n"
        "def learn(loss):\n    loss.backward()\nlearn(loss_of(batch))\n"
    ),
    "at once": "def loss_of(x):\n    model.eval()\n    return model(x).sum()\n(2 * loss_of(batch)).backward()\n",
    "kept in a list": (
        "model.eval()\nkept = []\nfor x in batches:\n    kept.append(model(x))\ntorch.cat(kept).sum().backward()\n"
    ),
    "kept in an object": (
        "class Trainer:\n    def features(self, x):\n        self.model = model\n        model.eval()\n"
        "        return model(x)\n    def step(self, x):\n        self.loss = self.features(x).sum()\n"
        "        self.go()\n"
        "    def go(self):\n        self.loss.backward()\n"
    ),
    "by torch.autograd": (
        "def loss_of(x):\n    model.eval()\n    return model(x).sum()\n"
        "total = loss_of(batch)\nprint(torch.autograd.grad(total, batch))\n"
    ),
}


def lines(source: Source) -> list[int]:
    return [site.line for site in find("grad-free-evaluation").spot(source)]


@pytest.mark.parametrize("name", LATER)
def test_what_is_gone_back_through_later(name: str) -> None:
    text = HEAD + LATER[name]
    assert lines(Source(text)) == []
    text = text.replace(".backward()", ".tolist()").replace("torch.autograd.grad", "torch.add")
    assert len(lines(Source(text))) == 1, "the same, where nobody does"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("torch.autograd.grad(self.energy(x).sum(), x)[0]", []),
        ("torch.func.vmap(torch.func.jacrev(self.energy))(x)", []),
        ("self.energy(x.requires_grad_(True))", []),
        ("self.energy(x.requires_grad_(False))", [6]),
        ("self.energy(x)", [6]),
    ],
)
def test_a_network_that_asks_for_gradients_itself(tmp_path: Path, asked: str, expected: list[int]) -> None:
    (tmp_path / "field.py").write_text("import torch\nfrom torch import nn\n" + ASKING.format(asked))
    path = tmp_path / "train.py"
    path.write_text("import torch\nfrom field import Field\nmodel = Field()\n" + EVALUATION)
    assert lines(Source.read(path, Project())) == expected
    beside = Source(HEAD + ASKING.format(asked) + EVALUATION)
    assert bool(lines(beside)) is bool(expected)
