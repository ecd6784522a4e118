"""What a call of a network changes beside what it gives back: buffers, such as running statistics, and the random
generators of its devices. For a call that may have to be made again."""

from __future__ import annotations

from typing import Any

import torch


class CallState:
    def __init__(self, root: torch.nn.Module) -> None:
        self._buffers = [(one, one.detach().clone()) for one in root.buffers()]
        devices = {one.device for one in (*root.parameters(), *root.buffers()) if one.device.type == "cuda"}
        self._random = torch.get_rng_state()
        self._on_devices: list[tuple[Any, torch.Tensor]] = [(one, torch.cuda.get_rng_state(one)) for one in devices]

    @torch.no_grad()
    def put_back(self) -> None:
        for buffer, value in self._buffers:
            buffer.copy_(value)
        torch.set_rng_state(self._random)
        for device, state in self._on_devices:
            torch.cuda.set_rng_state(state, device)
