"""Networks for images whose graphs are said otherwise before they are compiled: kernels beside torch's own, and the
same training, in plain graphs and in CUDA graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, conv2d, max_pool2d

from hotlap.catalogue import find
from hotlap.parts import summed_norm
from hotlap.parts.image_start import image_start
from hotlap.parts.image_stem import convolve_blocks
from hotlap.parts.images_in_graphs import lean_images
from hotlap.parts.joined_norm import joined_batch_norm
from hotlap.parts.window_maxima import pooled
from hotlap.technique import Choice

pytestmark = pytest.mark.gpu

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.one, self.two = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.three, self.four = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.beside = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        return torch.relu(self.four(self.three(torch.relu(self.two(self.one(x))))) + self.beside(x))

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
stem = [nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
body = [Block(32, 32, 1), Block(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
model = nn.Sequential(*stem, *body).to(device, memory_format=torch.channels_last)
y = torch.randint(0, 10, (384,))
x = 0.5 * torch.randn(384, 3, 64, 64) + torch.randn(10, 3, 8, 8)[y].repeat_interleave(8, 2).repeat_interleave(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for epoch in range(3):
    for images, labels in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        images = images.to(device, memory_format=torch.channels_last)
        with torch.autocast(device, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels.to(device))
        loss.backward()
        optimizer.step()
print("loss", loss.item())
"""
COUNTING = """
from hotlap.parts import image_start_kernels
calls, weight_grads = [], image_start_kernels.weight_grads
image_start_kernels.weight_grads = lambda *given: (calls.append(1), weight_grads(*given))[1]
"""
WINDOWS = [(3, 2, 1, 112, 112), (3, 2, 1, 33, 57), (3, 1, 1, 14, 14), (5, 3, 2, 31, 40), (3, 2, 0, 35, 35)]
LASTING = {"memory_format": torch.channels_last}


def images(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype).contiguous(**LASTING).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("channels", [3, 64, 200])
@pytest.mark.parametrize(("side", "stride", "padding", "high", "wide"), WINDOWS)
def test_windows(side: int, stride: int, padding: int, high: int, wide: int, channels: int, dtype: torch.dtype) -> None:
    x = images(4, channels, high, wide, dtype=dtype)
    plain, ours = max_pool2d(x, side, stride, padding), pooled(x, side, stride, padding)
    assert torch.equal(plain, ours) and ours.is_contiguous(**LASTING)
    grad = torch.randn_like(plain)
    (exact,) = torch.autograd.grad(max_pool2d(wide_x := x.double(), side, stride, padding), wide_x, grad.double())
    (own,) = torch.autograd.grad(ours, x, grad)
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 16 * torch.finfo(dtype).eps}
    torch.testing.assert_close(own.double(), exact, **tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_first_convolution_and_its_norm(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = images(16, 3, 224, 224, dtype=dtype), images(64, 3, 7, 7, dtype=dtype)
    wide = weight.detach().double().requires_grad_()
    exact = conv2d(x.detach().double(), wide, stride=2, padding=3)
    plain, ours = conv2d(x, weight, stride=2, padding=3), convolve_blocks(x, weight, None, 2, 3)
    apart = [float((one.double() - exact).norm()) for one in (plain, ours)]
    assert ours.is_contiguous(**LASTING) and apart[1] <= 1.1 * apart[0]
    grad = torch.randn_like(plain)
    (right,) = torch.autograd.grad(exact, wide, grad.double())
    theirs, own = (torch.autograd.grad(one, weight, grad)[0].double() for one in (plain, ours))
    assert float((own - right).norm()) <= 1.1 * float((theirs - right).norm())
    plain = plain.detach()
    normed = summed_norm.batch_norm(plain, None, None, None, None, 0.1, 1e-5)
    truth = batch_norm(plain.double(), None, None, training=True)
    theirs = batch_norm(plain, None, None, training=True)
    assert float((normed.double() - truth).norm()) <= 1.1 * float((theirs.double() - truth).norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("is_rectified", "is_whole"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize(("channels", "side"), [(3, 56), (64, 56), (200, 7), (2048, 7)])
def test_a_norm_and_its_gradients(
    channels: int, side: int, is_rectified: bool, is_whole: bool, dtype: torch.dtype
) -> None:
    """As near to the truth as torch's own; what comes back is a part of something larger, as it is before `cat`."""
    torch.manual_seed(0)
    x, affine = images(16, channels, side, side, dtype=dtype), torch.rand(2, channels, device="cuda") + 0.5
    grad = torch.randn(16, 2 * channels, side, side, device="cuda").to(dtype).contiguous(**LASTING)[:, channels:]

    def gradients(norm: Callable[..., torch.Tensor], *given: torch.Tensor) -> list[torch.Tensor]:
        given = tuple(one.detach().clone().requires_grad_() for one in given)
        out = norm(*given)
        return [out, *torch.autograd.grad(out, given, grad.to(out.dtype))]

    def plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        out = batch_norm(x, None, None, weight, bias, training=True)
        return out.relu() if is_rectified else out

    def ours(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        how = {"is_rectified": is_rectified, "is_whole": is_whole}
        return summed_norm.batch_norm(x, None, None, weight, bias, 0.1, 1e-5, **how)

    right = gradients(plain, x.double(), *affine.double())
    check_as_near(gradients(plain, x, *affine), gradients(ours, x, *affine), right)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("is_twofold", [True, False])
@pytest.mark.parametrize(("channels", "side"), [(64, 56), (200, 7), (2048, 7)])
def test_a_norm_with_something_added(
    channels: int, side: int, is_twofold: bool, readers: int, dtype: torch.dtype
) -> None:
    """Which is normed as well, or not."""
    torch.manual_seed(0)
    x, added = (images(16, channels, side, side, dtype=dtype) for _ in range(2))
    affine = torch.rand(4 if is_twofold else 2, channels, device="cuda") + 0.5
    weights = [torch.randn(x.shape, device="cuda").to(dtype).contiguous(**LASTING) for _ in range(readers)]

    def gradients(norm: Callable[..., Any], *given: torch.Tensor) -> list[torch.Tensor]:
        given = tuple(one.detach().clone().requires_grad_() for one in given)
        outs = norm(*given)
        return [outs[0], *torch.autograd.grad(outs[:readers], given, [one.to(outs[0].dtype) for one in weights])]

    def plain(x: torch.Tensor, added: torch.Tensor, *affine: torch.Tensor) -> Any:
        other = batch_norm(added, None, None, *affine[2:], training=True) if is_twofold else added
        out = (batch_norm(x, None, None, *affine[:2], training=True) + other).relu()
        return out, out.view_as(out)

    def ours(x: torch.Tensor, added: torch.Tensor, *affine: torch.Tensor) -> Any:
        norms = [(None, None, *affine[at : at + 2], 0.1, 1e-5) for at in range(0, len(affine), 2)]
        return joined_batch_norm(x, added, *[one for norm in norms for one in norm])

    right = gradients(plain, x.double(), added.double(), *affine.double())
    check_as_near(gradients(plain, x, added, *affine), gradients(ours, x, added, *affine), right)


def check_as_near(theirs: list[torch.Tensor], own: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    """A pixel or two may lie so near to zero that rounding tells whether relu lets their gradients through."""
    for one, other, exact in zip(theirs, own, right, strict=True):
        assert one.dtype is other.dtype and one.shape == other.shape
        apart = [float((each.detach().double() - exact).norm()) for each in (one, other)]
        assert apart[1] <= 1.1 * apart[0] + 1e-3 * float(exact.detach().norm())


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.three, self.four = nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.relu(self.two(self.one(x)))
        return torch.relu(self.four(self.three(out)) + x)


def test_one_graph_for_batches_of_several_sizes() -> None:
    """Which dynamo makes once it has seen that they change: how many rows there are is a symbol to the kernels then."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    graphs: list[int] = []

    def backend(graph: Any, given: Any) -> Any:
        graphs.append(lean_images(graph))
        return torch._inductor.compile(graph, given)

    plain, ours = (nn.Sequential(Residual(), Residual()).cuda().to(**LASTING) for _ in range(2))
    ours.load_state_dict(plain.state_dict())
    call = torch.compile(ours, backend=backend)
    for size in (8, 5, 6, 3):
        x = torch.randn(size, 32, 28, 28, device="cuda").to(**LASTING)
        for one in (plain, call):
            with torch.autocast("cuda", torch.bfloat16):
                one(x).float().square().mean().backward()
    assert set(graphs) == {4} and len(graphs) < 4, graphs
    for (name, one), other in zip(plain.named_parameters(), ours.parameters(), strict=True):
        if not name.endswith(("one.bias", "three.bias")):  # which a norm takes away: noise alone
            assert float((one.grad - other.grad).norm()) <= 0.02 * float(one.grad.norm()), name


def started(window: tuple[int, int, int], is_read_twice: bool) -> Callable[..., Any]:
    def start(x: torch.Tensor, weight: torch.Tensor, *affine: torch.Tensor) -> Any:
        bias = affine[2] if len(affine) > 2 else None
        return image_start((x, weight, bias, 2, 3), (None, None, *affine[:2], 0.1, 1e-5), window, is_read_twice)

    return start


def one_by_one(window: tuple[int, int, int], is_read_twice: bool) -> Callable[..., Any]:
    def start(x: torch.Tensor, weight: torch.Tensor, *affine: torch.Tensor) -> Any:
        y = conv2d(x, weight, affine[2] if len(affine) > 2 else None, stride=2, padding=3)
        out = max_pool2d(batch_norm(y, None, None, *affine[:2], training=True).relu(), *window)
        return (out, out)[: 1 + is_read_twice]

    return start


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_read_twice", [True, False])
@pytest.mark.parametrize("window", [(3, 2, 1), (3, 1, 1), (5, 3, 2)])
@pytest.mark.parametrize(
    ("channels", "high", "wide", "has_bias"),
    [(64, 224, 224, False), (100, 65, 90, True), (24, 64, 64, True), (160, 64, 64, False)],
)
def test_a_start(
    channels: int, high: int, wide: int, has_bias: bool, window: tuple[int, int, int], is_read_twice: bool,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    """As near to the truth as torch's own; what comes back is a part of something larger."""
    torch.manual_seed(0)
    x, weight = images(12, 3, high, wide, dtype=dtype).detach(), images(channels, 3, 7, 7, dtype=dtype).detach() * 0.1
    affine = [*(torch.rand(2, channels, device="cuda") + 0.5), *([weight[:, 0, 0, 0]] if has_bias else [])]

    def gradients(start: Callable[..., Any], x: torch.Tensor, *given: torch.Tensor) -> list[torch.Tensor]:
        mine = [one.detach().clone().requires_grad_() for one in given]
        outs = start(x, *mine)
        torch.manual_seed(1)
        larger = (len(x), 2 * channels, *outs[0].shape[2:])
        weights = [torch.randn(larger, device="cuda").to(dtype).contiguous(**LASTING)[:, channels:] for _ in outs]
        found = torch.autograd.grad(outs, mine, [one.to(outs[0].dtype) for one in weights])
        return [outs[0], *found[:3]]  # that of the bias is noise alone

    how = window, is_read_twice
    right = gradients(one_by_one(*how), x.double(), weight.double(), *(one.double() for one in affine))
    theirs, own = (gradients(start(*how), x, weight, *affine) for start in (one_by_one, started))
    check_as_near(theirs, own, right)
    assert own[0].is_contiguous(**LASTING)


def test_a_start_in_a_graph() -> None:
    """It is found, compiled, and trains as the network does without."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    found: list[Any] = []

    def backend(graph: Any, given: Any) -> Any:
        lean_images(graph)
        found.extend(node.args[3] for node in graph.graph.nodes if node.target is image_start)
        return torch._inductor.compile(graph, given)

    stem = [nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    plain, ours = (nn.Sequential(*copy.deepcopy(stem), Residual()).cuda().to(**LASTING) for _ in range(2))
    ours.load_state_dict(plain.state_dict())
    exact = copy.deepcopy(plain).double()
    call, x = torch.compile(ours, backend=backend), torch.randn(32, 3, 96, 96, device="cuda").to(**LASTING)
    for one, kind in ((plain, torch.float32), (call, torch.float32), (exact, torch.float64)):
        with torch.autocast("cuda", torch.bfloat16, enabled=kind is torch.float32):
            one(x.to(kind)).double().square().mean().backward()
    assert found == [True]
    names = [name for name, _ in plain.named_parameters() if not name.endswith(("one.bias", "three.bias"))]
    theirs, own, right = ([dict(net.named_parameters())[name].grad for name in names] for net in (plain, ours, exact))
    check_as_near(theirs, own, right)
    torch.testing.assert_close(ours[1].running_var, plain[1].running_var, rtol=1e-2, atol=1e-4)


def chosen(mode: str) -> list[Choice]:
    return [Choice(find("compiled-model"), {"mode": mode, "part": "model"})]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_it_is_the_same_training(check_same, tmp_path: Path, mode: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    check_same(script, chosen(mode))


def test_its_kernels_are_what_runs(tmp_path: Path, run_script) -> None:
    script = tmp_path / "train.py"
    script.write_text(COUNTING + SCRIPT + "print('calls', len(calls))\n")
    for choices, least, most in (([], 0, 0), (chosen("default"), 30, 36), (chosen("reduce-overhead"), 1, 36)):
        trial = run_script(script, choices, limit_seconds=400.0)
        assert trial.good and trial.run.withdrawn == [], trial.log
        assert least <= int(trial.log.rpartition("calls ")[2].split()[0]) <= most, trial.log
