"""How fast JPEG files are decoded: Pillow, OpenCV, simplejpeg, torchvision.io and nvJPEG in one table, from one run.

    python bench/decoding.py            # needs Pillow and torch; what else is missing is listed as missing

Photo-like files of 500 x 375 at quality 90, colours halved both ways, made here. On the processor every decoder gets
the same file on one core, in an order that changes from file to file, and a turn is all files once; on the device they
go in batches. Beside images a second stands how far the pixels are from Pillow's, in levels of 255. Scaled means to
half the size; "to 128" is decoding, cropping to 480 x 360 and resizing to 128 x 128, as RandomResizedCrop does. Writes
bench/results/decoding-MACHINE.json."""

from __future__ import annotations

import io
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from overhead import name_of
from PIL import Image, features

from hotlap.measure.tune import facts
from hotlap.observe.launch import Target

FILES, TURNS, WIDTH, HEIGHT = 64, 15, 500, 375
BATCHES = (64, 256)
PACKAGES = ("pillow", "opencv-python-headless", "simplejpeg", "torchvision", "torch")
Decoder = Callable[[bytes], Any]


def photo(rng: np.random.Generator) -> bytes:
    """Blobs of many sizes, larger ones stronger, and some grain: as large a file as a photo of this size."""
    pixels = np.zeros((HEIGHT, WIDTH, 3))
    for cell in (2, 4, 8, 16, 32, 64):
        noise = rng.normal(size=(3, HEIGHT // cell + 2, WIDTH // cell + 2)).astype(np.float32)
        layers = [Image.fromarray(one).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC) for one in noise]
        pixels += cell**0.8 * np.stack([np.asarray(layer) for layer in layers], axis=-1)
    pixels = 120 + 50 * (pixels - pixels.mean()) / pixels.std() + 8 * rng.normal(size=(HEIGHT, WIDTH, 1))
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90, subsampling=2)
    return file.getvalue()


def pillow(file: bytes) -> Any:
    image = Image.open(io.BytesIO(file))
    image.load()
    return image


def pillow_half(file: bytes) -> Any:
    image = Image.open(io.BytesIO(file))
    image.draft("RGB", (WIDTH // 2, HEIGHT // 2))
    image.load()
    return image


def to_128(image: Any) -> Any:
    return image.convert("RGB").crop((10, 10, 490, 370)).resize((128, 128), Image.Resampling.BILINEAR)


def decoders() -> tuple[dict[str, Decoder], dict[str, str]]:
    """By name, each on one core; and those that are missing, with the reason. Arrays unless said otherwise."""
    found: dict[str, Decoder] = {"Pillow": pillow, "Pillow, scaled": pillow_half}
    found["Pillow, to 128"] = lambda file: to_128(Image.open(io.BytesIO(file)))
    missing = {}
    for add in (with_opencv, with_simplejpeg, with_torchvision):
        try:
            found |= add()
        except Exception as error:  # not installed, or not for this machine
            missing[add.__name__.removeprefix("with_")] = f"{type(error).__name__}: {error}".split("\n")[0]
    return found, missing


def with_opencv() -> dict[str, Decoder]:
    cv2 = import_module("cv2")
    cv2.setNumThreads(1)
    colour, half = cv2.IMREAD_COLOR, cv2.IMREAD_REDUCED_COLOR_2
    return {
        "OpenCV": lambda file: cv2.imdecode(np.frombuffer(file, np.uint8), colour)[..., ::-1],
        "OpenCV, scaled": lambda file: cv2.imdecode(np.frombuffer(file, np.uint8), half)[..., ::-1],
    }


def with_simplejpeg() -> dict[str, Decoder]:
    decode = import_module("simplejpeg").decode_jpeg
    open_jpeg = import_module("hotlap.parts.fast_jpeg").open_jpeg
    return {
        "simplejpeg": decode,
        "simplejpeg, scaled": lambda file: decode(file, min_width=WIDTH // 2, min_height=HEIGHT // 2),
        "open_jpeg, a Pillow image": lambda file: loaded(open_jpeg(io.BytesIO(file))),
        "open_jpeg, scaled, to 128": lambda file: to_128(open_jpeg(io.BytesIO(file), scaled=True)),
    }


def with_torchvision() -> dict[str, Decoder]:
    tv = import_module("torchvision.io")
    tensor = lambda file: torch.frombuffer(bytearray(file), dtype=torch.uint8)  # noqa: E731
    decode = lambda file: tv.decode_jpeg(tensor(file), mode=tv.ImageReadMode.RGB)  # noqa: E731
    decode(photo(np.random.default_rng(0)))  # built without libjpeg it says so only now
    return {"torchvision.io": decode}


def loaded(image: Any) -> Any:
    image.load()
    return image


def on_one_core(decoders: dict[str, Decoder], files: Sequence[bytes]) -> dict[str, list[float]]:
    """Images a second of each turn, by processor time: another's work does not count."""
    order, rates = list(decoders), {name: [] for name in decoders}
    shuffled = random.Random(0)
    for turn in range(TURNS + 1):
        seconds = dict.fromkeys(decoders, 0.0)
        for file in files:
            shuffled.shuffle(order)
            for name in order:
                started = time.thread_time()
                decoders[name](file)
                seconds[name] += time.thread_time() - started
        for name in decoders if turn else ():  # the first turn warms up
            rates[name].append(len(files) / seconds[name])
    return rates


def nvjpeg(files: Sequence[bytes]) -> list[Any]:
    """Through torchvision: bytes in main memory to pixels on the device."""
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device")
    tv = import_module("torchvision.io")
    data = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
    return list(tv.decode_jpeg(data, mode=tv.ImageReadMode.RGB, device="cuda"))


def on_device(files: Sequence[bytes]) -> dict[str, list[float]]:
    """Images a second of each turn, by the wall clock."""
    rates: dict[str, list[float]] = {f"nvJPEG, batches of {size}": [] for size in BATCHES}
    for turn in range(TURNS + 2):
        for size in BATCHES if turn % 2 else BATCHES[::-1]:
            batch = [files[number % len(files)] for number in range(size)]
            torch.cuda.synchronize()
            started = time.perf_counter()
            nvjpeg(batch)
            torch.cuda.synchronize()
            if turn > 1:
                rates[f"nvJPEG, batches of {size}"].append(size / (time.perf_counter() - started))
    return rates


def difference(found: Any, expected: Any) -> list[float] | None:
    """Largest and mean, in levels; none where the sizes differ."""
    found = found.permute(1, 2, 0).cpu() if isinstance(found, torch.Tensor) else found
    found, expected = np.asarray(found).astype(int), np.asarray(expected).astype(int)
    if found.shape != expected.shape:
        return None
    apart = np.abs(found - expected)
    return [float(apart.max()), float(apart.mean())]


def differences(decoders: dict[str, Decoder], file: bytes) -> dict[str, list[float] | None]:
    beside = {"scaled": decoders["Pillow, scaled"], "to 128": decoders["Pillow, to 128"]}
    return {
        name: difference(decode(file), beside.get(name.rpartition(", ")[2], pillow)(file))
        for name, decode in decoders.items()
    }


def row(name: str, where: str, rates: list[float], apart: list[float] | None, base: float) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(rates, n=4)
    figures = {"images_a_second": middle, "low": low, "high": high, "beside_pillow": middle / base}
    return {"decoder": name, "on": where, **figures, "levels_apart": apart, "turns": rates}


def versions() -> dict[str, str]:
    found = {"libjpeg-turbo in Pillow": features.version("libjpeg_turbo") or "none"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def show(rows: Sequence[dict[str, Any]], missing: dict[str, str]) -> None:
    print(f"{'decoder':<28}{'on':<12}{'images/s':>9}  {'quartiles':<16}{'x Pillow':>9}  levels apart (most, mean)")
    for one in rows:
        apart = "{:.0f}, {:.2f}".format(*one["levels_apart"]) if one["levels_apart"] else "-"
        spread = f"{one['low']:.0f} to {one['high']:.0f}"
        print(f"{one['decoder']:<28}{one['on']:<12}{one['images_a_second']:>9.0f}  {spread:<16}", end="")
        print(f"{one['beside_pillow']:>9.2f}  {apart}")
    for name, why in missing.items():
        print(f"{name}: missing ({why})")


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    files = [photo(rng) for _ in range(FILES)]
    found, missing = decoders()
    rates, apart = on_one_core(found, files), differences(found, files[0])
    base = statistics.median(rates["Pillow"])
    rows = [row(name, "one core", rates[name], apart[name], base) for name in found]
    try:
        same = difference(nvjpeg(files[:1])[0], pillow(files[0]))
        rows += [row(name, "the device", each, same, base) for name, each in on_device(files).items()]
    except Exception as error:
        missing["nvJPEG"] = f"{type(error).__name__}: {error}".split("\n")[0]
    show(rows, missing)
    about = vars(facts(Target("bench/decoding.py"), TURNS, "run")) | {"command": "python bench/decoding.py"}
    sizes = sorted(map(len, files))
    result = {"facts": about, "versions": versions(), "cores": os.cpu_count(), "file_bytes": sizes[len(sizes) // 2]}
    path = Path(__file__).resolve().parent / "results" / f"decoding-{name_of(about['hardware'])}.json"
    path.write_text(json.dumps(result | {"results": rows, "missing": missing}, indent=1) + "\n")
    print(f"files of {sizes[0] // 1024} to {sizes[-1] // 1024} KB; {path.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
