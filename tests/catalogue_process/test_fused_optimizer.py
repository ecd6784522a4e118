"""The fused kernel comes in, and nothing else of it shows: checkpoints, groups and errors are the script's own."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import shutil
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn

from hotlap.catalogue import find, fused_optimizer
from hotlap.observe.facts import optimizer_facts
from hotlap.observe.run import OptimizerFacts, Run
from hotlap.parts.captured_update import serving
from hotlap.source.module import Source

KINDS = [
    (torch.optim.Adam, {}),
    (torch.optim.AdamW, {"amsgrad": True}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.SGD, {}),
    (torch.optim.Adagrad, {}),
]


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    return all(group.get("fused") for group in optimizer.param_groups)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 4, 4, generator=generator)).square().mean().backward()
        optimizer.step()


def close(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs)


def shape_of(value):
    """Keys and types all the way down, and the values of what is no tensor."""
    if isinstance(value, dict):
        return {key: shape_of(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [shape_of(one) for one in value]
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.device, tuple(value.shape), value.stride()
    return type(value), value


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_checkpoint_is_as_plain_torch_writes_it(apply, kind, options) -> None:
    plain, model = network(), network()
    theirs = kind(plain.parameters(), lr=0.01, **options)
    apply("fused-optimizer")
    ours = kind(model.parameters(), lr=0.01, **options)
    assert is_fused(ours) and not is_fused(theirs)
    train(plain, theirs), train(model, ours)
    assert close(plain, model)
    mine, other = ours.state_dict(), theirs.state_dict()
    assert list(mine) == list(other)
    assert [list(group) for group in mine["param_groups"]] == [list(group) for group in other["param_groups"]]
    assert shape_of(mine) == shape_of(other)
    for key, state in other["state"].items():
        for name, value in state.items():
            if value is not None:
                assert torch.allclose(mine["state"][key][name], value, rtol=1e-4, atol=1e-6), name
    assert is_fused(ours), "writing a checkpoint must not switch it off"


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_loading_a_plain_checkpoint_keeps_it_fused(apply, kind, options) -> None:
    plain = network()
    theirs = kind(plain.parameters(), lr=0.01, **options)
    train(plain, theirs)
    file = io.BytesIO()
    torch.save({"model": plain.state_dict(), "optimizer": theirs.state_dict()}, file)
    train(plain, theirs, seed=2)

    apply("fused-optimizer")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    ours = kind(model.parameters(), lr=0.5, **options)
    file.seek(0)
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    ours.load_state_dict(saved["optimizer"])
    assert is_fused(ours)
    assert saved["optimizer"]["param_groups"][0]["fused"] is None, "the script's own dictionary is left alone"
    train(model, ours, seed=2)
    assert close(plain, model)


def test_a_state_in_another_layout_is_paired_with_the_right_weights(apply) -> None:
    """The kernel walks over memory and does not look at strides. A script that converts its model brings just that."""
    plain, model = network(), network()
    theirs = torch.optim.AdamW(plain.parameters(), lr=0.01)
    train(plain, theirs)
    saved = copy.deepcopy((plain.state_dict(), theirs.state_dict()))
    train(plain, theirs, seed=2)

    apply("fused-optimizer")
    ours = torch.optim.AdamW(model.parameters(), lr=0.01)
    model.load_state_dict(saved[0])
    ours.load_state_dict(copy.deepcopy(saved[1]))
    model.to(memory_format=torch.channels_last)
    train(model, ours, seed=2)
    assert is_fused(ours)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert close(plain, model)
    ours.load_state_dict(saved[1])  # and again, now that the weights lie otherwise
    model.load_state_dict(saved[0])
    train(model, ours, seed=2)
    assert close(plain, model)


def test_a_gradient_set_by_hand_is_paired_with_the_right_weights(apply) -> None:
    gradients = [torch.randn(5, 3).t(), torch.randn(3, 1).expand(3, 5), torch.randn(3, 10)[:, ::2]]

    def trained() -> torch.Tensor:
        weight = nn.Parameter(torch.zeros(3, 5))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        for gradient in gradients:
            weight.grad = gradient
            optimizer.step()
        return weight.detach()

    expected = trained()
    apply("fused-optimizer")
    assert torch.allclose(trained(), expected, atol=1e-6)


def groups(model: nn.Module):
    return [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[3].weight}, {"params": [model[3].bias]}]


@pytest.mark.parametrize(
    "given",
    [
        lambda model: model.parameters(),
        lambda model: (p for p in model.parameters()),
        lambda model: model.named_parameters(),
        groups,
        lambda model: iter(groups(model)),
        lambda model: [{"params": model.named_parameters(), "weight_decay": 0.1}],
    ],
    ids=["method", "generator", "named", "groups", "iterator", "named-group"],
)
def test_parameters_in_every_form(apply, given) -> None:
    plain, model = network(), network()
    theirs = torch.optim.AdamW(given(plain), lr=0.01)
    apply("fused-optimizer")
    ours = torch.optim.AdamW(given(model), lr=0.01)
    assert is_fused(ours)
    assert [len(group["params"]) for group in ours.param_groups] == [
        len(group["params"]) for group in theirs.param_groups
    ]
    train(plain, theirs), train(model, ours)
    assert close(plain, model)
    assert shape_of(ours.state_dict()) == shape_of(theirs.state_dict())


def test_a_group_added_later_is_fused_too(apply) -> None:
    apply("fused-optimizer")
    model = network()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    optimizer.add_param_group({"params": model[3].parameters()})
    assert is_fused(optimizer)
    train(model, optimizer)


@pytest.mark.parametrize(
    "options", [{"foreach": True}, {"foreach": True, "fused": False}, {"fused": False}, {"differentiable": True}]
)
def test_what_the_script_decided_stands(apply, options) -> None:
    apply("fused-optimizer")
    optimizer = torch.optim.Adam(network().parameters(), **options)
    assert not is_fused(optimizer)
    assert {name: optimizer.defaults[name] for name in options} == options


def test_what_a_group_decided_stands(apply) -> None:
    apply("fused-optimizer")
    model = network()
    optimizer = torch.optim.Adam(
        [{"params": model[0].parameters(), "foreach": True}, {"params": model[3].parameters()}]
    )
    assert not any(group["fused"] for group in optimizer.param_groups)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32])
def test_complex_parameters_stay_unfused(apply, dtype) -> None:
    apply("fused-optimizer")
    weight = nn.Parameter(torch.zeros(3, dtype=dtype))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    assert is_fused(optimizer) is (dtype is torch.float32)
    weight.grad = torch.ones(3, dtype=dtype)
    optimizer.step()


@pytest.mark.parametrize(
    "given", [torch.zeros(3), [], ["weight"], [3.0], [{"lr": 0.1}], None, [torch.zeros(2, requires_grad=True) * 2]]
)
def test_wrong_parameters_raise_as_in_torch(apply, given) -> None:
    def error() -> tuple[type, str]:
        with pytest.raises(Exception) as caught:
            torch.optim.AdamW(given)
        return caught.type, str(caught.value)

    expected = error()
    apply("fused-optimizer")
    assert error() == expected


def test_a_subclass(apply) -> None:
    class Own(torch.optim.AdamW):
        def __init__(self, params, lr) -> None:
            super().__init__(params, lr=lr, weight_decay=0.3)
            self.count = 0

        def step(self, closure=None):
            self.count += 1
            return super().step(closure)

    plain, model = network(), network()
    theirs = Own(plain.parameters(), 0.01)
    apply("fused-optimizer")
    ours = Own(model.parameters(), 0.01)
    assert is_fused(ours)
    train(plain, theirs), train(model, ours)
    assert close(plain, model) and ours.count == 3


def test_an_optimizer_without_a_kernel_is_left_alone(apply) -> None:
    apply("fused-optimizer")
    model = network()
    optimizer = torch.optim.RMSprop(model.parameters())
    train(model, optimizer)
    assert "fused" not in optimizer.defaults


def test_a_scheduler_built_afterwards(apply, recwarn) -> None:
    apply("fused-optimizer")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(3):
        train(model, optimizer, steps=1)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert not [warning for warning in recwarn if "lr_scheduler" in str(warning.message)]


def test_pickled_and_copied(apply) -> None:
    apply("fused-optimizer")
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer)
    other, again = pickle.loads(pickle.dumps((model, optimizer)))
    train(model, optimizer, seed=3), train(other, again, seed=3)
    assert close(model, other)
    other, again = copy.deepcopy((model, optimizer))
    train(model, optimizer, seed=3), train(other, again, seed=3)
    assert close(model, other)


def test_with_a_grad_scaler_of_the_scripts_own(apply) -> None:
    def trained() -> nn.Module:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(4, 3, 4, 4, generator=generator)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        return model

    expected = trained()
    apply("fused-optimizer")
    assert close(trained(), expected)


def test_undone_in_the_middle_of_the_training(apply) -> None:
    plain, model = network(), network()
    theirs = torch.optim.AdamW(plain.parameters(), lr=0.01)
    patch = apply("fused-optimizer")
    ours = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(plain, theirs), train(model, ours)
    patch.undo()
    assert not is_fused(ours) and ours.defaults == theirs.defaults
    train(plain, theirs, seed=2), train(model, ours, seed=2)
    assert close(plain, model)
    assert shape_of(ours.state_dict()) == shape_of(theirs.state_dict())


@pytest.mark.parametrize("said", [None, False])
@pytest.mark.parametrize("kind", [torch.optim.RMSprop, torch.optim.Adam])
def test_tensors_in_batches(apply, kind, said) -> None:
    """The kind `foreach`: for the script it is as it said, in checkpoints too, and loading one does not end it."""
    plain, model = network(), network()
    theirs = kind(plain.parameters(), lr=0.01, foreach=said)
    patch = apply("fused-optimizer", {"kind": "foreach"})
    ours = kind(model.parameters(), lr=0.01, foreach=said)
    assert ours.param_groups[0]["foreach"] is True and not ours.param_groups[0].get("fused")
    train(plain, theirs), train(model, ours)
    assert close(plain, model) and shape_of(ours.state_dict()) == shape_of(theirs.state_dict())
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    assert ours.param_groups[0]["foreach"] is True
    patch.undo()
    assert ours.param_groups[0]["foreach"] is said and ours.defaults == theirs.defaults
    train(plain, theirs, seed=2), train(model, ours, seed=2)
    assert close(plain, model)


@pytest.fixture
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What dynamo traces runs as it is, which takes no seconds."""

    def traced(function, fullgraph, dynamic):
        return torch._dynamo.optimize("eager", nopython=fullgraph, dynamic=dynamic)(function)

    monkeypatch.setattr(torch, "compile", traced)


@pytest.mark.parametrize("kind", [torch.optim.Adadelta, torch.optim.RMSprop])
def test_compiled_on_the_processor(without_inductor, apply, kind) -> None:
    plain, model = network(), network()
    theirs = kind(plain.parameters(), lr=0.01)
    patch = apply("fused-optimizer", {"kind": "compiled"})
    ours = kind(model.parameters(), lr=0.01)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(one, 40) for one in (theirs, ours)]
    calls = []
    ours.register_step_post_hook(lambda *_: calls.append(1))
    for seed in range(20):
        train(plain, theirs, 1, seed), train(model, ours, 1, seed)
        [schedule.step() for schedule in schedules]
    assert optimizer_facts(ours).captured and patch.joints.withdrawn == [] and len(calls) == 20
    (compared,) = patch.joints.comparisons
    assert compared.facts.count == 1 and compared.facts.difference < 1e-3
    assert close(plain, model) and shape_of(ours.state_dict()) == shape_of(theirs.state_dict())
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    train(plain, theirs, seed=30), train(model, ours, seed=30)
    assert close(plain, model)
    patch.undo()
    assert not optimizer_facts(ours).captured
    train(plain, theirs, seed=40), train(model, ours, seed=40)
    assert close(plain, model)


def test_what_has_a_kernel_takes_it_where_others_are_compiled(without_inductor, apply) -> None:
    patch = apply("fused-optimizer", {"kind": "compiled"})
    one, two = network(), network()
    fused, compiled = torch.optim.AdamW(one.parameters()), torch.optim.Adamax(two.parameters())
    for seed in range(12):
        train(one, fused, 1, seed), train(two, compiled, 1, seed)
    assert is_fused(fused) and not optimizer_facts(fused).captured and optimizer_facts(compiled).captured
    assert patch.joints.withdrawn == []


def test_a_compiler_that_fails_is_told_and_nothing_is_lost(monkeypatch, apply) -> None:
    def failing(function, **how):
        def run(*given) -> None:
            raise RuntimeError("no compiler\nfound")

        return run

    monkeypatch.setattr(torch, "compile", failing)
    plain, model = network(), network()
    theirs = torch.optim.RMSprop(plain.parameters())
    patch = apply("fused-optimizer", {"kind": "compiled"})
    ours = torch.optim.RMSprop(model.parameters())
    train(plain, theirs, 12), train(model, ours, 12)
    (told,) = patch.joints.withdrawn
    assert told.endswith("the update cannot be compiled: RuntimeError: no compiler") and patch.is_withdrawn
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def test_a_script_that_compiles_by_itself_keeps_its_updates(without_inductor, apply) -> None:
    patch = apply("fused-optimizer", {"kind": "compiled"})
    model = network()
    optimizer = torch.optim.RMSprop(model.parameters())
    train(model, optimizer, 6)
    assert optimizer_facts(optimizer).captured and patch.joints.withdrawn == []
    torch.compile(lambda x: x + 1, fullgraph=False, dynamic=False)
    assert not optimizer_facts(optimizer).captured and "compiles by itself" in patch.joints.withdrawn[0]


def test_optimizers_built_again_and_again_are_compiled_for_at_first_and_are_not_kept(without_inductor, apply) -> None:
    apply("fused-optimizer", {"kind": "compiled"})
    captured, left = [], []
    for _ in range(fused_optimizer._COMPILED + 2):
        model = network()
        optimizer = torch.optim.RMSprop(model.parameters())
        train(model, optimizer, 6)
        captured.append(optimizer_facts(optimizer).captured)
        left.append(weakref.ref(serving.get(optimizer) or model))
    del model, optimizer
    gc.collect()
    assert captured == [True] * fused_optimizer._COMPILED + [False] * 2 and not any(one() for one in left)


def test_a_closure_is_not_compiled(without_inductor, apply) -> None:
    patch = apply("fused-optimizer", {"kind": "compiled"})
    model, calls = network(), []
    optimizer = torch.optim.RMSprop(model.parameters())
    for _ in range(40):
        optimizer.step(lambda: calls.append(1))
    assert len(calls) == 40 and "closure" in patch.joints.withdrawn[0]


def test_a_step_that_a_grad_scaler_skips_is_skipped(without_inductor, apply) -> None:
    def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = network()
        optimizer = torch.optim.RMSprop(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
        for seed in range(16):
            generator = torch.Generator().manual_seed(seed)
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(4, 3, 4, 4, generator=generator)).square().mean()).backward()
            if seed == 9:
                model[0].weight.grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
        return model, optimizer

    plain, theirs = trained()
    patch = apply("fused-optimizer", {"kind": "compiled"})
    model, ours = trained()
    assert optimizer_facts(ours).captured and patch.joints.withdrawn == [] and close(plain, model)
    assert [int(one.state_dict()["state"][0]["step"]) for one in (theirs, ours)] == [15, 15]


FACTS = OptimizerFacts("torch.optim.adamw.AdamW", False, None, False, False, 4, 99, ("cuda",), ("float32",), False)
RMSPROP = replace(FACTS, kind="torch.optim.rmsprop.RMSprop")


@pytest.mark.parametrize(
    ("device", "facts", "expected"),
    [
        ("cuda", FACTS, ["captured", "fused"]),
        ("cpu", FACTS, ["fused"]),
        ("cuda", replace(FACTS, fused=True), ["captured"]),
        ("cuda", replace(FACTS, foreach=False), ["captured", "fused", "foreach"]),
        ("cuda", RMSPROP, ["captured", "compiled"]),
        ("cpu", RMSPROP, ["foreach", "compiled"]),
        ("cpu", replace(RMSPROP, foreach=True), ["compiled"]),
        ("cpu", replace(RMSPROP, closure=True), ["foreach"]),
        ("cuda", replace(FACTS, kind="torch.optim.adagrad.Adagrad"), ["fused"]),
        ("cpu", replace(FACTS, fused=True), "in use"),
        ("cuda", replace(FACTS, sparse=True), "sparse"),
        ("cuda", replace(FACTS, kind="torch.optim.lbfgs.LBFGS"), "can be recorded"),
        ("cuda", replace(RMSPROP, kind="mylib.RMSprop"), "can be recorded"),
    ],
)
def test_what_is_worth_trying(monkeypatch, device: str, facts: OptimizerFacts, expected) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "g++" else None)
    tries = find("fused-optimizer").settings(Run(torch="2.11", device=device, optimizers=[facts]))
    if isinstance(expected, str):
        assert expected in tries.reason
    else:
        assert [one.setting["kind"] for one in tries] == expected


def test_what_is_compiled_needs_a_compiler_on_the_processor_and_no_kernel_that_is_as_good(monkeypatch) -> None:
    def kinds(device: str, *facts: OptimizerFacts) -> list[str]:
        return [one.setting["kind"] for one in technique.settings(Run("2.11", device=device, optimizers=list(facts)))]

    technique = find("fused-optimizer")
    assert "compiled" not in kinds("cuda", RMSPROP, FACTS)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert kinds("cpu", RMSPROP) == ["foreach"] and kinds("cuda", RMSPROP) == ["captured", "compiled"]
    assert technique.starts_after({"kind": "compiled"}) > 5 and technique.starts_after({"kind": "captured"}) == 0


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (FACTS, False),
        (replace(FACTS, fused=True), True),
        (replace(FACTS, captured=True), True),
        (RMSPROP, None),
        (replace(RMSPROP, captured=True), True),
    ],
)
def test_what_is_seen(facts: OptimizerFacts, expected) -> None:
    assert find("fused-optimizer").seen(Run(torch="2.11", device="cuda", optimizers=[facts])) is expected


HAND = "import torch\nfor x in data:\n    loss(x).backward()\n    for p in model.parameters():\n        {}\n"


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ("p.data.add_(p.grad, alpha=-lr)", 1),
        ("p.data.add_(-lr * p.grad.data)", 1),
        ("p.data.sub_(lr * p.grad)", 1),
        ("p.data -= lr * p.grad", 1),
        ("p -= lr * p.grad", 1),
        ("p.data = p.data - lr * p.grad", 1),
        ("p.grad.add_(p.data)", 0),
        ("p.data.mul_(0.9).add_(other)", 0),
        ("p.data.clamp_(-1, 1)", 0),
        ("total += p.grad.norm()", 0),
    ],
)
def test_updates_by_hand_are_reported_without_a_fix(update: str, expected: int) -> None:
    sites = list(find("fused-optimizer").spot(Source(HAND.format(update))))
    assert [(site.line, site.fix) for site in sites] == [(4, None)] * expected


@pytest.mark.parametrize("kind", ["fused", "foreach"])
def test_it_is_printed_as_the_script_has_made_it(apply, kind: str) -> None:
    model = network()
    expected = repr(torch.optim.Adam(model.parameters(), lr=0.01))
    apply("fused-optimizer", {"kind": kind})
    ours = torch.optim.Adam(model.parameters(), lr=0.01)
    assert repr(ours) == expected and ours.param_groups[0][kind] is True
    assert "fused: False" in repr(torch.optim.Adam(model.parameters(), fused=False))


@pytest.mark.parametrize("kind", ["fused", "foreach"])
def test_copies_and_pickles_are_the_scripts_own_optimizer(apply, kind: str) -> None:
    plain = network()
    theirs = torch.optim.AdamW(plain.parameters(), lr=0.01)
    train(plain, theirs)
    apply("fused-optimizer", {"kind": kind})
    model = network()
    ours = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, ours)
    for kept in (pickle.loads(pickle.dumps((model, ours))), copy.deepcopy((model, ours))):
        assert kept[1].defaults == theirs.defaults
        assert shape_of(kept[1].state_dict()) == shape_of(theirs.state_dict())
    assert ours.param_groups[0][kind] is True and ours.defaults[kind] is True


@pytest.mark.parametrize("when", ["built", "added", "moved"])
def test_a_piece_of_a_larger_tensor(apply, when: str) -> None:
    """Its numbers do not lie side by side, and what lies between them is not its own."""

    def trained() -> list[torch.Tensor]:
        torch.manual_seed(0)
        large, layer = torch.randn(4, 6), nn.Linear(3, 1)
        piece = nn.Parameter(large[:, :3] if when != "moved" else torch.randn(4, 3))
        optimizer = torch.optim.Adam([piece, *layer.parameters()] if when != "added" else layer.parameters(), lr=0.1)
        if when == "added":
            optimizer.add_param_group({"params": [piece]})
        for step in range(4):
            if step == 2 and when == "moved":
                piece.data = large[:, :3]
            optimizer.zero_grad()
            layer(piece).square().sum().backward()
            optimizer.step()
        return [large, *layer.parameters()]

    expected = trained()
    apply("fused-optimizer")
    for one, other in zip(trained(), expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("what", ["sparse", "complex"])
@pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.SGD])
def test_what_the_kernel_refuses_is_updated_as_the_script_has_said(apply, kind, what: str) -> None:
    def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        table = nn.Embedding(5, 2, sparse=what == "sparse")
        model, turn = nn.Sequential(table, nn.Linear(2, 1)), nn.Parameter(torch.ones(1) * 1j)
        optimizer = kind([{"params": model.parameters()}], lr=0.1)
        train_one = lambda: (model(torch.tensor([1, 3, 3])) * turn.abs()).square().sum().backward()  # noqa: E731
        for step in range(4):
            if step == 1 and what == "complex":
                optimizer.add_param_group({"params": [turn]})
            optimizer.zero_grad()
            train_one()
            optimizer.step()
        return model, optimizer

    plain, theirs = trained()
    apply("fused-optimizer")
    model, ours = trained()
    assert close(plain, model)
    assert shape_of(ours.state_dict()) == shape_of(theirs.state_dict())


def test_a_learning_rate_in_a_tensor_is_not_updated_in_batches(apply) -> None:
    apply("fused-optimizer", {"kind": "foreach"})
    model = network()
    for given in ({"lr": torch.tensor(0.01)}, {"lr": 0.01, "betas": (torch.tensor(0.9), torch.tensor(0.99))}):
        assert not torch.optim.Adam(model.parameters(), **given).defaults["foreach"]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.01)
    train(model, optimizer)
    assert optimizer.param_groups[0]["foreach"] is None
