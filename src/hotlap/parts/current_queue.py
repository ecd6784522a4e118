"""The stream that work goes to now, in numbers: to make an object of it, as torch does for each question, takes longer
than most of what is asked in every step."""

from __future__ import annotations

from typing import Any

import torch

Queue = tuple[int, int, int] | None  # None where a device has no streams


def current_queue(device: torch.device) -> Queue:
    if device.type != "cuda":
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    number, of_device, kind = torch._C._cuda_getCurrentStream(index)
    return number, of_device, kind


def stream_of(queue: Queue) -> Any:
    assert queue is not None
    return torch.cuda.Stream(stream_id=queue[0], device_index=queue[1], device_type=queue[2])
