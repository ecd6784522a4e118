"""A tensor that lies on a device and stands for one in main memory. "meta" stands for the device: whatever comes from
there by torch's own copy has no values."""

from __future__ import annotations

import copy
import io
import pickle

import numpy
import pytest
import torch
from torch.utils.data import default_collate

from hotlap.parts.waiting_tensor import Waiting

VALUES = torch.arange(12.0).reshape(3, 4)


@pytest.fixture
def moves() -> list:
    return []


@pytest.fixture
def waiting(moves: list) -> Waiting:
    return Waiting(VALUES, lambda: VALUES.clone(), moves.append)


def test_its_facts_bring_nothing_down(waiting: Waiting) -> None:
    assert isinstance(waiting, torch.Tensor) and waiting.shape == (3, 4) and waiting.size(0) == len(waiting) == 3
    assert waiting.dtype is torch.float32 and waiting.device.type == "cpu" and not waiting.is_cuda
    assert (
        waiting.nbytes == 48
        and waiting.numel() == 12
        and waiting.ndim == waiting.dim() == 2
        and not waiting.requires_grad
    )
    assert waiting._version == 0 and not waiting.is_inference()
    assert waiting._host is None
    waiting.add_(1)
    assert waiting._version > 0, "what is written into it counts"


@pytest.mark.parametrize(
    "arguments",
    [("meta",), (torch.device("meta"), torch.float16), (torch.empty(0, device="meta"),)],
    ids=["device", "device and dtype", "another tensor"],
)
def test_moving_hands_over_what_lies_there(moves: list, arguments) -> None:
    there = VALUES.to("meta")
    waiting = Waiting(VALUES, lambda: there, moves.append)
    moved = waiting.to(*arguments, non_blocking=True)
    assert moved.is_meta and type(moved) is torch.Tensor and moves == [torch.device("meta")]
    assert (moved is there) is (len(arguments) == 1) and waiting._host is None


def test_a_second_move_is_another_copy(moves: list) -> None:
    waiting = Waiting(VALUES, lambda: VALUES.to("meta"), moves.append)
    assert waiting.to("meta") is not waiting.to("meta")


USES = {
    "arithmetic": lambda tensor: tensor + 1,
    "function": lambda tensor: torch.cat([tensor, tensor]),
    "index": lambda tensor: tensor[1],
    "numpy": lambda tensor: torch.from_numpy(tensor.numpy()),
    "asarray": lambda tensor: torch.from_numpy(numpy.asarray(tensor).copy()),
    "iteration": lambda tensor: torch.stack(list(tensor)),
    "list": lambda tensor: torch.tensor(tensor.tolist()),
    "number": lambda tensor: torch.tensor(tensor.sum().item()),
    "detach": lambda tensor: tensor.detach().cpu(),
    "float": lambda tensor: tensor.double(),
    "to cpu": lambda tensor: tensor.to("cpu"),
    "to dtype": lambda tensor: tensor.to(torch.float64),
    "collate": lambda tensor: default_collate([tensor, tensor]),
    "module": lambda tensor: torch.nn.functional.linear(tensor, torch.ones(2, 4)),
    "deepcopy": copy.deepcopy,
    "pickle": lambda tensor: pickle.loads(pickle.dumps(tensor)),
    "transposed": lambda tensor: tensor.T,
    "data": lambda tensor: tensor.data,
    "no grad": lambda tensor: torch.no_grad()(lambda: tensor * 2)(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_anything_else_sees_its_values(waiting: Waiting, use) -> None:
    found, expected = use(waiting), use(VALUES.clone())
    assert type(found) is torch.Tensor and torch.equal(found, expected) and found.dtype == expected.dtype
    assert str(waiting) == str(VALUES), "and it shows them"


def test_saved_it_is_a_plain_tensor(waiting: Waiting) -> None:
    file = io.BytesIO()
    torch.save({"batch": waiting}, file)
    file.seek(0)
    assert torch.equal(torch.load(file)["batch"], VALUES)


def test_what_is_written_into_it_is_what_is_moved(waiting: Waiting, moves: list) -> None:
    waiting.mul_(2)
    waiting[0, 0] = 7
    expected = VALUES * 2
    expected[0, 0] = 7
    assert torch.equal(waiting.to("cpu"), expected) and torch.equal(waiting.clone(), expected)
    assert waiting.to("meta").is_meta and moves == [torch.device("meta")], "a move all the same"


def test_gradients_reach_it(waiting: Waiting) -> None:
    waiting.requires_grad_()
    (waiting * 3).sum().backward()
    assert torch.equal(waiting.grad, torch.full((3, 4), 3.0))


def test_wrong_arguments_raise_torchs_own_error(waiting: Waiting) -> None:
    with pytest.raises(RuntimeError, match="device"):
        waiting.to("nowhere")
    with pytest.raises(TypeError):
        waiting.to(3, 4, 5, 6)
