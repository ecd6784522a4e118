"""A model that is compiled, whole or block by block, and all the models that are not."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from hotlap.catalogue import find
from hotlap.measure.candidates import Candidate, Skipped, consider
from hotlap.observe.compiled_calls import MOST_PIECES
from hotlap.observe.compiling import compiled_facts
from hotlap.observe.run import OptimizerFacts, RootFacts, Run
from hotlap.parts.compilable import why_not_compiled

WHOLE, BLOCK = {"mode": "default", "part": "model"}, {"mode": "default", "part": "block"}
GRAPHS = {"mode": "reduce-overhead", "part": "model"}


def eager(function, mode=None, dynamic=None):
    """Stands for torch.compile with its backend left out: dynamo's part is what is tested here."""
    return torch._dynamo.optimize("eager", dynamic=dynamic)(function)


@pytest.fixture(autouse=True)
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch, "compile", eager)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.mix(self.norm(x)))


class Net(nn.Module):
    def __init__(self, blocks: int = 6) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block(8) for _ in range(blocks)), nn.Linear(8, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Branching(Net):
    def forward(self, x):
        if x.sum() > 0:
            x = 2 * x
        return super().forward(x)


def pieces(count: int) -> type[nn.Module]:
    """A network whose forward is broken so many times."""
    lines = "    x = torch.tanh(x)\n    torch._dynamo.graph_break()\n" * count
    space = {"torch": torch}
    exec(f"def forward(self, x):\n{lines}    return self.head(x)", space)
    return type("Pieces", (Net,), {"forward": space["forward"]})


class Disabled(Net):
    @torch._dynamo.disable
    def forward(self, x):
        return self.head(x)


def network(kind: type[nn.Module] = Net, **options) -> nn.Module:
    torch.manual_seed(0)
    return kind(**options)


def train(model: nn.Module, sizes=(16,) * 8, dtype=torch.float32) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for size in sizes:
        x = torch.randn(size, 8, generator=generator, dtype=dtype)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), (x.sum(dim=1) > 0).long())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_an_error_of_a_signal_handler_amid_compiling_is_the_scripts(apply, told_to_leave, monkeypatch) -> None:
    def backend(graph, inputs):
        told_to_leave()
        return graph

    monkeypatch.setattr(torch, "compile", lambda function, **_: torch._dynamo.optimize(backend)(function))
    patch = apply("compiled-model", WHOLE)
    with pytest.raises(Exception, match="save and leave"):
        train(network())
    assert patch.joints.withdrawn == []


@pytest.mark.parametrize("setting", [WHOLE, BLOCK, GRAPHS], ids=str)
def test_the_training_is_the_same_and_compiled(apply, setting: dict) -> None:
    plain = network()
    expected = train(plain)
    patch = apply("compiled-model", setting)
    model = network()
    assert train(model) == pytest.approx(expected, rel=1e-6)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert graphs() == (2 if setting is BLOCK else 1), "the first block's input has no gradient, those of the others do"
    assert patch.joints.withdrawn == [] and str(compiled_facts()).startswith("traced as ")


@pytest.mark.filterwarnings("ignore")
def test_hooks_of_torchs_own_are_compiled_with_the_rest(apply) -> None:
    def normed() -> nn.Module:
        model = network()
        nn.utils.weight_norm(model.blocks[0].mix)
        return model

    expected = train(normed())
    patch = apply("compiled-model", WHOLE)
    assert train(normed()) == pytest.approx(expected, rel=1e-5)
    assert graphs() >= 1 and patch.joints.withdrawn == []


def test_float64_is_compiled_as_any_other(apply) -> None:
    expected = train(network().double(), dtype=torch.float64)
    apply("compiled-model", WHOLE)
    assert train(network().double(), dtype=torch.float64) == pytest.approx(expected, rel=1e-12)
    assert graphs() == 1


@pytest.mark.parametrize("setting", [WHOLE, BLOCK], ids=str)
def test_copies_pickles_and_undo_are_plain(apply, setting: dict) -> None:
    patch = apply("compiled-model", setting)
    model, seen = network(), []
    train(model)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    patch.undo()
    made = graphs()
    for one in (*copies, model):
        assert all(vars(module).get("_compiled_call_impl") is None for module in one.modules())
        one.blocks[2].register_forward_hook(lambda *_: seen.append(1))
        train(one, (16, 7))
    assert graphs() == made and len(seen) == 6


@pytest.mark.parametrize("setting", [WHOLE, BLOCK], ids=str)
def test_evaluation_is_left_as_it_is(apply, setting: dict) -> None:
    apply("compiled-model", setting)
    model = network()
    train(model)
    made = graphs()
    with torch.no_grad():
        inside = model(torch.ones(3, 8))
    assert torch.equal(model.eval()(torch.ones(4, 8))[:3], inside)
    assert graphs() == made


@pytest.mark.parametrize("setting", [WHOLE, BLOCK, GRAPHS], ids=str)
def test_a_smaller_last_batch_is_not_compiled_for(apply, setting: dict) -> None:
    apply("compiled-model", setting)
    model = network()
    train(model)
    made = graphs()
    train(model, ((16,) * 15 + (5,)) * 3)
    assert graphs() == made
    if setting is not GRAPHS:
        train(model, (5, 6) * 8)  # as they come all the time, one more variant serves them all
        assert made < graphs() <= 2 * made


def test_graphs_follow_a_shape_that_stays(apply) -> None:
    apply("compiled-model", GRAPHS)
    train(network(), (16,) * 6 + (9,) * 12)
    assert graphs() == 2


def test_breaks_are_counted_with_their_line(apply) -> None:
    patch = apply("compiled-model", WHOLE)
    train(network(Branching))
    line = Branching.forward.__code__.co_firstlineno + 1
    said = str(compiled_facts())
    assert said == f"traced as 3 graphs, 1 break: data-dependent branch at {os.path.basename(__file__)}:{line}"
    assert patch.joints.withdrawn == []


def test_a_few_pieces_may_be_worth_having(apply) -> None:
    patch = apply("compiled-model", WHOLE)
    train(pieces(3)())
    assert graphs() == 4 and patch.joints.withdrawn == []


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Disabled, "made no graph of it"),
        (pieces(MOST_PIECES), f"{MOST_PIECES + 1} graphs, more than {MOST_PIECES}"),
    ],
    ids=["nothing", "pieces"],
)
def test_what_comes_to_nothing_or_to_pieces_is_withdrawn(apply, model, reason: str) -> None:
    patch = apply("compiled-model", WHOLE)
    made = model()
    expected = train(copy.deepcopy(made))
    assert patch.joints.withdrawn and reason in patch.joints.withdrawn[0]
    assert train(made) == pytest.approx(expected, rel=1e-6)


def penalise(model: nn.Module, steps: int, by: str) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=1e-6), []
    for _ in range(steps):
        x = torch.linspace(-1, 1, 32).reshape(4, 8).square_().requires_grad_()
        optimizer.zero_grad()
        out = model(x).square().sum()
        if by == "grad":
            (slope,) = torch.autograd.grad(out, x, create_graph=True)
            (out + slope.square().sum()).backward()
        else:
            out.backward(create_graph=True)
        optimizer.step()
        losses.append(out.item())
    return losses


def test_a_network_without_blocks_is_not_compiled_by_blocks(apply) -> None:
    patch = apply("compiled-model", BLOCK)
    train(network(blocks=2), (16,) * 20)
    assert "nothing to compile" in patch.joints.withdrawn[0] and graphs() == 0


def test_replicas_would_call_the_blocks_of_another(apply, monkeypatch: pytest.MonkeyPatch) -> None:
    apply("compiled-model", BLOCK)
    model = nn.DataParallel(network())
    model.device_ids = [0, 1]
    monkeypatch.setattr(nn.DataParallel, "forward", lambda own, *args: own.module(*args))
    train(model)
    assert all(vars(block).get("_compiled_call_impl") is None for block in model.module.blocks)


def test_a_wrapper_without_replicas_is_no_obstacle(apply) -> None:
    expected = train(network())
    patch = apply("compiled-model", BLOCK)
    assert train(nn.DataParallel(network())) == pytest.approx(expected, rel=1e-3)
    assert patch.joints.withdrawn == [] and graphs() > 0


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("by", ["grad", "backward"])
def test_gradients_of_gradients_are_seen_before_anything_is_compiled(apply, by: str) -> None:
    expected = penalise(network(), 6, by)
    patch = apply("compiled-model", WHOLE)
    assert penalise(network(), 6, by) == expected
    assert "gradients of gradients" in patch.joints.withdrawn[0] and graphs() == 0


@pytest.mark.parametrize("by", ["keyword", "position", "grad"])
def test_graphs_that_are_kept_are_seen_before_anything_is_compiled(apply, by: str) -> None:
    """Torch refuses to go back twice, or does not where it found what it had compiled for another script."""

    def backward(loss: torch.Tensor, model: nn.Module) -> None:
        if by == "grad":
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        else:
            loss.backward(retain_graph=True) if by == "keyword" else torch.autograd.backward(loss, None, True)
            model.zero_grad()
        loss.backward()

    patch = apply("compiled-model", WHOLE)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        backward(model(torch.randn(16, 8)).square().mean(), model)
        optimizer.step()
    assert "keeps graphs" in patch.joints.withdrawn[0] and graphs() == 0


@pytest.mark.parametrize("setting", [WHOLE, BLOCK], ids=str)
def test_a_hook_that_is_hung_later_is_called(apply, setting: dict) -> None:
    patch = apply("compiled-model", setting)
    model, seen = network(), []
    train(model)
    assert patch.joints.withdrawn == []
    model.blocks[1].mix.register_forward_hook(lambda *_: seen.append(1))
    train(model, (16,) * 3)
    assert len(seen) == 3 and "hung a hook" in patch.joints.withdrawn[0]


def test_a_hook_on_another_model_is_nobodys_business(apply) -> None:
    patch = apply("compiled-model", WHOLE)
    train(network())
    network().head.register_forward_hook(lambda *_: None)
    assert patch.joints.withdrawn == []


def test_a_script_that_compiles_is_left_alone(apply) -> None:
    patch = apply("compiled-model", WHOLE)
    model = network()
    compiled = torch.compile(model)
    assert patch.joints.withdrawn == [": the script compiles by itself"]
    train(compiled)
    assert vars(model).get("_compiled_call_impl") is None


def hooked(model: nn.Module) -> nn.Module:
    model.blocks[1].register_forward_pre_hook(lambda *_: None)
    return model


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phase, self.head = nn.Parameter(torch.ones(8, dtype=torch.complex64)), nn.Linear(8, 2)

    def forward(self, x):
        return self.head((x * self.phase).real)


class Holding(nn.Module):
    """Takes what the loop feeds, whatever the part inside wants."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.head = part, nn.Linear(8, 2)

    def forward(self, x):
        if isinstance(self.part, nn.Embedding):
            return self.head(self.part(x.sum(dim=1).long().clamp(0, 3)))
        return self.head(self.part(x))


REFUSED = {
    "hooks": (lambda: hooked(network()), "blocks.1 has hooks"),
    "scripted": (lambda: Holding(torch.jit.script(nn.Linear(8, 8))), "part is a scripted module"),
    "sparse": (lambda: Holding(nn.Embedding(4, 8, sparse=True)), "part has sparse gradients"),
    "complex": (Complex, "phase is complex"),
    "quantised": (lambda: Holding(torch.ao.nn.qat.Linear(8, 8, qconfig=torch.ao.quantization.default_qat_qconfig)),
                  "part is quantised"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", list(REFUSED))
def test_models_that_are_not_compiled(apply, case: str) -> None:
    make, reason = REFUSED[case]
    model = make()
    assert reason in (why_not_compiled(model) or "")
    refused = consider(find("compiled-model"), run(not_compiled=why_not_compiled(model) or ""))
    assert isinstance(refused, Skipped) and reason in refused.reason
    patch = apply("compiled-model", WHOLE)
    train(model)
    assert reason in patch.joints.withdrawn[0] and graphs() == 0


def run(device: str = "cuda", blocks: int = 0, not_compiled: str = "", other: float = 0.0, **optimizer) -> Run:
    root = RootFacts("Net", 9, {}, False, False, (2,), ("float32",), None, False, None,
                     blocks=blocks, not_compiled=not_compiled)  # fmt: skip
    facts = OptimizerFacts("torch.optim.SGD", False, None, False, False, 1, 9, (device,), ("float32",),
                           **{"sparse": False, **optimizer})  # fmt: skip
    return Run("2.11", device, roots=[root], optimizers=[facts], step_parts=[[0, 0, 1, 1, 0, 0, other]])


def tried(seen: Run) -> list[str]:
    verdict = consider(find("compiled-model"), seen)
    assert isinstance(verdict, Candidate), verdict
    return [" ".join(map(str, one.setting.values())) for one in verdict.tries]


def test_what_is_tried() -> None:
    whole = ["reduce-overhead model", "default model", "max-autotune model"]
    assert tried(run()) == whole
    assert tried(run(blocks=12)) == [*whole[:2], "default block", whole[2]]
    assert tried(run(other=3.0)) == whole[:2], "the longest search only where it can matter"
    assert tried(run(other=198.0)) == whole[:2], "a replay is over for the host long before it is for the device"
    on_cpu = consider(find("compiled-model"), run("cpu", other=198.0))
    assert isinstance(on_cpu, Skipped) and on_cpu.is_small
    technique = find("compiled-model")
    started = [technique.starts_after(setting) for setting in (BLOCK, WHOLE, GRAPHS, {"mode": "max-autotune"})]
    assert started == sorted(started) and started[0] < started[1] < started[3]


@pytest.mark.parametrize(("optimizer", "reason"), [({"closure": True}, "closure"), ({"sparse": True}, "sparse")])
def test_optimizers_that_refuse(optimizer: dict, reason: str) -> None:
    refused = consider(find("compiled-model"), run(**optimizer))
    assert isinstance(refused, Skipped) and reason in refused.reason


def test_a_script_that_compiles_has_it() -> None:
    refused = consider(find("compiled-model"), Run("2.11", "cuda", script_compiles=True))
    assert isinstance(refused, Skipped) and refused.in_use
