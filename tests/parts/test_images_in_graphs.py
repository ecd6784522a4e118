"""What networks for images do in graphs that dynamo traced, said otherwise: the same comes out, or it is left alone."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager

from hotlap.parts.image_stem import convolve_blocks
from hotlap.parts.images_in_graphs import lean_images
from hotlap.parts.joined_norm import joined_batch_norm
from hotlap.parts.summed_norm import batch_norm
from hotlap.parts.window_maxima import maxima, pooled

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

STEMS = [
    (7, 2, 3, 32, 32),
    (3, 2, 1, 17, 20),
    (4, 4, 0, 16, 16),
    (11, 4, 2, 35, 31),
    (3, 2, 0, 9, 9),
    (5, 3, 2, 20, 22),
]
WINDOWS = [(3, 2, 1, 8, 8), (3, 2, 1, 9, 7), (3, 1, 1, 5, 5), (3, 2, 0, 9, 9), (5, 3, 2, 11, 10), (2, 1, 0, 4, 6)]


NOISE = ("conv.bias", "beside.bias")  # all there is in gradients of what a norm takes away
ON_A_CPU = functools.partial(lean_images, devices=("cpu",))


class Backend:
    """For dynamo: changes graphs, as the compiler's would be on a GPU, and counts."""

    def __init__(self, change: Callable[[Any], int] = ON_A_CPU, is_compiler: bool = False) -> None:
        self.counts: list[int] = []
        self._change, self._is_compiler = change, is_compiler

    def __call__(self, graph: Any, given: Any) -> Any:
        self.counts.append(self._change(graph))
        return torch._inductor.compile(graph, given) if self._is_compiler else graph.forward


def images(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    made = torch.randn(shape, dtype=torch.float64).to(dtype).contiguous(memory_format=torch.channels_last)
    return made.requires_grad_()


def check_gradients(plain: Tensor, ours: Tensor, given: list[Tensor]) -> None:
    assert plain.shape == ours.shape and plain.dtype is ours.dtype
    torch.testing.assert_close(ours, plain, equal_nan=True)
    weights = torch.randn_like(plain)
    theirs, own = (torch.autograd.grad(one, given, weights) for one in (plain, ours))
    torch.testing.assert_close(own, theirs)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(("side", "stride", "padding", "high", "wide"), STEMS)
def test_blocks_of_pixels(channels: int, side: int, stride: int, padding: int, high: int, wide: int) -> None:
    x, weight, bias = images(2, channels, high, wide), images(8, channels, side, side), torch.randn(8).double()
    given = [x, weight, bias.requires_grad_()]
    check_gradients(
        F.conv2d(x, weight, bias, stride, padding), convolve_blocks(x, weight, bias, stride, padding), given
    )


@pytest.mark.parametrize("channels", [4, 5, 130])
@pytest.mark.parametrize(("side", "stride", "padding", "high", "wide"), WINDOWS)
def test_windows(side: int, stride: int, padding: int, high: int, wide: int, channels: int) -> None:
    """Many levels are equal, some are not numbers, and some windows hold nothing but the lowest."""
    levels = torch.randint(0, 5, (2, channels, high, wide)).double()
    levels[0, 0, :4, :4], levels[1, 1, 2, 2] = float("-inf"), float("nan")
    x = levels.contiguous(memory_format=torch.channels_last).requires_grad_()
    ours = pooled(x, side, stride, padding)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    check_gradients(F.max_pool2d(x, side, stride, padding), ours, [x])


def test_what_torch_asks_of_an_operation() -> None:
    torch.library.opcheck(maxima, (images(2, 4, 8, 8, dtype=torch.float32), 3, 2, 1))


@pytest.mark.parametrize("has_statistics", [True, False])
@pytest.mark.parametrize("is_affine", [True, False])
@pytest.mark.parametrize("is_rectified", [True, False])
def test_norms(is_rectified: bool, is_affine: bool, has_statistics: bool) -> None:
    x = (images(4, 6, 5, 5).detach() * 3 + 100).requires_grad_()  # far from zero
    affine = [torch.rand(6).double().requires_grad_() for _ in range(2)] if is_affine else [None, None]
    theirs = [torch.zeros(6).double(), torch.ones(6).double()] if has_statistics else [None, None]
    ours = [one.clone() if one is not None else None for one in theirs]
    plain, own = (
        F.batch_norm(x, *theirs, *affine, True, 0.3, 1e-5),
        batch_norm(x, *ours, *affine, 0.3, 1e-5, is_rectified=is_rectified),
    )
    given = [one for one in (x, *affine) if one is not None]
    check_gradients(plain.relu() if is_rectified else plain, own, given)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("readers", [(0,), (1,), (0, 1), ()])
@pytest.mark.parametrize("is_affine", [True, False])
def test_norms_with_something_added(is_affine: bool, readers: tuple[int, ...]) -> None:
    x, added = images(4, 6, 5, 5), images(4, 6, 5, 5)
    affine = [torch.rand(6).double().requires_grad_() for _ in range(2)] if is_affine else [None, None]
    plain = F.relu(F.batch_norm(x, None, None, *affine, True, 0.3, 1e-5) + added)
    pair = joined_batch_norm(x, added, None, None, *affine, 0.3, 1e-5)
    given = [one for one in (x, added, *affine) if one is not None]
    if not readers:
        return check_gradients(plain * 0 + x, pair[0].detach() * 0 + x, given[:1])
    own = sum(pair[reader] * (reader + 1) for reader in readers)
    return check_gradients(plain * sum(reader + 1 for reader in readers), own, given)


@pytest.mark.parametrize("is_affine", [True, False])
def test_two_norms_that_are_added(is_affine: bool) -> None:
    x, other = images(4, 6, 5, 5), (images(4, 6, 5, 5).detach() * 3 + 100).requires_grad_()
    affine = [torch.rand(6).double().requires_grad_() if is_affine else None for _ in range(4)]
    theirs = [torch.zeros(6).double(), torch.ones(6).double(), torch.zeros(6).double(), torch.ones(6).double()]
    ours = [one.clone() for one in theirs]
    plain = F.batch_norm(x, *theirs[:2], *affine[:2], True, 0.3, 1e-5)
    plain = F.relu(plain + F.batch_norm(other, *theirs[2:], *affine[2:], True, 0.1, 1e-3))
    norms = (*ours[:2], *affine[:2], 0.3, 1e-5, *ours[2:], *affine[2:], 0.1, 1e-3)
    pair = joined_batch_norm(x, other, *norms)
    given = [one for one in (x, other, *affine) if one is not None]
    check_gradients(plain * 3, pair[0] + 2 * pair[1], given)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [0.0, 30.0, 1000.0])
def test_norms_lose_nothing_that_pixels_had(shift: float, dtype: torch.dtype) -> None:
    """Held against the same pixels in double: as near as torch's own, also where they lie far from zero."""
    x = (images(8, 6, 16, 16).detach() + shift).to(dtype)
    exact = F.batch_norm(x.double(), None, None, training=True)
    apart = [
        float((one.double() - exact).norm() / exact.norm())
        for one in (F.batch_norm(x, None, None, training=True), batch_norm(x, None, None, None, None, 0.1, 1e-5))
    ]
    assert apart[1] <= 1.01 * apart[0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 7, stride=2, padding=3)
        self.norm, self.pool = nn.BatchNorm2d(16), nn.MaxPool2d(3, stride=2, padding=1)
        self.body, self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.norm(self.stem(x)), inplace=True))
        x = F.relu(self.second(self.body(x)) + x)
        return self.head(x.mean((2, 3)))


def trained(net: nn.Module, call: Callable[..., Tensor], dtype: torch.dtype, steps: int = 3) -> list[Tensor]:
    x = torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)
    for _ in range(steps):
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            out = call(x.to(torch.float32 if dtype is torch.bfloat16 else dtype))
        out.float().square().sum().backward()
    found = {name: one.grad for name, one in net.named_parameters() if name != "stem.bias"}  # which is noise alone
    return [*found.values(), *(one for one in net.buffers() if one.is_floating_point())]


def nets(dtype: torch.dtype = torch.float32) -> list[nn.Module]:
    made = []
    for kind in (torch.float64, dtype, dtype):
        torch.manual_seed(0)
        made.append(Net().to(dtype=kind, memory_format=torch.channels_last).train())
    return made


def test_a_network_trains_as_near_to_the_truth() -> None:
    """Under autocast, through the compiler: no farther from the network in double than torch's own way is."""
    backend = Backend(is_compiler=True)
    exact, plain, ours = nets()
    truth = trained(exact, exact, torch.float64)
    theirs = trained(plain, torch.compile(plain, dynamic=False), torch.bfloat16)
    own = trained(ours, torch.compile(ours, backend=backend, dynamic=False), torch.bfloat16)
    assert backend.counts == [4]
    for right, one, other in zip(truth, theirs, own, strict=True):
        apart = [float((each.double() - right).norm()) for each in (one, other)]
        assert apart[1] <= 1.5 * apart[0] + 1e-6 * float(right.norm())


def test_batches_of_several_sizes() -> None:
    """Which one graph serves, once dynamo has seen that they change."""
    backend = Backend(is_compiler=True)
    _, plain, ours = nets()
    call = torch.compile(ours, backend=backend)
    for size in (4, 3, 6, 5):
        x = torch.randn(size, 3, 32, 32).to(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            outs = plain(x), call(x)
        torch.testing.assert_close(outs[1], outs[0], rtol=0.05, atol=0.05)
        outs[1].float().square().sum().backward()
    assert backend.counts == [4, 3]
    torch.testing.assert_close(ours.norm.running_var, plain.norm.running_var, rtol=1e-3, atol=1e-5)


def left(function: Callable[..., Any], *given: Tensor) -> int:
    """How many changes were made, in a graph that then still runs."""
    backend = Backend()
    out = torch.compile(function, backend=backend, dynamic=False)(*given)
    assert out.shape == function(*given).shape
    return sum(backend.counts)


X, W = (2, 3, 16, 16), (8, 3, 3, 3)
LOW = torch.bfloat16


@pytest.mark.parametrize(
    ("how", "count"),
    [
        (lambda x, w: F.conv2d(x, w, stride=2), 1),
        (lambda x, w: F.conv2d(x, w, None, (2, 2), (1,)), 1),
        (lambda x, w: F.conv2d(x, w, stride=[2, 2], padding=[1, 1]), 1),
        (lambda x, w: F.conv2d(x, w), 0),  # does not stride
        (lambda x, w: F.conv2d(x, w, stride=(2, 1)), 0),
        (lambda x, w: F.conv2d(x, w, stride=2, padding=(1, 0)), 0),
        (lambda x, w: F.conv2d(x, w, stride=2, dilation=2), 0),
        (lambda x, w: F.conv2d(x, w, padding="same"), 0),
        (lambda x, w: F.conv2d(x, w, stride=4), 0),  # leaves pixels out
        (lambda x, w: F.conv2d(x, w[:, :1], stride=2, groups=1) if x.shape[1] == 1 else x, 0),
        (lambda x, w: F.conv2d(x.float(), w.float(), stride=2), 0),
        (lambda x, w: F.conv2d(x.contiguous(), w.contiguous(), stride=2), 0),
        (lambda x, w: F.conv2d(x.repeat(1, 2, 1, 1), w.repeat(1, 2, 1, 1), stride=2), 0),  # more channels
    ],
)
def test_convolutions_that_are_meant(how: Callable[..., Any], count: int) -> None:
    assert left(how, images(*X, dtype=LOW), images(*W, dtype=LOW)) == count


@pytest.mark.parametrize(
    ("how", "count"),
    [
        (lambda x: F.max_pool2d(x, 3, 2, 1), 1),
        (lambda x: F.max_pool2d(x, (3, 3), (2, 2), (1, 1)), 1),
        (lambda x: F.max_pool2d(input=x, kernel_size=3, stride=1), 1),
        (lambda x: F.max_pool2d(x.float(), 3, 2), 1),
        (lambda x: F.max_pool2d(x, 2), 0),  # windows that do not overlap
        (lambda x: F.max_pool2d(x, 3), 0),
        (lambda x: F.max_pool2d(x, (3, 2), 1), 0),
        (lambda x: F.max_pool2d(x, 3, 2, dilation=2), 0),
        (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), 0),
        (lambda x: F.max_pool2d(x, 3, 2, return_indices=True)[0], 0),
        (lambda x: F.max_pool2d(x.contiguous(), 3, 2), 0),
        (lambda x: F.max_pool2d(x.double(), 3, 2), 0),
        (lambda x: F.max_pool2d(x.detach(), 3, 2), 0),  # nobody goes back
        (lambda x: F.max_pool2d(x[0], 3, 2), 0),
        (lambda x: F.max_pool2d(x, 13, 1), 0),
    ],
)
def test_windows_that_are_meant(how: Callable[..., Any], count: int) -> None:
    assert left(how, images(2, 4, 16, 16, dtype=LOW)) == count


def norm(**options: Any) -> nn.Module:
    return nn.BatchNorm2d(4, **options)


@pytest.mark.parametrize(
    ("made", "count"),
    [
        (norm, 1),
        (lambda: norm(affine=False), 1),
        (lambda: norm(track_running_stats=False), 1),
        (lambda: norm().eval(), 0),
        (lambda: norm(momentum=None), 0),
        (lambda: norm().to(LOW), 0),
        (lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), norm()), 0),  # one pixel is no image
        (lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4 * 256)), 0),
        (lambda: nn.InstanceNorm2d(4), 0),
    ],
)
def test_norms_that_are_meant(made: Callable[[], nn.Module], count: int) -> None:
    module = made()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    x = images(8, 4, 16, 16, dtype=LOW)
    assert left(module, x) == count
    if count and before:
        changed = [name for name, value in module.state_dict().items() if not torch.equal(value, before[name])]
        assert [name for name in changed if "running" in name] == [name for name in before if "running" in name]


@pytest.mark.parametrize(
    ("how", "taken", "left"),
    [
        (lambda x: F.relu(x), 1, 0),
        (lambda x: F.relu(x, inplace=True), 1, 0),
        (torch.relu, 1, 0),
        (lambda x: F.relu(x + 1), 0, 1),
        (lambda x: F.relu(x + x.mean(0)), 0, 1),
        (lambda x: F.relu(x) + x, 0, 1),
        (F.gelu, 0, 0),
        (lambda x: x, 0, 0),
    ],
)
def test_relu_becomes_part_of_a_norm_that_nothing_else_reads(
    how: Callable[[Tensor], Tensor], taken: int, left: int
) -> None:
    graphs: list[Any] = []
    module, x = norm(), images(8, 4, 16, 16, dtype=LOW)
    backend = Backend(lambda graph: (graphs.append(graph), ON_A_CPU(graph))[1])
    ours = torch.compile(lambda x: how(module(x)), backend=backend)(x)
    torch.testing.assert_close(ours, how(module(x)))
    nodes = [node for node in graphs[0].graph.nodes if node.op == "call_function"]
    is_alone = {"is_rectified": True, "is_whole": False}  # a compiler may make it with what reads it
    assert sum(node.target is batch_norm and node.kwargs == is_alone for node in nodes) == taken
    assert sum("relu" in getattr(node.target, "__name__", "") for node in nodes) == left


@pytest.mark.parametrize(
    ("reads", "is_whole"),
    [
        (lambda conv, x: conv(x), True),
        (lambda conv, x: conv(x) + F.max_pool2d(x, 3, 1, 1), True),
        (lambda conv, x: conv(x) + x, False),
        (lambda conv, x: torch.cat([conv(x), x]), False),
        (lambda conv, x: x.mean((2, 3)), False),
        (lambda conv, x: x, False),
    ],
)
def test_what_is_read_from_memory_in_any_case(reads: Callable[..., Tensor], is_whole: bool) -> None:
    graphs: list[Any] = []
    backend = Backend(lambda graph: (graphs.append(graph), ON_A_CPU(graph))[1])
    module, conv = norm(), nn.Conv2d(4, 4, 3, padding=1).to(LOW).to(memory_format=torch.channels_last)
    torch.compile(lambda x: reads(conv, F.relu(module(x))), backend=backend)(images(8, 4, 16, 16, dtype=LOW))
    (found,) = [node.kwargs for node in graphs[0].graph.nodes if node.target is batch_norm]
    assert found == {"is_rectified": True, "is_whole": is_whole}


def check_as_near(made: Callable[[], nn.Module], x: Tensor, slack: float = 1e-3) -> Any:
    """Under autocast: no farther from the module in double than torch's own way is, but for that part of it. Gives the
    changed graph."""
    graphs: list[Any] = []
    backend = Backend(lambda graph: (graphs.append(graph), ON_A_CPU(graph))[1])
    plain, ours, exact = (made().to(memory_format=torch.channels_last) for _ in range(3))
    for one in (ours, exact):
        one.load_state_dict(plain.state_dict())
    found = []
    for module, call, dtype in ((plain, plain, LOW), (ours, torch.compile(ours, backend=backend), LOW),
                                (exact.double(), exact, torch.float64)):  # fmt: skip
        mine = x.detach().to(dtype).requires_grad_()
        with torch.autocast("cpu", LOW, enabled=dtype is LOW):
            call(mine).double().square().mean().backward()
        weights = (one.grad for name, one in module.named_parameters() if not name.endswith(NOISE))
        found.append([mine.grad, *weights, *(one for one in module.buffers() if one.is_floating_point())])
    for theirs, own, right in zip(*found, strict=True):
        apart = [float((one.double() - right).norm()) for one in (theirs, own)]
        assert apart[1] <= 1.5 * apart[0] + slack * float(right.norm()) + 1e-6
    return graphs[0].graph


class Residual(nn.Module):
    def __init__(self, add: Callable[[Tensor, Tensor], Tensor], act: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.add, self.act = add, act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.add(self.norm(self.conv(x)), x))


def twice(x: Tensor) -> Tensor:
    out = F.relu(x)
    return out + out.square() + out.exp().mean()


@pytest.mark.parametrize(
    ("add", "act", "joined"),
    [
        (torch.add, F.relu, 1),
        (operator.add, torch.relu, 1),
        (lambda normed, x: x + normed, lambda x: F.relu(x, inplace=True), 1),
        (operator.iadd, lambda x: F.relu(x, inplace=True), 1),
        (lambda normed, x: normed.add_(x), F.relu, 1),
        (torch.add, twice, 1),
        (lambda normed, x: operator.iadd(x.clone(), normed), F.relu, 0),  # what it is added to may be read again
        (lambda normed, x: torch.add(normed, x, alpha=2), F.relu, 0),
        (lambda normed, x: normed + x.mean((2, 3), keepdim=True), F.relu, 0),
        (lambda normed, x: normed + x + normed, F.relu, 0),
        (lambda normed, x: normed + normed, F.relu, 0),
        (lambda normed, x: normed + x.float(), F.relu, 0),
        (torch.sub, F.relu, 0),
        (torch.add, F.gelu, 0),
    ],
)
def test_what_is_added_becomes_part_of_a_norm(add: Callable[..., Tensor], act: Any, joined: int) -> None:
    graph = check_as_near(lambda: Residual(add, act), images(8, 4, 16, 16, dtype=torch.float32))
    targets = [node.target for node in graph.nodes]
    assert targets.count(joined_batch_norm) == joined and (joined == 0 or batch_norm not in targets)


class Shortcut(nn.Module):
    """As the first block of a stage has it."""

    def __init__(self, add: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.beside, self.other = nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8, momentum=0.3, eps=1e-3)
        self.add = add

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.add(self.norm(self.conv(x)), self.other(self.beside(x))))


@pytest.mark.parametrize(
    ("add", "norms"),
    [
        (torch.add, 12),
        (operator.iadd, 12),
        (lambda one, other: operator.iadd(other, one), 12),
        (lambda one, other: one + other * 1, 6),
        (lambda one, other: one + other.relu(), 6),
        (lambda one, other: one + other + other, None),
    ],
)
def test_two_norms_become_one(add: Callable[..., Tensor], norms: int | None) -> None:
    graph = check_as_near(lambda: Shortcut(add), images(8, 4, 16, 16, dtype=torch.float32))
    joined = [node for node in graph.nodes if node.target is joined_batch_norm]
    assert [len(node.args) - 2 for node in joined] == ([norms] if norms else [])
    assert (batch_norm in [node.target for node in graph.nodes]) is (norms != 12)


def shut_relu(net: Shortcut, x: Tensor) -> Tensor:
    normed = net.norm(net.conv(x))
    with torch.no_grad():
        out = F.relu(normed)
    return out + net.other(net.beside(x))


def shut_norm(net: Shortcut, x: Tensor) -> Tensor:
    with torch.no_grad():
        normed = net.norm(net.conv(x))
    return F.relu(normed + net.beside(x))


def shut_second_norm(net: Shortcut, x: Tensor) -> Tensor:
    normed = net.norm(net.conv(x))
    with torch.no_grad():
        other = net.other(net.beside(x))
    return F.relu(normed + other)


def shut_end(net: Shortcut, x: Tensor) -> Tensor:
    added = net.norm(net.conv(x)) + net.beside(x)
    with torch.no_grad():
        out = F.relu(added)
    return out + added.mean()


@pytest.mark.parametrize("forward", [shut_relu, shut_norm, shut_second_norm, shut_end])
def test_what_is_made_without_gradients_gets_none(forward: Callable[[Shortcut, Tensor], Tensor]) -> None:
    x = images(8, 4, 16, 16, dtype=torch.float32).detach()
    found = []
    for backend in ("eager", Backend()):
        torch.manual_seed(0)
        net = Shortcut(torch.add).to(memory_format=torch.channels_last)
        with torch.autocast("cpu", LOW):
            out = torch.compile(functools.partial(forward, net), backend=backend, dynamic=False)(x)
        out.double().square().mean().backward()
        has = {name: one.grad is not None and bool(one.grad.any()) for name, one in net.named_parameters()}
        found.append({name: one for name, one in has.items() if not name.endswith(NOISE)})
    assert found[0] == found[1] and True in found[0].values()


def test_layouts_stay_where_what_is_added_has_another() -> None:
    """Torch's sum lies as the first of both."""
    module = norm()
    assert left(lambda x: F.relu(x.contiguous() + module(x * 1)).view(8, -1), images(8, 4, 16, 16, dtype=LOW)) == 1


def changed_pixels(module: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    seen = y.view_as(y)
    normed = module(seen)
    y.zero_()
    return F.relu(normed + x)


def changed_weights(module: nn.Module, x: Tensor) -> Tensor:
    normed = module(x * 2)
    module.weight.zero_()
    return F.relu(normed + x)


@pytest.mark.parametrize("how", [changed_pixels, changed_weights])
def test_norms_take_what_is_there_when_they_are_reached(how: Callable[[nn.Module, Tensor], Tensor]) -> None:
    plain, ours = norm(), norm()
    x = images(8, 4, 16, 16, dtype=LOW).detach()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(functools.partial(how, ours), backend=Backend())(x), how(plain, x))
    torch.testing.assert_close(ours.running_var, plain.running_var, rtol=1e-3, atol=1e-5)


def joined(net: Shortcut, x: Tensor) -> Tensor:
    return F.relu(net.norm(net.conv(x)) + net.beside(x))


def test_what_is_handed_out_is_not_changed_unnoticed() -> None:
    """What was kept for the way back lies there, too: torch tells so."""
    net, last = Shortcut(torch.add).to(memory_format=torch.channels_last), nn.Conv2d(8, 8, 3)

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        out = joined(net, x)
        return last(out).mean(), out

    def backend(graph: Any, given: Any) -> Any:
        assert ON_A_CPU(graph) == 1
        return aot_eager(graph, given)

    with torch.autocast("cpu", LOW):
        loss, out = torch.compile(forward, backend=backend)(images(8, 4, 16, 16, dtype=torch.float32))
    with torch.no_grad():
        out.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def changed_later(net: Shortcut, x: Tensor) -> Tensor:
    out = joined(net, x)
    return out.float().mean() + out.mul_(2).float().sum()


def test_one_of_two_readers_may_change_it() -> None:
    """Torch forbids it only to who goes back there."""
    net = Shortcut(torch.add).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", LOW):
        left(functools.partial(changed_later, net), images(8, 4, 16, 16, dtype=torch.float32))


def test_hooks_see_all_of_a_gradient() -> None:
    net, last = Shortcut(torch.add).to(memory_format=torch.channels_last), nn.Conv2d(8, 8, 3, padding=1)

    def forward(x: Tensor) -> Tensor:
        out = joined(net, x)
        seen = last(out)
        out.register_hook(lambda grad: grad * 0)
        return seen + out

    backend = Backend()
    with torch.autocast("cpu", LOW):
        torch.compile(forward, backend=backend)(images(8, 4, 16, 16, dtype=torch.float32)).float().sum().backward()
    assert backend.counts == [1] and last.weight.grad.any() and not net.beside.weight.grad.any()


@pytest.mark.parametrize(
    "how",
    [
        lambda module, x: torch.func.grad(lambda y: module(y).float().square().sum())(x),
        lambda module, x: torch.vmap(lambda y: module(y * 1))(x.view(2, 4, 4, 16, 16)),
        lambda module, x: torch.func.grad(lambda y: F.max_pool2d(y, 3, 2, 1).float().sum())(x),
    ],
)
def test_what_torch_transforms_is_left_alone(how: Callable[..., Tensor]) -> None:
    module = norm(track_running_stats=False)
    assert left(functools.partial(how, module), images(8, 4, 16, 16, dtype=LOW)) == 0


@pytest.mark.parametrize(
    "made",
    [
        lambda x: batch_norm(x, None, None, None, None, 0.1, 1e-5),
        lambda x: joined_batch_norm(x, x * 2, None, None, None, None, 0.1, 1e-5)[0],
        lambda x: joined_batch_norm(x, x * x, *(None, None, None, None, 0.1, 1e-5) * 2)[1],
        lambda x: pooled(x, 3, 2, 1),
    ],
)
def test_gradients_of_gradients_are_refused(made: Callable[[Tensor], Tensor]) -> None:
    x = images(4, 6, 5, 5)
    (grad,) = torch.autograd.grad(made(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"differentiate twice|no autograd formula"):
        grad.square().sum().backward()


def test_a_norm_that_is_used_twice_keeps_its_order() -> None:
    """Its statistics are moved on twice, by other pixels each time."""
    backend = Backend()
    module = norm(momentum=0.5)
    plain, ours = copy.deepcopy(module), module
    x = images(8, 4, 16, 16, dtype=LOW)

    def call(module: nn.Module, x: Tensor) -> Tensor:
        return F.relu(module(x * 1) + module(x * 3 + 1))

    torch.compile(call, backend=backend)(ours, x)
    call(plain, x)
    assert backend.counts == [2]
    torch.testing.assert_close(ours.running_mean, plain.running_mean, rtol=1e-2, atol=1e-3)


def test_sizes_that_change_are_left_alone() -> None:
    backend = Backend()
    call = torch.compile(lambda x: F.max_pool2d(x, 3, 2, 1), backend=backend, dynamic=True)
    for size in (16, 18):
        call(images(2, 4, size, size, dtype=LOW))
    assert backend.counts == [0]
    torch._dynamo.reset()
    backend.counts.clear()
    call = torch.compile(lambda x: F.max_pool2d(x, 3, 2, 1), backend=backend)
    for batch in (4, 3, 5):  # only how many there are
        call(images(batch, 4, 16, 16, dtype=LOW)).sum().backward()
    assert backend.counts == [1, 1]


def test_what_torch_refuses_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*given: Any) -> Tensor:
        raise RuntimeError("sizes do not match")

    monkeypatch.setattr("hotlap.parts.images_in_graphs.convolve_blocks", refuses)
    monkeypatch.setattr("hotlap.parts.images_in_graphs.pooled", lambda x, *given: x)  # of another size
    assert left(lambda x, w: F.conv2d(x, w, stride=2), images(*X, dtype=LOW), images(*W, dtype=LOW)) == 0
    assert left(lambda x: F.max_pool2d(x, 3, 2, 1), images(2, 4, 16, 16, dtype=LOW)) == 0


def test_other_devices_are_left_alone() -> None:
    backend = Backend(lean_images)
    net = nets()[1]
    with torch.autocast("cpu", torch.bfloat16):
        torch.compile(net, backend=backend)(images(2, 3, 32, 32, dtype=torch.float32))
    assert backend.counts == [0]
