"""What a recorded update rests on: nothing of it may change unnoticed, and nothing else may count as a change."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch
from torch import nn

from hotlap.parts.update_grounds import UpdateGrounds


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    model[2].bias.requires_grad_(False)
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "weight_decay": 0.1}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def grounds(optimizer: torch.optim.Optimizer) -> UpdateGrounds:
    return UpdateGrounds(optimizer, [("params", "lr")] * len(optimizer.param_groups), ("grad_scale", "found_inf"))


def state(optimizer) -> dict:
    return next(iter(optimizer.state.values()))


CHANGES = {
    "another weight decay": lambda model, optimizer: optimizer.param_groups[1].update(weight_decay=0.2),
    "other betas": lambda model, optimizer: optimizer.param_groups[0].update(betas=(0.5, 0.5)),
    "one setting for another": lambda model, optimizer: optimizer.param_groups[0].update(
        more=optimizer.param_groups[0].pop("amsgrad")
    ),
    "a rate in a tensor": lambda model, optimizer: optimizer.param_groups[0].update(lr=torch.tensor(0.01)),
    "another group": lambda model, optimizer: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]}),
    "a group like the old one": lambda model, optimizer: optimizer.param_groups.__setitem__(
        0, dict(optimizer.param_groups[0])
    ),
    "a weight more": lambda model, optimizer: optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(2))),
    "another weight": lambda model, optimizer: optimizer.param_groups[0]["params"].__setitem__(
        0, nn.Parameter(torch.ones(8, 4))
    ),
    "a weight elsewhere": lambda model, optimizer: setattr(model[0].weight, "data", model[0].weight.data.clone()),
    "a weight that lies otherwise": lambda model, optimizer: setattr(
        model[0].weight, "data", model[0].weight.data.as_strided((8, 4), (1, 8))
    ),
    "a gradient elsewhere": lambda model, optimizer: setattr(model[0].weight, "grad", model[0].weight.grad.clone()),
    "a gradient that lies otherwise": lambda model, optimizer: model[0].weight.grad.as_strided_((8, 4), (1, 8)),
    "no gradient": lambda model, optimizer: setattr(model[0].weight, "grad", None),
    "one gradient more": lambda model, optimizer: setattr(model[2].bias, "grad", torch.ones(2)),
    "a scale": lambda model, optimizer: setattr(optimizer, "grad_scale", torch.tensor(2.0)),
    "a state that was loaded": lambda model, optimizer: optimizer.load_state_dict(optimizer.state_dict()),
    "a number in the state": lambda model, optimizer: state(optimizer).update(step=torch.tensor(7.0)),
    "one more in the state": lambda model, optimizer: state(optimizer).update(more=1),
    "no state": lambda model, optimizer: optimizer.state.clear(),
    "a state of one": lambda model, optimizer: optimizer.state.update({model[0].weight: dict(state(optimizer))}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(change) -> None:
    model, optimizer = trained()
    own = grounds(optimizer)
    assert own.hold(optimizer)
    change(model, optimizer)
    assert not own.hold(optimizer)


def test_what_every_step_changes_is_no_change() -> None:
    model, optimizer = trained()
    own = grounds(optimizer)
    for number in range(3):
        optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
        model[0].weight.grad.normal_()
        optimizer.step()
        assert own.hold(optimizer)


def test_a_state_of_another_form_is_left_to_others() -> None:
    _, optimizer = trained()
    optimizer.state["steps"] = 3
    assert not grounds(optimizer).hold(optimizer)


def test_neither_the_optimizer_nor_a_gradient_is_held() -> None:
    model, optimizer = trained()
    before = sys.getrefcount(model[0].weight.grad)
    own = grounds(optimizer)
    own.hold(optimizer)
    after = sys.getrefcount(model[0].weight.grad)
    assert after == before
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
