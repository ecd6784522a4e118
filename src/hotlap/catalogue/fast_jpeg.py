"""JPEG files decoded no larger than needed, by libjpeg-turbo."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from hotlap.technique import CannotHelp, Family, Needs, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run

_LEVELS = 3.0  # of 255, the mean over an image that was decoded smaller; 1.7 was the most that was seen


class FastJpeg(Technique):
    """Photos that are shrunk anyway are decoded at a half, a quarter or an eighth of their size.

    ## Why it is faster
    A JPEG is stored in blocks of 8 x 8 frequencies, and libjpeg can leave out the high ones: it then writes a quarter
    of the pixels or fewer, and the resize that follows has fewer to read. `scaled=true` keeps it undecoded through
    `convert("RGB")` and `crop`, and decodes it at `resize`, just large enough: so `Resize` and `RandomResizedCrop` get
    it without an edit. Everything but the pixels stays Pillow's: size, mode, EXIF, errors, files of any other kind.

    ## When it does not help
    Where an image is not shrunk to half or less in both directions, which a crop to 224 of a photo of 500 x 375 never
    is; steps between one half and the full size exist, and were slower than the full size. Where the loop does not wait
    for data. Without `scaled` images are decoded in full, as before but by libjpeg-turbo directly, which gains little,
    since Pillow's own wheels are built with it. `tune` tries only that, because it compares batches bit by bit; ask for
    the other with `--with fast-jpeg:scaled=true`.

    ## What changes numerically
    In full: nothing, bit for bit, with Pillow's own wheels. Scaled: on photo-like images shrunk by 2 to 8 the mean
    difference was 0.3 to 1.7 levels of 255, the largest 12; on coarse noise the mean was 3.7. The first 16 images are
    made both ways; where they are further apart than allowed, 0 in full and 3 in the mean when scaled, the script goes
    on with Pillow and says so.

    ## Claims
    "Pillow is slowest, OpenCV faster, TurboJPEG fastest" is the usual ranking. It is still true where an array is all
    that is wanted: `bench/decoding.py` on one core of a Xeon had OpenCV at 1.3 and simplejpeg at 1.4 times Pillow's
    rate. But Pillow decodes by libjpeg-turbo itself, and once the pixels lie in a Pillow image, which torchvision's
    transforms want, little of that is left: 1.08 and 1.13 times in two runs there, 0.94 to 1.03 in other orders of the
    same calls. Scaled, a photo of 500 x 375 cropped and resized to 128 x 128 took 0.63 of the time.
    """

    family = Family.WAIT
    needs = Needs(package="simplejpeg", install="hotlap[jpeg]")
    aliases = ("libjpeg-turbo", "turbojpeg", "simplejpeg", "nvjpeg", "draft", "pillow-simd", "faster decoding")
    suits = "CNN"
    traits = frozenset({"decoded in workers"})
    default: ClassVar[Setting] = {"scaled": False}

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT if run is None else Parity.IDENTICAL  # of what `settings` offers

    def seen(self, run: Run) -> bool | None:
        if any(one.what.startswith(self.id) for one in run.compared):
            return True
        return False if run.images_opened else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if not run.images_opened:
            return CannotHelp("no image file was opened through PIL")
        making = sum(one.seconds for one in run.feed.makings)
        decoding = sum(one.seconds for one in run.feed.makings if one.what == "decode")
        return [Try(self.default, run.share("wait") * (decoding / making if making else 1.0) * _saves())]

    def apply(self, patch: Patch, setting: Setting) -> None:
        if find_spec("simplejpeg") is None:
            raise ModuleNotFoundError("simplejpeg is not there: pip install hotlap[jpeg]")
        scaled = bool(setting.get("scaled", False))
        if scaled:
            judge = patch.compare("mean difference of images decoded smaller, in levels", limit=_LEVELS)
        else:
            judge = patch.compare("largest difference of decoded images, in levels", limit=0.0)

        def opened(proceed: Any, *args: Any, **kwargs: Any) -> Any:
            from hotlap.parts.fast_jpeg import open_jpeg

            if not args:
                return proceed(**kwargs)
            return open_jpeg(*args, original=proceed, scaled=scaled, judge=judge, **kwargs)

        patch.at(patch.joints.image_opened, opened, depth=2)  # within a cache: what is decoded is what it keeps


def _saves() -> float:
    """Of decoding in full, at most: as was seen where Pillow has libjpeg-turbo itself, a guess where it has not."""
    from PIL import features

    return 0.12 if features.check_feature("libjpeg_turbo") else 0.5
