"""Joints attach while somebody listens, call in the order of depth, and leave torch as they found it."""

from __future__ import annotations

import gc
import pickle
import weakref

import pytest
import torch
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch


@pytest.fixture
def patch():
    patch = Patch(Joints())
    yield patch
    patch.undo()


def passing(proceed, *args, **kwargs):
    return proceed(*args, **kwargs)


WHERE = {
    "loader_built": lambda: DataLoader.__init__,
    "loader_started": lambda: DataLoader.__iter__,
    "batch_drawn": lambda: torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
    "optimizer_built": lambda: (torch.optim.SGD.__init__, torch.optim.Optimizer.__init__),
    "root_found": lambda: (len(torch_module._global_forward_pre_hooks), len(torch_module._global_forward_hooks)),
    "root_called": lambda: len(torch_module._global_forward_hooks),
    "loss_known": lambda: torch.autograd.backward,
    "gradients_asked": lambda: torch.autograd.grad,
    "weights_updating": lambda: len(torch_optimizer._global_optimizer_pre_hooks),
    "weights_updated": lambda: len(torch_optimizer._global_optimizer_post_hooks),
    "host_waited": lambda: (torch.Tensor.item, "item" in vars(torch.Tensor)),
    "batch_moved": lambda: (torch.Tensor.to, "to" in vars(torch.Tensor)),
    "compile_called": lambda: (torch.compile, torch.nn.Module.compile),
}


@pytest.mark.parametrize("name", WHERE)
def test_attached_only_while_someone_listens(name: str) -> None:
    where, joint = WHERE[name], getattr(Joints(), name)
    before = where()
    first, second = (lambda *args, **kwargs: None), (lambda *args, **kwargs: None)
    joint.subscribe(first)
    attached = where()
    assert attached != before
    joint.subscribe(second)
    assert where() == attached, "a second listener attaches nothing more"
    joint.unsubscribe(first)
    assert where() == attached
    joint.unsubscribe(second)
    assert where() == before
    joint.subscribe(first)
    assert where() != before
    joint.unsubscribe(first)
    assert where() == before


def test_around_calls_by_depth_and_then_by_age(patch: Patch) -> None:
    order = []

    def named(name: str):
        def subscriber(proceed, *args, **kwargs):
            order.append(name)
            return proceed(*args, **kwargs)

        return subscriber

    for name, depth in (("first", 0), ("deep", 1), ("outer", -1), ("second", 0)):
        patch.at(patch.joints.loss_known, named(name), depth)
    torch.ones((), requires_grad=True).backward()
    assert order == ["outer", "second", "first", "deep"], "the deepest sits nearest to torch"


def test_around_may_change_what_goes_in_and_comes_out(patch: Patch) -> None:
    def doubled(proceed, root, args, kwargs):
        return proceed(root, (args[0] * 2,), kwargs) + 100

    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    patch.at(patch.joints.root_called, doubled)
    x = torch.ones(1, 1)
    assert model(x).item() == 1, "the call in which a root is found has already begun"
    assert model(x).item() == 102
    patch.undo()
    assert model(x).item() == 1
    assert "_compiled_call_impl" not in vars(model)


def test_a_subscriber_that_leaves_is_no_longer_called(patch: Patch) -> None:
    calls = []

    def once(proceed, *args, **kwargs):
        calls.append(1)
        patch.joints.loss_known.unsubscribe(once)
        return proceed(*args, **kwargs)

    patch.joints.loss_known.subscribe(once)
    patch.at(patch.joints.loss_known, passing)
    for _ in range(2):
        torch.ones((), requires_grad=True).backward()
    assert calls == [1]


def test_building_binds_every_way_of_passing_arguments(patch: Patch) -> None:
    seen = []

    def built(proceed, loader, bound):
        seen.append((bound.arguments["batch_size"], bound.arguments["shuffle"], bound.arguments["num_workers"]))
        proceed(loader, bound)

    class Mine(DataLoader):
        def __init__(self, data, **options):
            super().__init__(data, 3, **options)

    data = TensorDataset(torch.zeros(6))
    patch.at(patch.joints.loader_built, built)
    DataLoader(data)
    DataLoader(data, 2, True)
    DataLoader(dataset=data, batch_size=4)
    DataLoader(data, **{"batch_size": 5, "shuffle": True})
    Mine(data, shuffle=True)
    assert seen == [(1, None, 0), (2, True, 0), (4, None, 0), (5, True, 0), (3, True, 0)]


def test_a_wrong_call_raises_torchs_own_error(patch: Patch) -> None:
    def error() -> str:
        with pytest.raises(TypeError) as caught:
            DataLoader(TensorDataset(torch.zeros(1)), batchsize=3)
        return str(caught.value)

    plain = error()
    patch.at(patch.joints.loader_built, lambda proceed, loader, bound: proceed(loader, bound))
    assert error() == plain


def test_an_optimizer_is_built_once_however_deep_its_classes(patch: Patch) -> None:
    class Own(torch.optim.AdamW):
        pass

    class Strange(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 1.0})

    seen = []

    def built(proceed, optimizer, bound):
        proceed(optimizer, bound)
        seen.append(type(optimizer).__name__)

    patch.at(patch.joints.optimizer_built, built)
    for kind in (torch.optim.AdamW, Own, Strange):
        kind([torch.nn.Parameter(torch.zeros(1))])
    assert seen == ["AdamW", "Own", "Strange"]


def test_a_dropped_model_is_not_kept_alive(patch: Patch) -> None:
    patch.at(patch.joints.root_called, lambda proceed, root, args, kwargs: proceed(root, args, kwargs))
    model = torch.nn.Linear(1, 1)
    for _ in range(2):
        model(torch.zeros(1, 1))
    is_wrapped = "_compiled_call_impl" in vars(model)
    assert is_wrapped
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_slot_that_the_script_took_stays_its_own(patch: Patch) -> None:
    patch.at(patch.joints.root_called, lambda proceed, root, args, kwargs: proceed(root, args, kwargs))
    model = torch.nn.Linear(1, 1)
    model(torch.zeros(1, 1))
    model.compile(backend="eager")
    theirs = model._compiled_call_impl
    patch.undo()
    assert model._compiled_call_impl is theirs


def test_a_root_with_a_slot_is_pickled_and_scheduled_as_ever(patch: Patch) -> None:
    patch.at(patch.joints.root_called, lambda proceed, root, args, kwargs: proceed(root, args, kwargs))
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    model(torch.zeros(1, 1))
    again = pickle.loads(pickle.dumps(model))
    assert vars(again).get("_compiled_call_impl") is None
    assert list(again.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("kind", ["generator", "tensor", "named", "edge"])
def test_gradients_may_be_asked_for_in_every_form(patch: Patch, kind: str) -> None:
    def asked(proceed, outputs, inputs, *rest, **options):
        assert len(inputs) == 1
        return proceed(outputs, inputs, *rest, **options)

    patch.at(patch.joints.gradients_asked, asked)
    x = torch.ones(2, requires_grad=True)
    given = (one for one in [x]) if kind == "generator" else x
    given = torch.autograd.graph.get_gradient_edge(x) if kind == "edge" else given
    loss = (x * 3).sum()
    found = torch.autograd.grad(outputs=loss, inputs=given) if kind == "named" else torch.autograd.grad(loss, given)
    assert isinstance(found, tuple) and found[0].tolist() == [3.0, 3.0]


def doubled(proceed, root, args, kwargs):
    return 2 * proceed(root, args, kwargs)


class Own(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x):
        return self.layer(x)


DRAWN = {
    "traced": lambda model, x: torch.jit.trace(model, x),
    "scripted": lambda model, x: torch.jit.script(model),
    "exported": lambda model, x: torch.export.export(model, (x,)).module(),
}


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", DRAWN)
def test_what_is_made_of_a_root_for_later_is_the_scripts_own(patch: Patch, kind: str) -> None:
    patch.at(patch.joints.root_called, doubled)
    model, x = Own(), torch.ones(1, 1)
    with torch.no_grad():  # such a call makes no root
        plain = model(x)
    model(x)
    kept = DRAWN[kind](model, x)
    assert torch.equal(kept(x), plain)
    assert torch.equal(model(x), 2 * plain), "its calls go on as before"


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_what_is_only_traced_is_no_root(patch: Patch) -> None:
    patch.at(patch.joints.root_called, doubled)
    torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1, 1))
    assert not patch.joints.roots.found


def test_waits_are_unhooked_when_the_script_compiles(patch: Patch) -> None:
    calls = []

    def waited(proceed, name, tensor, *args, **kwargs):
        calls.append(name)
        return proceed(name, tensor, *args, **kwargs)

    patch.at(patch.joints.host_waited, waited)
    value = torch.ones(1)
    assert (value.item(), float(value), bool(value), int(value), value.tolist()) == (1.0, 1.0, True, 1, [1.0])
    assert [name for name in calls if name in ("item", "__float__", "__bool__", "__int__", "tolist")]
    torch.compile(lambda x: x, backend="eager")
    assert "item" not in vars(torch.Tensor)
    count = len(calls)
    value.item()
    assert len(calls) == count


def test_hooks_of_the_script_survive_the_end_of_looking(patch: Patch) -> None:
    """Looking for roots ends after a few updates. Torch is then walking over its list of hooks."""
    patch.at(patch.joints.root_found, lambda root: None)
    calls = []
    handle = torch_optimizer.register_optimizer_step_post_hook(lambda *_: calls.append(1))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for _ in range(8):
            model(torch.zeros(1, 1)).sum().backward()
            optimizer.step()
    finally:
        handle.remove()
    assert len(calls) == 8
    assert not torch_module._global_forward_hooks and not torch_module._global_forward_pre_hooks


class Squares(Dataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index * index


def test_draws_pass_through_with_their_end(patch: Patch) -> None:
    seen = []

    def drawn(proceed, iterator):
        try:
            seen.append(proceed(iterator).tolist())
        except StopIteration:
            seen.append("end")
            raise
        return "changed"

    patch.at(patch.joints.batch_drawn, drawn)
    assert list(DataLoader(Squares(), batch_size=2)) == ["changed", "changed"]
    assert seen == [[0, 1], [4], "end"]
