"""Many JPEG files decoded at once: by nvJPEG on a CUDA device, else by Pillow."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any, NamedTuple

import torch


def decode_all(files: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """RGB tensors (3, height, width) of bytes on the device, from files that lie in main memory as bytes. One that
    nvJPEG refuses is decoded by Pillow; what Pillow refuses raises its error."""
    if device.type != "cuda":
        with ThreadPoolExecutor(max(1, min(len(files), torch.get_num_threads()))) as pool:
            return list(pool.map(by_pillow, files))
    decoded, reader = decode_ahead(files, device), torch.cuda.current_stream(device)
    reader.wait_event(decoded.done)
    for image in decoded.images:
        image.record_stream(reader)
    return decoded.images


class Decoded(NamedTuple):
    """Images on a device, which are there when `done` is. Whoever reads them on a stream says so by `keep_for`."""

    images: list[torch.Tensor]
    done: Any


def decode_ahead(files: Sequence[torch.Tensor], device: torch.device) -> Decoded:
    """By nvJPEG, for a stream that will wait."""
    decoder, done = _stream_of_its_own(device), torch.cuda.Event()
    with torch.cuda.stream(decoder):
        images = _by_nvjpeg(files, device)
    done.record(decoder)
    return Decoded(images, done)


def keep_for(stream: Any, images: list[torch.Tensor]) -> None:
    """Until what that stream has been given so far is done. To tell torch's allocator of every single image would take
    longer than all else that the host does for them."""
    read = torch.cuda.Event()
    read.record(stream)
    with _keeping:  # loaders have threads of their own
        _kept[:] = [(kept, event) for kept, event in _kept if not event.query()]
        _kept.append((images, read))


_kept: list[tuple[list[torch.Tensor], Any]] = []
_keeping = threading.Lock()


def _by_nvjpeg(files: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    from torchvision.io import ImageReadMode, decode_jpeg

    try:
        return list(decode_jpeg(list(files), mode=ImageReadMode.RGB, device=device))
    except RuntimeError:  # one of them spoils the batch
        pass
    found = []
    for file in files:
        try:
            found.append(decode_jpeg(file, mode=ImageReadMode.RGB, device=device))
        except RuntimeError:
            found.append(by_pillow(file).to(device))
    return found


@functools.cache
def _stream_of_its_own(device: torch.device) -> Any:
    """Torchvision's decoder writes without waiting for the current stream, into memory that was freed on it and may
    still be read there (pytorch/vision 9606). What is freed on this one nobody else has a use for."""
    return torch.cuda.Stream(device)


def by_pillow(file: torch.Tensor) -> torch.Tensor:
    """As the script's own loader decodes it."""
    from PIL import Image

    return pixels_of(Image.open(BytesIO(file.numpy().tobytes())).convert("RGB"))


def pixels_of(image: Any) -> torch.Tensor:
    """A PIL image, grey or RGB, as a tensor (colours, height, width) of bytes."""
    import numpy

    array = numpy.array(image, numpy.uint8)
    return torch.from_numpy(array if array.ndim == 3 else array[..., None]).permute(2, 0, 1).contiguous()
