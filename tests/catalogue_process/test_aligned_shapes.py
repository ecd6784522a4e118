"""A vocabulary that is padded inside the product, and nowhere else to be seen."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.catalogue import find
from hotlap.measure.candidates import Candidate, Skipped, consider
from hotlap.observe.facts import _odd_sizes
from hotlap.observe.run import LoaderFacts, RootFacts, Run

WORDS = 1003


class Net(nn.Module):
    def __init__(self, tied: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.head = nn.Linear(16, WORDS, bias=bias and not tied)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(self.words(x))


class Products(TorchDispatchMode):
    """The sizes of all matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.sizes.update(size for tensor in args[-2:] for size in tensor.shape)
        return function(*args, **(kwargs or {}))


def network(**options) -> Net:
    torch.manual_seed(0)
    return Net(**options)


def train(model: nn.Module, steps: int = 6) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        batch = torch.randint(WORDS, (4, 9), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[:, :-1]).view(-1, WORDS), batch[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("options", [{}, {"tied": True}, {"bias": False}], ids=["bias", "tied", "no bias"])
@pytest.mark.parametrize("multiple", [8, 64])
def test_the_training_is_the_same(apply, options: dict, multiple: int) -> None:
    plain = network(**options)
    expected = train(plain)
    apply("aligned-shapes", {"multiple": multiple})
    model = network(**options)
    assert train(model) == pytest.approx(expected, rel=1e-5)
    assert list(model.state_dict()) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert (model.head.weight is model.words.weight) == options.get("tied", False)


def test_products_are_aligned_forward_and_backward(apply) -> None:
    apply("aligned-shapes")
    model = network()
    train(model, steps=1)
    with Products() as products:
        train(model, steps=2)
    assert 1024 in products.sizes and not products.sizes & {WORDS, WORDS + 1}
    out = model(torch.zeros(2, 3, dtype=torch.long))
    assert out.shape == (2, 3, WORDS) and out.is_contiguous()


def test_copies_pickles_and_undo_are_plain(apply) -> None:
    patch = apply("aligned-shapes")
    model = network()
    train(model)
    x = torch.zeros(2, 3, dtype=torch.long)
    expected = model(x)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    patch.undo()
    for one in (*copies, model):
        assert all(vars(module).get("_compiled_call_impl") is None for module in one.modules())
        with Products() as products:
            torch.testing.assert_close(one(x), expected)
        assert WORDS in products.sizes, "the layer's own product again"


def test_hooks_of_the_script_are_called(apply) -> None:
    apply("aligned-shapes")
    model, seen = network(), []
    model.head.register_forward_hook(lambda layer, args, out: seen.append(out.shape))
    train(model, steps=3)
    assert len(seen) == 3


def test_small_and_aligned_layers_are_left_alone(apply) -> None:
    apply("aligned-shapes")
    model = nn.Sequential(nn.Linear(16, 100), nn.Linear(100, 1024), nn.Linear(1024, 999))
    model(torch.randn(2, 16)).sum().backward()
    assert all(vars(layer).get("_compiled_call_impl") is None for layer in model)


def test_a_compiled_model_is_left_to_its_compiler(apply) -> None:
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.print_readable(print_output=False))
        return graph

    traced = torch.compile(lambda model, x: model._call_impl(x), backend=backend, fullgraph=True)
    apply("aligned-shapes").joints.roots.quiet_updates = 0  # nothing looks for roots any more when it is traced
    model = network()
    train(model, steps=4)
    x = torch.zeros(2, 3, dtype=torch.long)
    torch.testing.assert_close(traced(model, x), model(x))
    assert len(graphs) == 1 and "linear" in graphs[0] and "pad" not in graphs[0]


def run(device: str, model: nn.Module, batch: int = 32) -> Run:
    root = RootFacts("Net", 9, {}, False, False, (2,), ("float32",), None, False, None, odd_sizes=_odd_sizes(model))
    loader = LoaderFacts("D", batch, 0, None, False, False, False, True, 9, False, "fork", trains=True)
    parts = [[0, 0, 1, 1, 0, 0, 0]]
    return Run("2.11", device, roots=[root], loaders=[loader], step_parts=parts, device_capability=(9, 0))


def test_what_is_tried_and_what_is_said() -> None:
    technique = find("multiple of 8")
    tried = consider(technique, run("cuda", network()))
    assert isinstance(tried, Candidate) and [one.setting["multiple"] for one in tried.tries] == [64, 8]
    odd = nn.Sequential(nn.Conv2d(3, 30, 3), nn.Conv2d(30, 64, 3))
    said = consider(technique, run("cuda", odd, batch=100))
    assert isinstance(said, Skipped)
    sizes = "1 in 30 (32 is), 0 out 30 (32 is), batch 100 (104 is)"
    assert said.reason == f"not multiples of 8: {sizes}; choose them in the script"
    fine = consider(technique, run("cuda", nn.Linear(16, 1024)))
    assert isinstance(fine, Skipped) and "are multiples of 8" in fine.reason
