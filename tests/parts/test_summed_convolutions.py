"""Convolutions of single pixels that tell the sums of what they make, in graphs that dynamo traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_images_in_graphs import LOW, ON_A_CPU, Backend, check_as_near, images
from torch import Tensor, nn

from hotlap.parts import products_in_graphs
from hotlap.parts.graph_operations import value
from hotlap.parts.joined_norm import joined_batch_norm, joined_product
from hotlap.parts.summed_convolution import is_gain, summed_convolution
from hotlap.parts.summed_norm import batch_norm

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_products_that_are_limited_by_memory() -> None:
    assert [is_gain(64, 256), is_gain(64, 64), is_gain(256, 64), is_gain(128, 512)] == [True] * 4
    assert [is_gain(256, 1024), is_gain(512, 128), is_gain(128, 1024), is_gain(65, 64), is_gain(64, 72)] == [False] * 5


class Bottleneck(nn.Module):
    """As residual networks have it, with a shortcut that is normed as well or with none."""

    def __init__(self, has_shortcut: bool = True) -> None:
        super().__init__()
        self.first, self.one = nn.Conv2d(64, 64, 1, bias=False), nn.BatchNorm2d(64)
        self.second, self.two = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.third, self.three = nn.Conv2d(64, 64, 1, bias=False), nn.BatchNorm2d(64)
        self.beside = None
        if has_shortcut:
            self.beside = nn.Sequential(nn.Conv2d(64, 64, 1, bias=False), nn.BatchNorm2d(64, momentum=0.3))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.one(self.first(x)))
        out = self.three(self.third(F.relu(self.two(self.second(out)))))
        return F.relu(out + (x if self.beside is None else self.beside(x)))


@pytest.mark.parametrize("has_shortcut", [True, False])
def test_a_block(has_shortcut: bool) -> None:
    """Trains as near to the truth as torch's own does; each norm after a product is told its sums."""
    graph = check_as_near(lambda: Bottleneck(has_shortcut), images(4, 64, 6, 6, dtype=torch.float32))
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    assert sum(node.target is summed_convolution for node in nodes) == 2 + has_shortcut
    told = {node.target: node.kwargs.get("sums") for node in nodes if node.target in (batch_norm, joined_batch_norm)}
    assert len(told[joined_batch_norm]) == 1 + has_shortcut and all(told[joined_batch_norm])
    rectified = [node.kwargs for node in nodes if node.target is batch_norm]
    assert [("sums" in one, one["is_whole"]) for one in rectified] == [(True, True), (False, True)]


def conv(*sizes: int, **options: Any) -> nn.Module:
    return nn.Conv2d(*(sizes or (64, 64, 1)), **{"bias": False, **options})


@pytest.mark.parametrize(
    ("made", "how", "count"),
    [
        (conv, lambda conv, norm, x: norm(conv(x)), 1),
        (lambda: conv(64, 64, 1, padding=0, dilation=3), lambda conv, norm, x: norm(conv(x)), 1),
        (lambda: conv(bias=True), lambda conv, norm, x: norm(conv(x)), 0),
        (lambda: conv(64, 64, 1, stride=2), lambda conv, norm, x: norm(conv(x)), 0),
        (lambda: conv(64, 64, 1, padding=1), lambda conv, norm, x: norm(conv(x)), 0),
        (lambda: conv(64, 64, 3), lambda conv, norm, x: norm(conv(x)), 0),
        (lambda: conv(64, 64, 1, groups=2), lambda conv, norm, x: norm(conv(x)), 0),
        (conv, lambda conv, norm, x: (lambda y: norm(y) + y)(conv(x)), 0),  # somebody else reads it
        (conv, lambda conv, norm, x: norm(conv(x) + 1), 0),
        (conv, lambda conv, norm, x: norm(conv(x.contiguous())), 0),  # would have to be laid out first
        (conv, lambda conv, norm, x: norm(conv(x).float()), 0),
    ],
)
def test_what_is_meant(made: Callable[[], nn.Module], how: Callable[..., Tensor], count: int) -> None:
    graphs: list[Any] = []
    backend = Backend(lambda graph: (graphs.append(graph), ON_A_CPU(graph))[1])
    product, norm = made().to(LOW).to(memory_format=torch.channels_last), nn.BatchNorm2d(64)
    x = images(4, 64, 6, 6, dtype=LOW)
    out = torch.compile(lambda x: how(product, norm, x), backend=backend, dynamic=False)(x)
    torch.testing.assert_close(out, how(product, norm, x), rtol=0.02, atol=0.02)
    found = [node for node in graphs[0].graph.nodes if node.target is summed_convolution]
    assert len(found) == count


def test_a_layer_that_nobody_trains() -> None:
    """Gradients go where they are wanted."""
    product, norm = conv().to(LOW).to(memory_format=torch.channels_last).requires_grad_(False), nn.BatchNorm2d(64)
    x = images(4, 64, 6, 6, dtype=LOW)
    out = torch.compile(lambda x: norm(product(x)), backend=Backend())(x)
    plain = norm(product(x))
    weights = torch.randn_like(plain)
    for one, other in zip(*(torch.autograd.grad(y, [x, norm.weight], weights) for y in (out, plain)), strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)
    assert product.weight.grad is None


def test_batches_of_several_sizes() -> None:
    product, norm = conv().to(LOW).to(memory_format=torch.channels_last), nn.BatchNorm2d(64)
    backend = Backend(is_compiler=True)
    call = torch.compile(lambda x: norm(product(x)), backend=backend)
    for size in (4, 3, 6, 5):
        x = images(size, 64, 6, 6, dtype=LOW)
        torch.testing.assert_close(call(x), norm(product(x)), rtol=0.03, atol=0.03)
    assert len(backend.counts) == 2


class Chain(nn.Module):
    """What is added and rectified is read by a product and by `also`."""

    def __init__(self, also: Callable[[Any, Tensor, Tensor], Tensor], narrow: int = 64, **options: Any) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(128, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128)
        self.next, self.second = nn.Conv2d(128, narrow, 1, **{"bias": False, **options}), nn.BatchNorm2d(narrow)
        self.back, self.third = nn.Conv2d(narrow, 128, 1, bias=False), nn.BatchNorm2d(128)
        self.also = also

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.body(x)) + x)
        return self.also(self, x, self.third(self.back(F.relu(self.second(self.next(x))))))


def added(own: Any, x: Tensor, out: Tensor) -> Tensor:
    return F.relu(out + x)


@pytest.mark.parametrize(
    ("also", "narrow", "options", "count"),
    [
        (added, 64, {}, 1),
        (added, 128, {}, 1),
        (lambda own, x, out: out, 64, {}, 1),  # nobody else reads it
        (lambda own, x, out: F.relu(out + x) + x.mean(), 64, {}, 1),
        (added, 192, {}, 0),
        (added, 64, {"bias": True}, 0),
        (lambda own, x, out: F.relu(out + x) + own.next(x).mean(), 64, {}, 1),  # two products, one becomes part
        (lambda own, x, out: [out, x][0] + x, 64, {}, 1),
        (lambda own, x, out: (out, x)[1] * out, 64, {}, 1),
    ],
)
def test_a_product_of_what_was_added(also: Any, narrow: int, options: dict[str, Any], count: int) -> None:
    x = images(4, 128, 6, 6, dtype=torch.float32)
    graph = check_as_near(lambda: Chain(also, narrow, **options), x, slack=0.05)  # relu passes others by rounding
    targets = [node.target for node in graph.nodes]
    assert targets.count(joined_product) == count
    assert sum(target in (joined_product, joined_batch_norm) for target in targets) >= 1


def by_keyword(own: Any, x: Tensor) -> Tensor:
    return F.conv2d(input=x, weight=own.next.weight)


def lowered_at_rest(own: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        weight = own.next.weight.to(LOW)
    return F.conv2d(x, weight)


def nothing(own: Any) -> None: ...


def changed_after_it_was_lowered(own: Any) -> None:
    own.early = own.next.weight.to(LOW)
    with torch.no_grad():
        own.next.weight.mul_(0.5)


def lowered_early_at_rest(own: Any) -> None:
    with torch.no_grad():
        own.early = own.next.weight.to(LOW)


def by_what_was_early(own: Any, x: Tensor) -> Tensor:
    return own.second(F.conv2d(x, own.early))


def check_near(ours: Tensor, plain: Tensor) -> None:
    """A pixel or two may lie so near to zero that rounding tells what relu lets through."""
    assert ours.shape == plain.shape and ours.dtype is plain.dtype
    assert float((ours - plain).float().norm()) <= 0.05 * float(plain.float().norm())


class Apart(Chain):
    """Something of what was added and rectified, which is not handed out itself, and a product of it."""

    def __init__(self, how: Callable[[Any, Tensor], Tensor], before: Callable[[Any], None] = nothing) -> None:
        super().__init__(added)
        self.how, self.before = how, before

    def forward(self, x: Tensor) -> Any:
        self.before(self)
        x = F.relu(self.norm(self.body(x)) + x)
        return self.how(self, x), x.mean((2, 3))


@pytest.mark.parametrize(
    ("how", "before"),
    [
        (by_keyword, nothing),
        (lambda own, x: own.second(F.conv2d(x, weight=own.next.weight)), nothing),
        (lambda own, x: own.second(F.conv2d(input=x, weight=own.next.weight)), nothing),
        (lambda own, x: F.avg_pool2d(input=x, kernel_size=2), nothing),
        (lambda own, x: torch.cat(tensors=[x]), nothing),
        (lowered_at_rest, nothing),
        (lambda own, x: own.second(lowered_at_rest(own, x)), nothing),
        (by_what_was_early, lowered_early_at_rest),
        (by_what_was_early, changed_after_it_was_lowered),
    ],
)
def test_products_as_they_may_be_written(how: Callable[[Any, Tensor], Tensor], before: Callable[[Any], None]) -> None:
    """Gradients that are none stay none, and a weight that was taken before it changed is the one that was taken."""
    found = []
    x = images(4, 128, 6, 6, dtype=LOW).detach()
    for backend in (None, Backend()):
        torch.manual_seed(0)
        net = Apart(how, before).to(memory_format=torch.channels_last)
        call = net if backend is None else torch.compile(net, backend=backend)
        with torch.autocast("cpu", LOW):
            outs = call(x)
        sum((one.float() * torch.linspace(-1, 1, one.numel()).view(one.shape)).sum() for one in outs).backward()
        found.append([*outs, net.next.weight, net.next.weight.grad, net.body.weight.grad, net.second.running_mean])
    for plain, ours in zip(*found, strict=True):
        assert (plain is None) == (ours is None)
        if plain is not None:
            check_near(ours, plain)


def test_what_nobody_trains_needs_no_gradients_for_a_product_of_it() -> None:
    net = Apart(lambda own, x: own.next(x)).to(memory_format=torch.channels_last)
    for part in (net.body, net.norm):
        part.requires_grad_(False)
    x = images(4, 128, 6, 6, dtype=LOW).detach()
    with torch.autocast("cpu", LOW):
        made, means = torch.compile(net, backend=Backend())(x)
    assert made.requires_grad and not means.requires_grad


def test_a_product_of_another_type() -> None:
    """In half precision, of what came in bf16 and stayed so."""
    norm, product = nn.BatchNorm2d(128), conv(128, 128, 1).to(memory_format=torch.channels_last)
    x, other = (images(4, 128, 6, 6, dtype=LOW) for _ in range(2))
    found = []
    for backend in ("eager", Backend()):
        call = torch.compile(lambda x, other: product(F.relu(norm(x) + other)), backend=backend)
        with torch.autocast("cpu", torch.float16):
            out = call(x, other)
        found.append([out, *torch.autograd.grad(out, [x, other, product.weight], torch.ones_like(out))])
    for plain, ours in zip(*found, strict=True):
        check_near(ours, plain)


@pytest.mark.parametrize("readers", [(0,), (1,), (0, 1), ()])
@pytest.mark.parametrize("is_normed", [True, False])
def test_what_comes_back_through_a_product(is_normed: bool, readers: tuple[int, ...]) -> None:
    x, other, weight = images(4, 128, 5, 5), images(4, 128, 5, 5), images(64, 128, 1, 1)
    affine = [torch.rand(128).double().requires_grad_() for _ in range(4 if is_normed else 2)]
    plain = F.batch_norm(x, None, None, *affine[:2], True, 0.3, 1e-5)
    plain = F.relu(plain + (F.batch_norm(other, None, None, *affine[2:], True, 0.1, 1e-3) if is_normed else other))
    norms = (None, None, *affine[:2], 0.3, 1e-5, *((None, None, *affine[2:], 0.1, 1e-3) if is_normed else ()))
    theirs, ours = (plain, F.conv2d(plain, weight)), joined_product(x, other, weight, *norms)
    given = [x, other, *affine, *([weight] if 1 in readers else [])]
    torch.testing.assert_close(ours[:2], theirs)
    if not readers:
        return
    back = [torch.randn_like(one) for one in theirs]
    made = [
        torch.autograd.grad([each[reader] for reader in readers], given, [back[reader] for reader in readers])
        for each in (theirs, ours)
    ]
    torch.testing.assert_close(made[1], made[0])


def gradless(own: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return own.next(x)


@pytest.mark.parametrize(
    "how",
    [
        gradless,
        lambda own, x: (x, own.next(x))[1],
        lambda own, x: F.conv2d(x, own.next.weight * 2),  # made later than what was added
        lambda own, x: own.next(x.detach()),
    ],
)
def test_products_in_their_place(how: Callable[[Any, Tensor], Tensor]) -> None:
    """Where gradients are off for the product, they are off; a weight is read when it is there."""

    class Net(Chain):
        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.norm(self.body(x)) + x)
            return how(self, x).float().mean() + x.float().square().mean()

    made: list[list[Any]] = []
    x = torch.randn(4, 128, 6, 6).to(memory_format=torch.channels_last)
    for is_changed in (False, True):
        torch.manual_seed(0)
        net = Net(added).to(memory_format=torch.channels_last)
        call = torch.compile(net, backend=Backend()) if is_changed else net
        with torch.autocast("cpu", LOW):
            call(x).backward()
        made.append([net.body.weight.grad, net.norm.weight.grad, net.next.weight.grad])
    for plain, ours in zip(*made, strict=True):
        assert (plain is None) == (ours is None)
        if plain is not None:
            torch.testing.assert_close(ours, plain, rtol=0.05, atol=0.02 * float(plain.abs().max()))


@pytest.mark.parametrize(("capability", "count"), [((9, 0), 3), ((8, 0), 3), ((8, 6), 0), ((7, 5), 0), ((12, 0), 0)])
def test_chips_with_too_little_memory_beside_their_processors(
    capability: tuple[int, int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Are left what torch does: a kernel that does not fit would cost them all of what is compiled."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(products_in_graphs, "value", lambda node: OnAGpu(value(node)))
    graph = check_as_near(Bottleneck, images(4, 64, 6, 6, dtype=torch.float32))
    assert sum(node.target is summed_convolution for node in graph.nodes) == count


class OnAGpu:
    """Says so of a tensor, and is else what it is."""

    device = torch.device("cuda")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)
