"""The kernels that go over pixels for batch norm, run line by line by Triton's interpreter, alone and with all that is
around them, and compiled for a GPU, which needs none."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch.nn.functional import batch_norm

from hotlap.parts import joined_norm, summed_norm

MODULE, BESIDE = "hotlap.parts.pixel_kernels", ["hotlap.parts.norm_kernels"]
SIZES = [(77, 8), (1000, 64), (4096, 136), (20000, 16)]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def made(rows: int, channels: int, count: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(rows, channels) for _ in range(count)]


@pytest.mark.parametrize(("rows", "channels"), [(77, 5), *SIZES])
def test_normed_and_rectified(rows: int, channels: int, interpreted: ModuleType) -> None:
    (x,), (mean, scale, shift) = made(rows, channels, 1), torch.randn(3, channels)
    x[3, 2] = float("nan")
    right = ((x - mean) * scale + shift).relu()
    torch.testing.assert_close(interpreted.normed(x, mean, scale, shift), right, **CLOSE, equal_nan=True)


@pytest.mark.parametrize("is_normed", [True, False])
@pytest.mark.parametrize(("rows", "channels"), SIZES)
def test_with_something_added(rows: int, channels: int, is_normed: bool, interpreted: ModuleType) -> None:
    (x, added), affine, others = made(rows, channels, 2), torch.randn(3, channels), torch.randn(3, channels)
    x[3, 2] = float("nan")
    other = (added - others[0]) * others[1] + others[2] if is_normed else added
    right = ((x - affine[0]) * affine[1] + affine[2] + other).relu()
    out, marks = interpreted.joined_normed(x, *affine, added, *(others if is_normed else (None,) * 3))
    torch.testing.assert_close(out, right, **CLOSE, equal_nan=True)
    bits = (marks[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    assert torch.equal(bits.view(rows, channels).bool(), ~(out <= 0))


@pytest.mark.parametrize("is_rectified", [True, False])
@pytest.mark.parametrize(("rows", "channels"), [(77, 5), *SIZES])
def test_gradients_given_back(rows: int, channels: int, is_rectified: bool, interpreted: ModuleType) -> None:
    (grad, x), (mean, scale, shift, along, level) = made(rows, channels, 2), torch.randn(5, channels)
    passed = torch.where((x - mean) * scale + shift <= 0, 0.0, grad) if is_rectified else grad
    right = (passed - (x - mean) * along - level) * scale
    found = interpreted.given_back(grad, x, mean, scale, shift, along, level, is_rectified)
    torch.testing.assert_close(found, right, **CLOSE)


@pytest.mark.parametrize(("rows", "channels"), [(77, 5), *SIZES])
def test_gradients_given_back_to_two(rows: int, channels: int, interpreted: ModuleType) -> None:
    (grad, *pixels), affine, level = made(rows, channels, 3), torch.randn(2, 3, channels), torch.randn(channels)
    given = [one for x, by in zip(pixels, affine, strict=True) for one in (x, *by)]
    found = interpreted.both_given_back(grad, *given, level)
    for made_, x, (mean, scale, along) in zip(found, pixels, affine, strict=True):
        torch.testing.assert_close(made_, (grad - (x - mean) * along - level) * scale, **CLOSE)


@pytest.fixture
def by_kernels(interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For all that is around them, too; and which of them ran."""
    ran = []
    for module in (summed_norm, joined_norm):
        monkeypatch.setattr(module, "has_kernels", lambda x: True)
    for name in ("normed", "joined_normed", "given_back", "both_given_back"):
        own = getattr(interpreted, name)
        monkeypatch.setattr(interpreted, name, lambda *given, own=own, name=name: (ran.append(name), own(*given))[1])
    return ran


def gradients(outs: tuple[torch.Tensor, ...], given: list[torch.Tensor]) -> list[torch.Tensor]:
    """What comes back is a part of something larger, as it is before `cat`."""
    torch.manual_seed(1)
    channels = outs[0].shape[1]
    weights = [torch.randn(4, 2 * channels, 5, 7).contiguous(memory_format=torch.channels_last) for _ in outs]
    return [outs[0], *torch.autograd.grad(outs, given, [one[:, channels:] for one in weights])]


def images(is_last: bool, channels: int = 8) -> torch.Tensor:
    made = torch.randn(4, channels, 5, 7) * 3 + 20
    return (made.contiguous(memory_format=torch.channels_last) if is_last else made).requires_grad_()


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("is_affine", [True, False])
@pytest.mark.parametrize("is_rectified", [True, False])
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_norm_by_kernels(
    is_whole: bool, is_rectified: bool, is_affine: bool, is_last: bool, by_kernels: list[str]
) -> None:
    x, affine = images(is_last, 6), [torch.rand(6).requires_grad_() for _ in range(2)] if is_affine else [None, None]
    given = [one for one in (x, *affine) if one is not None]
    plain = batch_norm(x, None, None, *affine, training=True)
    how = {"is_rectified": is_rectified, "is_whole": is_whole}
    own = summed_norm.batch_norm(x, None, None, *affine, 0.1, 1e-5, **how)
    theirs = gradients((plain.relu() if is_rectified else plain,), given)
    torch.testing.assert_close(gradients((own,), given), theirs, rtol=1e-4, atol=1e-4)
    assert by_kernels == (["normed", "given_back"] if is_whole and is_rectified else [])


@pytest.mark.parametrize("channels", [8, 6])
@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("is_last", [True, False])
def test_a_norm_with_something_added_by_kernels(
    is_last: bool, readers: int, channels: int, by_kernels: list[str]
) -> None:
    """Where channels do not come in eights, there is none that marks them."""
    x, added = images(is_last, channels), images(is_last, channels)
    affine = [torch.rand(channels).requires_grad_() for _ in range(2)]
    plain = (batch_norm(x, None, None, *affine, training=True) + added - 20).relu()
    pair = joined_norm.joined_batch_norm(x, added - 20, None, None, *affine, 0.1, 1e-5)
    theirs = gradients((plain, plain.view_as(plain))[:readers], [x, added, *affine])
    torch.testing.assert_close(gradients(pair[:readers], [x, added, *affine]), theirs, rtol=1e-4, atol=1e-4)
    assert by_kernels == (["joined_normed", "given_back"] if channels == 8 else [])


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("is_affine", [True, False])
@pytest.mark.parametrize("channels", [8, 6])
def test_two_norms_that_are_added(channels: int, is_affine: bool, readers: int, by_kernels: list[str]) -> None:
    x, added = images(True, channels), images(True, channels)
    affine = [torch.rand(channels).requires_grad_() if is_affine else None for _ in range(4)]
    given = [x, added, *(one for one in affine if one is not None)]
    one, other = (
        batch_norm(pixels, None, None, *by, training=True) for pixels, by in ((x, affine[:2]), (added, affine[2:]))
    )
    plain = (one + other).relu()
    norms = [(None, None, *by, 0.1, eps) for by, eps in ((affine[:2], 1e-5), (affine[2:], 1e-5))]
    pair = joined_norm.joined_batch_norm(x, added, *norms[0], *norms[1])
    theirs, own = (gradients(outs[:readers], given) for outs in ((plain, plain.view_as(plain)), pair))
    torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-4)
    assert len({one.data_ptr() for one in own}) == len(own)  # the script may change each where it lies
    assert by_kernels == (["joined_normed", "both_given_back"] if channels == 8 else [])


@pytest.mark.parametrize("name", ["_normed", "_joined_normed", "_given_back", "_both_given_back"])
def test_they_compile_for_a_gpu(name: str, compiled_for_a_gpu: Callable[..., str]) -> None:
    """And read and write several channels at once, ahead of what is worked on."""
    types = dict.fromkeys(("x", "grad", "added", "other", "out", "one", "two"), "*bf16") | {"marks": "*u8"}
    constants = {"ROWS": 32, "CHANNELS": 64, "STAGES": 3, "IS_RECTIFIED": True, "IS_NORMED": True}
    code = compiled_for_a_gpu(MODULE, name, types, constants)
    assert "cp.async" in code and "ld.shared.v4" in code and "st.global.v4" in code
