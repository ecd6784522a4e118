"""Attention written by hand, found in what dynamo traces of a model: alone, together with the compiler, and where there
is none."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hotlap.catalogue import find
from hotlap.measure.candidates import Candidate, Skipped, consider
from hotlap.observe.attending import may_attend
from hotlap.observe.run import SHARES, RootFacts, Run

WIDTH, LENGTH = 12, 6


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How attention was called: what a traced graph holds is looked up in torch as it runs."""
    found: list[str] = []
    plain = F.scaled_dot_product_attention

    def counted(*args, **kwargs):
        found.append("fused")
        return plain(*args, **kwargs)

    monkeypatch.setattr("hotlap.parts.attention_in_graphs.scaled_dot_product_attention", counted)
    return found


def weights_of(query, key):
    return F.softmax(query @ key.transpose(-2, -1) / query.size(-1) ** 0.5, dim=-1)


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.mix, self.dropout = nn.Linear(WIDTH, 3 * WIDTH), nn.Dropout(dropout)

    def forward(self, x):
        heads = self.mix(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        out = self.dropout(weights_of(heads[0], heads[1])) @ heads[2]
        return out.transpose(1, 2).flatten(2)


class Net(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.attention, self.head = Attention(**options), nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(x + self.attention(x)).mean(dim=1)


class Told(Attention):
    """Its caller wants the weights."""

    def forward(self, x):
        heads = self.mix(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        weights = weights_of(heads[0], heads[1])
        return (weights @ heads[2]).transpose(1, 2).flatten(2), weights


class Telling(Net):
    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.attention, self.looks = Told(), looks

    def forward(self, x):
        out, weights = self.attention(x)
        out = self.head(x + out).mean(dim=1)
        return out + weights.var() if self.looks else out


def network(kind: type[nn.Module] = Net, **options) -> nn.Module:
    torch.manual_seed(0)
    return kind(**options)


def train(*models: nn.Module, steps: int = 6) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        x = torch.randn(4, LENGTH, WIDTH, generator=generator)
        optimizer.zero_grad()
        loss = sum(model(x).square().mean() for model in models)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_the_training_is_the_same_in_one_kernel(apply, calls: list[str]) -> None:
    expected = train(plain := network())
    patch = apply("fused-attention")
    model = network()
    assert train(model) == pytest.approx(expected, rel=1e-5)
    assert 3 <= len(calls) < 6, "all but the first calls, which show what the script calls"
    assert patch.joints.withdrawn == [] and list(model.state_dict()) == list(plain.state_dict())
    calls.clear()
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(torch.ones(2, 3, WIDTH)), plain.eval()(torch.ones(2, 3, WIDTH)))
    assert calls == []


def test_copies_pickles_and_undo_are_plain(apply, calls: list[str]) -> None:
    patch = apply("fused-attention")
    train(model := network())
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    patch.undo()
    calls.clear()
    assert patch.joints.graph_changes == {}
    for one in (*copies, model):
        train(one)
    assert calls == []


@pytest.mark.parametrize("first", ["fused-attention", "compiled-model"])
@pytest.mark.parametrize("part", ["model", "block"])
def test_with_the_compiler_it_is_the_compilers_graph(
    apply, calls: list[str], monkeypatch: pytest.MonkeyPatch, first: str, part: str
) -> None:
    """Inductor is left out: it is asked for the changed graph, once for each that there is."""
    asked = []

    def inductor(graph, inputs, options):
        asked.append(dict(options))
        return graph.forward

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.head = nn.ModuleList(Attention() for _ in range(3)), nn.Linear(WIDTH, 3)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    monkeypatch.setattr(torch._inductor, "compile", inductor)
    expected = train(network(Blocks))
    settings = {"compiled-model": {"mode": "default", "part": part}, "fused-attention": {}}
    for name in sorted(settings, key=lambda name: name != first):
        patch = apply(name, settings[name])
    assert train(network(Blocks)) == pytest.approx(expected, rel=1e-5)
    assert patch.joints.withdrawn == [] and calls and graphs() == len(asked)
    assert len(asked) == (1 if part == "model" else 2), "the first block's input has no gradient"


def test_weights_that_are_given_back_and_not_looked_at_are_not_made(apply, calls: list[str]) -> None:
    expected = train(network(Telling, looks=False))
    patch = apply("fused-attention")
    assert train(network(Telling, looks=False)) == pytest.approx(expected, rel=1e-5)
    assert calls and patch.joints.withdrawn == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": Telling, "looks": True}, "its weights are used elsewhere as well"),
        ({"dropout": 0.1}, "on a CPU dropout rules the fused kernel out"),
    ],
    ids=["weights", "dropout"],
)
def test_where_there_is_nothing_for_it_the_model_runs_as_it_is(
    apply, calls: list[str], options: dict, reason: str
) -> None:
    expected = train(network(**options), steps=24)
    patch = apply("fused-attention")
    assert train(network(**options), steps=24) == pytest.approx(expected, rel=1e-5)
    assert calls == [] and len(patch.joints.withdrawn) == 1 and reason in patch.joints.withdrawn[0]


def test_a_model_beside_it_is_not_traced_again(apply, calls: list[str]) -> None:
    def models() -> list[nn.Module]:
        return [network(), nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh())]

    expected = train(*models(), steps=24)
    patch = apply("fused-attention")
    first, second = models()
    assert train(first, second, steps=24) == pytest.approx(expected, rel=1e-5)
    assert patch.joints.withdrawn == [] and len(calls) >= 20
    found = patch.joints.roots.found
    assert found[first].has_graphs and not found[second].has_graphs


def test_a_hook_that_is_hung_later_is_called(apply) -> None:
    patch, seen = apply("fused-attention"), []
    train(model := network())
    model.attention.dropout.register_forward_hook(lambda *_: seen.append(1))
    train(model, steps=3)
    assert len(seen) == 3 and "hung a hook" in patch.joints.withdrawn[0]


def test_a_part_that_is_replaced_later_is_used(apply) -> None:
    class Doubled(nn.Module):
        def forward(self, weights):
            return 2 * weights

    def replaced(model: nn.Module) -> list[float]:
        first = train(model)
        model.attention.dropout = Doubled()
        return first + train(model)

    expected = replaced(network())
    apply("fused-attention")
    assert replaced(network()) == pytest.approx(expected, rel=1e-4)


def run(**root) -> Run:
    facts = {"kind": "Net", "elements": 100, "layers": {}, "channels_last": False, "input_channels_last": False}
    facts |= {"input_dims": (3,), "parameter_dtypes": ("float32",), "autocast": None, "compiled": False}
    shares = {"forward": 0.3, "backward": 0.4}
    parts = [[shares.get(name, 0.0) for name in SHARES]] * 10
    return Run("2.11", "cpu", step_parts=parts, roots=[RootFacts(**facts, stands_aside=None, **root)])


def test_it_is_tried_where_a_model_may_attend() -> None:
    technique = find("fused-attention")
    assert isinstance(consider(technique, run(attends=True)), Candidate)
    for facts in ({}, {"attends": True, "not_compiled": "has hooks"}):
        found = consider(technique, run(**facts))
        assert isinstance(found, Skipped) and not found.is_small


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Net, True),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.LogSoftmax(dim=-1)), False),
        (lambda: nn.TransformerEncoderLayer(8, 2), False),
        (lambda: type("Own", (nn.Module,), {})(), False),
    ],
    ids=["by a function", "log", "torch's own", "nothing"],
)
def test_what_may_attend_is_told_by_names(model, expected: bool) -> None:
    assert may_attend(model()) is expected


def test_torchs_own_attention_called_by_the_script_may_make_weights() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2)

    assert may_attend(Own())
