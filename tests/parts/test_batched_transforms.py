"""Batched transforms against the script's own, with the same draws: every transform, whole pipelines, and
planted faults that the comparison must notice."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
import torch
from same_draw import MEAN, PHOTOS, SMALL, STD, VERSIONS, compared, picture, pil_to_tensor, pipelines, v1, v2

from hotlap.parts.axis_views import Frame
from hotlap.parts.batched_transforms import Pipeline, recognised
from hotlap.parts.colours import Jitter
from hotlap.parts.exact_products import in_halves
from hotlap.parts.finishing import Normalising
from hotlap.parts.packed_images import Images

BILINEAR, BICUBIC = v1.InterpolationMode.BILINEAR, v1.InterpolationMode.BICUBIC
NEAREST = v1.InterpolationMode.NEAREST


def exact(T: Any) -> dict[str, list[Any]]:
    """What is met to the last bit."""
    square = T.Resize((96, 96))
    return {
        "resized crop": [T.RandomResizedCrop(224)],
        "resized crop, bicubic": [T.RandomResizedCrop(224, interpolation=BICUBIC)],
        "resized crop, nearest": [T.RandomResizedCrop(225, interpolation=NEAREST)],
        "resize to a side": [T.Resize(256), T.CenterCrop(224)],
        "resize within a longest side": [T.Resize(60, max_size=80), T.CenterCrop(70)],
        "resize to a size": [T.Resize((100, 90), interpolation=BICUBIC)],
        "crop of what is too small": [T.Resize(30), T.CenterCrop((41, 40))],
        "crop": [T.RandomCrop(32), T.RandomVerticalFlip(), T.RandomHorizontalFlip()],
        "crop, padded": [T.RandomCrop(32, padding=(1, 2, 3, 4), fill=(9, 8, 7))],
        "crop, padded where needed": [T.RandomCrop(420, pad_if_needed=True, fill=7)],
        "crop, mirrored": [T.RandomCrop(32, padding=4, padding_mode="reflect")],
        "pad, edge": [T.Pad((3, 5), padding_mode="edge"), T.RandomCrop(36)],
        "pad, symmetric": [T.CenterCrop(33), T.Pad((3, 5, 7, 9), padding_mode="symmetric")],
        "pads of two colours": [T.Pad(8, fill=(1, 200, 30)), square, T.RandomCrop(64, padding=8, fill=9)],
        "pad, resize, pad": [T.Pad(8), square, T.Pad(3), T.Resize((50, 60)), T.RandomCrop(48)],
        "brightness": [square, T.ColorJitter(brightness=0.9)],
        "contrast, saturation": [square, T.ColorJitter(0.0, 0.9, (0.0, 3.0))],
        "hue": [square, T.ColorJitter(hue=0.5)],
        "jitter before the crop": [T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomResizedCrop(64)],
        "grey": [T.Grayscale(), square],
        "grey in three channels": [T.Grayscale(3), square],
        "sometimes grey": [square, T.RandomGrayscale(0.5)],
        "rotation": [square, T.RandomRotation(30)],
        "rotation, bilinear": [T.RandomRotation(30, interpolation=BILINEAR, fill=50), square],
        "rotation about a point": [square, T.RandomRotation((10, 80), center=(10, 20), fill=(1, 2, 3))],
        "quarter turn": [T.RandomRotation((90, 90)), square],
        "affine": [T.RandomAffine(20, (0.1, 0.2), (0.8, 1.3), (-10, 10, -5, 5)), square],
        "affine, bilinear": [square, T.RandomAffine(20, (0.1, 0.2), (0.8, 1.3), 10, interpolation=BILINEAR)],
        "quarter turn, bilinear": [T.Resize((32, 32)), T.RandomAffine((90, 90), interpolation=BILINEAR)],
        "shift and scale": [square, T.RandomAffine(0, (0.1, 0.2), (0.8, 1.3), fill=9)],
        "sometimes": [square, T.RandomApply([T.RandomRotation(20), T.ColorJitter(0.3)], p=0.6)],
        "sometimes resized": [T.RandomApply([T.Resize(64)]), T.RandomCrop(30)],
        "one of": [square, T.RandomChoice([T.RandomVerticalFlip(1.0), T.RandomRotation(20), T.Grayscale(3)])],
        "one of, weighted": [T.RandomChoice([T.Resize((50, 50)), T.CenterCrop(50)], p=[0.2, 0.8])],
    }


def ended(T: Any, transforms: list[Any]) -> Any:
    return T.Compose([*transforms, T.PILToTensor()])


@pytest.mark.parametrize("kind", exact(v2))
@pytest.mark.parametrize("version", VERSIONS)
def test_the_same_draw_gives_the_same_levels(version: str, kind: str) -> None:
    transform = ended(VERSIONS[version], exact(VERSIONS[version])[kind])
    found = compared(transform, sizes=SMALL if version == "v1" else PHOTOS, seed=1)
    assert found.same_states, "generators moved otherwise"
    assert found.largest == 0, f"largest {found.largest}, mean {found.mean}"
    assert found.pipeline.head is None and found.deviations <= found.pipeline.tolerance


@pytest.mark.parametrize("kind", ["resized crop", "brightness", "contrast, saturation", "hue", "rotation", "grey"])
def test_pictures_of_one_channel(kind: str) -> None:
    found = compared(ended(v2, exact(v2)[kind]), mode="L")
    assert found.same_states and found.largest == 0


def floats(T: Any) -> dict[str, list[Any]]:
    square = T.Resize((96, 96))
    return {
        "blur": [square, T.GaussianBlur(23)],
        "blur before the crop": [T.GaussianBlur((5, 9), (0.1, 5.0)), T.RandomCrop(30)],
        "erased": [square, T.ToTensor(), T.RandomErasing(0.9, value=0.5)],
        "erased in colour": [square, T.ToTensor(), T.RandomErasing(1.0, value=(0.1, 0.2, 0.3))],
        "late flips and crops": [square, T.ToTensor(), T.RandomHorizontalFlip(), T.RandomCrop(96, padding=9)],
        "two blurs": [square, T.GaussianBlur(5), T.GaussianBlur(3)],
        "late resize": [square, T.ToTensor(), T.Resize(50), T.GaussianBlur(5)],
    }


@pytest.mark.parametrize("kind", floats(v2))
@pytest.mark.parametrize("version", VERSIONS)
def test_floats_and_blurs_are_met_within_the_tolerance(version: str, kind: str) -> None:
    T = VERSIONS[version]
    steps = floats(T)[kind]
    steps += [] if any(type(step).__name__ == "ToTensor" for step in steps) else [T.ToTensor()]
    found = compared(T.Compose(steps))
    assert found.same_states and found.largest <= 1.001 and found.mean <= 0.001
    assert found.deviations <= found.pipeline.tolerance


@pytest.mark.parametrize("name", pipelines(v2))
@pytest.mark.parametrize("version", VERSIONS)
def test_whole_pipelines(version: str, name: str) -> None:
    transform = pipelines(VERSIONS[version])[name]
    sizes = [(32, 32)] * 6 if name == "CIFAR" else PHOTOS
    found = compared(transform, sizes=sizes, seed=11)
    assert found.same_states and found.pipeline.head is None
    assert found.deviations <= found.pipeline.tolerance < 0.002
    if name != "SimCLR":  # where blurs may fall right between two levels
        assert torch.equal(found.made, found.wanted)


REFUSED = {
    "too small to be mirrored": ([v1.GaussianBlur(9), v1.CenterCrop(3), v1.ToTensor()], [(4, 40)], "RGB"),
    "more means than colours": ([v1.CenterCrop(9), v1.ToTensor(), v1.Normalize(MEAN, STD)], SMALL, "L"),
    "more values than colours": ([v1.CenterCrop(9), v1.ToTensor(), v1.RandomErasing(1.0, value=MEAN)], SMALL, "L"),
    "too small to be cropped": ([v1.RandomCrop(50), v1.ToTensor()], SMALL, "RGB"),
}


@pytest.mark.parametrize(("steps", "sizes", "mode"), REFUSED.values(), ids=REFUSED)
def test_what_torchvision_refuses_is_refused(steps: list[Any], sizes: Any, mode: str) -> None:
    transform = v1.Compose(steps)
    pictures = [picture(*size, mode=mode) for size in sizes]
    pipeline = recognised(transform)
    assert isinstance(pipeline, Pipeline) and pipeline.head is None
    with pytest.raises((ValueError, RuntimeError)):
        [transform(one) for one in pictures]
    with pytest.raises(ValueError, match=r"colours|small|size"):
        pipeline.run([pil_to_tensor(one) for one in pictures], [pipeline.draw(*one.size) for one in pictures], "cpu")


def test_grey_pictures_with_three_means_are_widened_where_torchvision_does() -> None:
    steps = [v2.CenterCrop(9), v2.ToTensor(), v2.Normalize(MEAN, STD)]
    found = compared(v2.Compose(steps), sizes=SMALL, mode="L")
    assert torch.equal(found.made, found.wanted) and found.made.shape[1] == 3


@pytest.mark.parametrize("seed", range(6))
def test_cut_out_of_large_pictures_and_padded_around_small_ones(seed: int) -> None:
    """In one stack, in which the largest is the one with the fewest pixels of its own."""
    steps = [v1.RandomChoice([v1.CenterCrop(30), v1.CenterCrop(61)]), v1.ColorJitter(0.3), v1.Resize((25, 25))]
    found = compared(ended(v1, steps), sizes=[(36, 36), (6, 11), (7, 9), (6, 11)], seed=seed)
    assert found.same_states and found.largest == 0


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_grey_pictures_of_which_some_get_three_channels(p: float) -> None:
    transform = v1.Compose([v1.RandomApply([v1.Grayscale(3)], p=p), v1.CenterCrop(9), v1.PILToTensor()])
    if p == 0.5:
        with pytest.raises(RuntimeError, match="equal size"):
            compared(transform, sizes=SMALL, mode="L", seed=0)
        with pytest.raises(ValueError, match="some of the images"):
            recognised(transform).run([torch.zeros(1, 9, 9).byte()] * 9, drawn_nine(transform), "cpu")
    else:
        found = compared(transform, sizes=SMALL, mode="L")
        assert found.same_states and found.largest == 0


def drawn_nine(transform: Any) -> list[Any]:
    torch.manual_seed(0)
    return [recognised(transform).draw(9, 9) for _ in range(9)]


def test_the_digits() -> None:
    found = compared(v1.Compose([v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,))]), sizes=[(28, 28)] * 9, mode="L")
    assert torch.equal(found.made, found.wanted)


def test_a_pipeline_for_tensors() -> None:
    """There torchvision is itself a level off from Pillow."""
    steps = [v2.ToImage(), v2.RandomResizedCrop(64, antialias=True), v2.RandomHorizontalFlip()]
    found = compared(v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True)]))
    assert found.same_states and found.pipeline.expects == "picture"
    assert found.largest <= 1.001 and found.mean <= 0.25


def test_what_is_not_known_stays_in_the_head_with_all_before_it() -> None:
    steps = [v2.Resize((50, 60)), v2.TrivialAugmentWide(), v2.RandomHorizontalFlip(), v2.ToTensor()]
    found = compared(v2.Compose(steps))
    assert found.pipeline.head is not None and found.pipeline.head.transforms == steps[:2]
    assert found.same_states and torch.equal(found.made, found.wanted)


class Mine(v1.RandomHorizontalFlip):
    pass


def hooked() -> Any:
    transform = v1.RandomHorizontalFlip()
    transform.register_forward_hook(lambda *_: None)
    return transform


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([v1.ToTensor(), v1.Lambda(lambda x: x)], "Lambda has no batched form."),
        ([v1.ToTensor(), Mine()], "Mine is not a transform of torchvision's."),
        ([v1.ToTensor(), hooked()], "RandomHorizontalFlip is not a transform of torchvision's."),
        ([v1.ToTensor(), v1.ColorJitter(0.4)], "ColorJitter changes colours of floats, not of levels."),
        (
            [v1.ToTensor(), v1.RandomErasing(value="random")],
            "RandomErasing fills with noise that is drawn pixel by pixel.",
        ),
        (
            [v1.ToTensor(), v1.RandomApply([v1.Normalize([0.5], [0.5])])],
            "RandomApply converts only some of the images.",
        ),
        (
            [v1.PILToTensor(), v1.ConvertImageDtype(torch.float16)],
            "ConvertImageDtype is known as a scaling to float32 or float64.",
        ),
        ([v1.Resize(8)], "The pipeline ends with a PIL image, which does not stack."),
        ([], "There is no transform."),
    ],
)
def test_why_a_pipeline_is_left_alone(steps: list[Any], why: str) -> None:
    found = recognised(v1.Compose(steps))
    assert isinstance(found, str) and found.startswith(why)


@pytest.mark.parametrize("step", [Mine(), hooked(), v1.RandomOrder([v1.CenterCrop(3)]), lambda image: image])
def test_only_the_tail_behind_it_is_taken(step: Any) -> None:
    found = recognised(v1.Compose([v1.CenterCrop(30), step, v1.ToTensor()]))
    assert isinstance(found, Pipeline) and found.head is not None and found.head.transforms[1] is step


def test_what_only_some_images_would_go_through_is_left_alone() -> None:
    steps = [v1.RandomApply([v1.Grayscale()], p=1.0), v1.ToTensor()]
    found = recognised(v1.Compose(steps))
    assert isinstance(found, Pipeline) and found.head is not None and found.head.transforms == steps[:1]


def test_the_wrappers_of_a_pipeline() -> None:
    from torchvision.datasets.vision import StandardTransform

    steps = torch.nn.Sequential(v1.RandomCrop(30), torch.nn.Sequential(v1.RandomHorizontalFlip(), torch.nn.Identity()))
    plain = v1.Compose([v1.Compose([steps]), v1.ToTensor()])
    for wrapped in (plain, StandardTransform(plain, None)):
        found = compared(plain, pipeline=recognised(wrapped))
        assert found.same_states and torch.equal(found.made, found.wanted)


def test_recognising_draws_nothing() -> None:
    transform = pipelines(v1)["SimCLR"]
    torch.manual_seed(3)
    before, plain = torch.get_rng_state(), random.getstate()
    assert isinstance(recognised(transform), Pipeline)
    assert torch.equal(before, torch.get_rng_state()) and plain == random.getstate()


def test_pipelines_and_recipes_travel_to_workers() -> None:
    transform = pipelines(v2)["SimCLR"]
    sent = pickle.loads(pickle.dumps(recognised(transform)))
    found = compared(transform, pipeline=sent)
    assert found.same_states and found.deviations <= sent.tolerance
    recipe = sent.draw(500, 375)
    assert pickle.loads(pickle.dumps(recipe)) == recipe and len(pickle.dumps(recipe)) < 1000


def test_a_buffer_of_images_is_as_good_as_a_list() -> None:
    transform = pipelines(v1)["ImageNet, training"]
    pipeline = recognised(transform)
    assert isinstance(pipeline, Pipeline)
    images = [torch.randint(0, 256, (3, height, width), dtype=torch.uint8) for height, width in ((50, 70), (90, 40))]
    recipes = [pipeline.draw(image.shape[2], image.shape[1]) for image in images]
    buffer = torch.cat([image.flatten() for image in images])
    packed = Images.in_buffer(buffer, [(50, 70), (90, 40)], 3)
    assert torch.equal(pipeline.run(packed, recipes, "cpu"), pipeline.run(images, recipes, "cpu"))


def test_small_parts_give_the_same_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotlap.parts import packed_images, resampling

    transform = pipelines(v1)["SimCLR"]
    whole = compared(transform).made
    for module in (packed_images, resampling):
        monkeypatch.setattr(module, "MOST_ELEMENTS", 200_000)
    assert torch.equal(compared(transform).made, whole)


@pytest.mark.parametrize("kind", ["resized crop", "resized crop, bicubic", "resize to a side", "pad, resize, pad"])
def test_the_way_of_a_device_played_on_the_cpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights that were half precision once."""
    for module in ("exact_products", "resampling"):
        monkeypatch.setattr(f"hotlap.parts.{module}.half_type", lambda device: torch.float32)
    monkeypatch.setattr("hotlap.parts.resampling.in_halves", lambda weights: in_halves(weights).half())
    assert compared(ended(v2, exact(v2)[kind]), sizes=(*PHOTOS, (9, 7))).largest == 0


def test_products_that_a_script_lets_be_rounded() -> None:
    """On the CPU that means bfloat16 where it has it; the split must at least change nothing."""
    transform = v1.Compose([v1.Resize((64, 64)), v1.ToTensor(), v1.Resize(32), v1.GaussianBlur(5)])
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        found = compared(transform, sizes=[(70, 80)] * 3)
    finally:
        torch.set_float32_matmul_precision(before)
    assert found.largest < 0.01


@pytest.mark.parametrize("image", [torch.zeros(3, 4, 4), torch.zeros(4, 4, 4).byte(), torch.zeros(4, 4).byte()])
def test_images_that_are_none(image: torch.Tensor) -> None:
    pipeline = recognised(v1.ToTensor())
    assert isinstance(pipeline, Pipeline)
    with pytest.raises(ValueError, match="uint8"):
        pipeline.run([image], [pipeline.draw(4, 4)], "cpu")


def test_images_that_do_not_stack() -> None:
    pipeline = recognised(v1.ToTensor())
    assert isinstance(pipeline, Pipeline)
    images = [torch.zeros(3, 4, side, dtype=torch.uint8) for side in (4, 5)]
    with pytest.raises(ValueError, match="do not stack"):
        pipeline.run(images, [pipeline.draw(4, 4), pipeline.draw(5, 4)], "cpu")


def crop_off_by_one(patch: pytest.MonkeyPatch) -> None:
    crop = Frame.crop
    patch.setattr(Frame, "crop", lambda self, top, left, *size: crop(self, top, max(0, left - 1), *size))


def flip_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Frame, "flip", lambda self, **_: None)


def mean_wrong(patch: pytest.MonkeyPatch) -> None:
    run = Normalising.run
    patch.setattr(Normalising, "run", lambda self, *given: run(Normalising((0.5, *self.mean[1:]), self.std), *given))


def order_of_colours_lost(patch: pytest.MonkeyPatch) -> None:
    numbers = Jitter.numbers
    patch.setattr(Jitter, "numbers", staticmethod(lambda order, factors: numbers(sorted(order), factors)))


def filter_too_wide(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("hotlap.parts.filter_taps.weigh", lambda name, distance: (1.1 - distance.abs()).clamp(min=0))


FAULTS = [crop_off_by_one, flip_lost, mean_wrong, order_of_colours_lost, filter_too_wide]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [v1.RandomResizedCrop(64), v1.RandomHorizontalFlip(), v1.ColorJitter(0.8, 0.8, 0.8), v1.ToTensor()]
    transform = v1.Compose([*steps, v1.Normalize(MEAN, STD)])
    assert compared(transform).deviations <= recognised(transform).tolerance
    fault(monkeypatch)
    found = compared(transform)
    assert found.deviations > 3 * found.pipeline.tolerance


def test_a_draw_too_many_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = v1.Compose([v1.RandomCrop(30), v1.ToTensor()])
    assert compared(transform).same_states
    flip = Frame.crop
    monkeypatch.setattr(Frame, "crop", lambda self, *place: (torch.rand(1), flip(self, *place))[1])
    assert not compared(transform).same_states
