"""Networks for images that begin with what is made at once: the same comes out, or it stays as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_images_in_graphs import LOW, ON_A_CPU, Backend, images
from torch import Tensor, nn

from hotlap.parts import image_start as module
from hotlap.parts.image_start import image_start
from hotlap.parts.images_in_graphs import lean_images
from hotlap.parts.summed_norm import batch_norm

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

STARTS = [
    ((7, 2, 3), (3, 2, 1), 33, 40),
    ((3, 2, 1), (3, 1, 1), 17, 20),
    ((4, 4, 0), (3, 2, 0), 32, 32),
    ((5, 3, 2), (5, 3, 2), 40, 44),
]


@pytest.mark.parametrize("readers", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("has_affine", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("convolution", "window", "high", "wide"), STARTS)
def test_it_is_what_torch_makes(
    convolution: tuple[int, int, int], window: tuple[int, int, int], high: int, wide: int,
    has_bias: bool, has_affine: bool, readers: tuple[int, ...],
) -> None:  # fmt: skip
    side, stride, padding = convolution
    x, weight = images(3, 3, high, wide).detach(), images(8, 3, side, side)
    bias = torch.randn(8).double().requires_grad_() if has_bias else None
    affine = [torch.randn(8).double().requires_grad_() if has_affine else None for _ in range(2)]
    theirs = [torch.zeros(8).double(), torch.ones(8).double()]
    ours = [one.clone() for one in theirs]
    y = F.conv2d(x, weight, bias, stride, padding)
    plain = F.max_pool2d(F.relu(F.batch_norm(y, *theirs, *affine, True, 0.3, 1e-5)), *window)
    norm, is_read_twice = (*ours, *affine, 0.3, 1e-5), 1 in readers
    outs = image_start((x, weight, bias, stride, padding), norm, window, is_read_twice)
    assert len(outs) == 1 + is_read_twice and outs[0].is_contiguous(memory_format=torch.channels_last)
    for one in outs:
        torch.testing.assert_close(one, plain)
    torch.testing.assert_close(ours, theirs)
    given = [one for one in (weight, bias, *affine) if one is not None]
    weights = [torch.randn_like(plain) for _ in readers]
    right = torch.autograd.grad(plain, given, sum(weights, torch.zeros_like(plain)))
    total = sum(((outs[reader] * one).sum() for reader, one in zip(readers, weights, strict=True)), weight.sum() * 0)
    own = torch.autograd.grad(total, given, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(own, right)


def test_where_nobody_goes_back_nothing_is_made() -> None:
    weight = images(8, 3, 3, 3)
    norm = (None, None, None, None, 0.1, 1e-5)
    out, twin = image_start((images(2, 3, 16, 16).detach(), weight, None, 2, 1), norm, (3, 2, 1), True)
    (found,) = torch.autograd.grad(out.detach().sum() + weight.sum() * 0 + 0 * twin.detach().sum(), weight)
    assert not found.any()


def test_gradients_of_gradients_are_refused() -> None:
    weight = images(8, 3, 3, 3)
    norm = (None, None, None, None, 0.1, 1e-5)
    (out,) = image_start((images(2, 3, 16, 16).detach(), weight, None, 2, 1), norm, (3, 2, 1))
    (grad,) = torch.autograd.grad(out.square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.square().sum().backward()


class Start(nn.Module):
    """As ResNets have it, with what may be otherwise."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.stem = options.get("stem") or nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=options.get("bias", False))
        self.norm = options.get("norm") or nn.BatchNorm2d(8)
        self.pool = options.get("pool") or nn.MaxPool2d(3, stride=2, padding=1)
        self.act = options.get("act") or nn.ReLU(inplace=True)
        self.body = nn.Conv2d(8, 8, 3, padding=1)
        self.reads = options.get("reads") or (lambda net, x: net.body(x) + x)

    def forward(self, x: Tensor) -> Tensor:
        return self.reads(self, self.pool(self.act(self.norm(self.stem(x)))))


class Starts:
    """Counts them in a graph that then still runs."""

    def __init__(self) -> None:
        self.found: list[bool] = []  # of each: whether it is read twice
        self.norms = 0

    def __call__(self, graph: Any) -> int:
        count = ON_A_CPU(graph)
        graph.graph.lint()
        nodes = list(graph.graph.nodes)
        self.found += [node.args[3] for node in nodes if node.target is image_start]
        self.norms += sum(node.target is batch_norm for node in nodes)
        return count


def photos(batch: int = 8, size: int = 32) -> Tensor:
    return torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)


def trained(net: nn.Module, call: Callable[..., Any], x: Tensor, dtype: torch.dtype = LOW) -> list[Tensor]:
    net.zero_grad()
    with torch.autocast("cpu", LOW, enabled=dtype is LOW):
        out = call(x)
    out.double().square().mean().backward()
    found = {name: one.grad for name, one in net.named_parameters() if name != "stem.bias" and one.grad is not None}
    return [out.detach(), *found.values(), *(one for one in net.buffers() if one.is_floating_point())]


def starts(net: nn.Module, x: Tensor, is_wanted: bool = False, is_compiler: bool = False) -> list[bool]:
    """Whether one was found, after it has been trained as near to the truth as without."""
    finder, (exact, plain, ours) = Starts(), (copy.deepcopy(net).to(memory_format=torch.channels_last) for _ in "123")
    call = torch.compile(ours, backend=Backend(finder, is_compiler), dynamic=False)
    mine = [x.detach().clone().requires_grad_(is_wanted) for _ in "123"]
    right = trained(exact.double(), exact, mine[0].double(), torch.float64)
    theirs, own = trained(plain, plain, mine[1]), trained(ours, call, mine[2])
    if is_wanted:
        for found, one in zip((right, theirs, own), mine, strict=True):
            found.append(one.grad)
    for truth, one, other in zip(right, theirs, own, strict=True):
        apart = [float((each.double() - truth).norm()) for each in (one, other)]
        assert apart[1] <= 1.5 * apart[0] + 1e-3 * float(truth.norm()) + 1e-6
    return finder.found


@pytest.mark.parametrize("is_compiler", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_network_that_begins_so(bias: bool, is_compiler: bool) -> None:
    assert starts(Start(bias=bias), photos(), is_compiler=is_compiler) == [True]


def shortened(net: Start, x: Tensor) -> Tensor:
    return net.body(x)


def hooked(net: Start, x: Tensor) -> Tensor:
    seen = net.body(x)
    x.register_hook(lambda grad: grad * 3)
    return seen + x


def negated(net: Start, x: Tensor) -> Tensor:
    x.permute(0, 2, 3, 1).neg_()
    return net.body(x) + x


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"reads": shortened}, [False]),
        ({"reads": lambda net, x: net.body(x) * x.float().mean() + x}, [True]),  # three times
        ({"reads": lambda net, x: x}, [False]),
        ({"reads": lambda net, x: net.body(x.mul_(2)) + x}, [False]),  # torch would refuse to change one of two
        ({"reads": negated}, [False]),
        ({"reads": hooked}, [False]),  # by who sees all of its gradient
        ({"act": torch.relu}, [True]),
        ({"norm": nn.BatchNorm2d(8, affine=False)}, [True]),
        ({"norm": nn.BatchNorm2d(8, track_running_stats=False)}, [True]),
        ({"norm": nn.BatchNorm2d(8, momentum=None)}, []),
        ({"norm": nn.BatchNorm2d(8).eval()}, []),
        ({"norm": nn.Identity()}, []),
        ({"norm": nn.InstanceNorm2d(8)}, []),
        ({"act": nn.Identity()}, []),
        ({"act": nn.GELU()}, []),
        ({"act": nn.ReLU6()}, []),
        ({"pool": nn.MaxPool2d(3, 1, 1)}, [True]),
        ({"pool": nn.MaxPool2d(5, 2, 2)}, [True]),
        ({"pool": nn.MaxPool2d(2)}, []),
        ({"pool": nn.MaxPool2d(7, 2, 3)}, []),
        ({"pool": nn.MaxPool2d(3, 2, 1, dilation=2)}, []),
        ({"pool": nn.MaxPool2d(3, 2, 1, ceil_mode=True)}, []),
        ({"pool": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[0]}, []),
        ({"pool": lambda x: F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1)}, []),
        ({"pool": nn.AvgPool2d(3, 2, 1)}, []),
        ({"stem": nn.Conv2d(3, 8, 3, 1, 1)}, []),
        ({"stem": nn.Conv2d(3, 8, 7, 2, 3, dilation=2)}, []),
        ({"stem": nn.Conv2d(3, 8, 7, (2, 1), 3)}, []),
        ({"stem": nn.Conv2d(3, 8, 3, 2, 1)}, [True]),
        ({"stem": nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 2, 1))}, []),
    ],
)
def test_starts_that_are_meant(options: dict[str, Any], found: list[bool]) -> None:
    assert starts(Start(**options), photos()) == found


def test_images_that_need_gradients() -> None:
    assert starts(Start(), photos(), is_wanted=True) == []


def other_readers(kind: str) -> Callable[[Start, Tensor], Tensor]:
    def forward(net: Start, x: Tensor) -> Tensor:
        y = net.stem(x)
        normed = net.norm(y)
        level = torch.relu(normed)
        out = net.pool(level)
        seen = {"convolution": y, "norm": normed, "relu": level}[kind]
        return net.body(out) + seen.float().mean()

    return forward


@pytest.mark.parametrize("kind", ["convolution", "norm", "relu"])
def test_others_that_read_what_lies_between(kind: str) -> None:
    class Read(Start):
        forward = other_readers(kind)

    assert starts(Read(), photos()) == []


class Changed(Start):
    """What goes in is written to before the norm has seen what came out."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1 if x.dtype is torch.float64 else x.to(LOW)
        y = self.stem(x)
        x.zero_()
        return self.body(self.pool(torch.relu(self.norm(y)))) + x.mean()


class Shut(Start):
    """Its convolution is made without gradients, as a part that is not trained."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.stem(x)
        return self.body(self.pool(torch.relu(self.norm(y))))


def test_convolutions_that_are_made_without_gradients() -> None:
    assert starts(Shut(), photos()) == []


def test_what_is_handed_out_is_given_out_once() -> None:
    """Whoever changes it then meets what torch has kept."""
    finder, net = Starts(), Start(reads=lambda net, x: (net.body(x).float().mean(), x))
    call = torch.compile(net.to(memory_format=torch.channels_last), backend=Backend(finder), dynamic=False)
    with torch.autocast("cpu", LOW):
        loss, out = call(photos())
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert finder.found == [False]


def test_images_that_are_changed_meanwhile() -> None:
    net = Changed()
    net.stem.requires_grad_(False)  # else torch would not go back either
    assert starts(net, photos()) == []


class Twice(Start):
    """One norm sees other pixels first: its statistics are moved on in that order."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        normed = self.norm(y)
        later = self.norm(self.body(self.body(y) * 3 + 1))
        return self.pool(torch.relu(normed)).float().mean() + later.float().mean()


class TwiceAlone(Start):
    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(self.stem(x))
        later = self.norm(self.body(self.stem(x * 3 + 1)))
        return self.pool(torch.relu(normed)).float().mean() + later.float().mean()


@pytest.mark.parametrize(("kind", "count"), [(Twice, 0), (TwiceAlone, 1)])
def test_statistics_are_moved_on_in_order(kind: type[Start], count: int) -> None:
    assert len(starts(kind(norm=nn.BatchNorm2d(8, momentum=0.7)), photos())) == count


def test_without_gradients_it_stays() -> None:
    finder, net, x = Starts(), Start().to(memory_format=torch.channels_last), photos()
    call = torch.compile(net, backend=Backend(finder), dynamic=False)
    with torch.no_grad(), torch.autocast("cpu", LOW):
        call(x)
    assert finder.found == []


def test_weights_that_are_frozen() -> None:
    net = Start()
    net.stem.requires_grad_(False)
    assert starts(net, photos()) == [True]


def test_batches_of_several_sizes() -> None:
    """Once dynamo has seen that they change, the number of images is a symbol, and the start stays in parts."""
    finder, (plain, ours) = Starts(), (Start().to(memory_format=torch.channels_last) for _ in "12")
    ours.load_state_dict(plain.state_dict())
    call = torch.compile(ours, backend=Backend(finder, is_compiler=True))
    for size in (4, 3, 6, 5):
        x = photos(size)
        theirs, own = trained(plain, plain, x), trained(ours, call, x)
        for one, other in zip(theirs, own, strict=True):
            assert float((one - other).norm()) <= 0.05 * float(one.norm()) + 1e-3
    assert finder.found == [True] and finder.norms == 1


def test_other_devices_are_left_alone() -> None:
    graphs: list[Any] = []
    backend = Backend(lambda graph: (graphs.append(graph), lean_images(graph))[1])
    with torch.autocast("cpu", LOW):
        torch.compile(Start().to(memory_format=torch.channels_last), backend=backend)(photos())
    assert backend.counts == [0] and not any(node.target is image_start for node in graphs[0].graph.nodes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_is_as_near_to_the_truth(dtype: torch.dtype) -> None:
    """As torch's own, of the same pixels: only rounding tells them apart."""
    x, weight, affine = (
        images(4, 3, 40, 40).detach(),
        images(8, 3, 7, 7).detach() * 0.1,
        torch.rand(2, 8).double() + 0.5,
    )
    grad = torch.randn(4, 8, 10, 10)

    def gradients(kind: torch.dtype, is_ours: bool = False) -> list[Tensor]:
        low = [one.to(dtype).to(kind).contiguous(memory_format=torch.channels_last) for one in (x, weight)]
        high = affine.float().to(torch.promote_types(kind, torch.float32))
        mine = [one.detach().clone().requires_grad_() for one in (low[1], *high)]
        norm = (None, None, mine[1], mine[2], 0.1, 1e-5)
        if is_ours:
            (out,) = image_start((low[0], mine[0], None, 2, 3), norm, (3, 2, 1))
        else:
            y = module.conv2d(*module.blocked(low[0], mine[0], 2, 3))
            out = F.max_pool2d(F.relu(F.batch_norm(y, *norm[:4], True)), 3, 2, 1)
        return [out.detach(), *torch.autograd.grad(out, mine, grad.to(dtype).to(kind))]

    for right, theirs, own in zip(gradients(torch.float64), gradients(dtype), gradients(dtype, True), strict=True):
        apart = [float((one.double() - right).norm()) for one in (theirs, own)]
        assert own.dtype is theirs.dtype and apart[1] <= 1.1 * apart[0] + 1e-3 * float(right.norm())
