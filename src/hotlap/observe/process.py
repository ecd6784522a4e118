"""What a process has spent, what it has left, and how torch is set in it."""

from __future__ import annotations

import os
import time
from typing import Any

from hotlap.observe.machine import own_instructions
from hotlap.observe.memory import free_memory
from hotlap.observe.meters import cpu_seconds, peak_resident_bytes, queue_seconds, shm_room

clock = time.perf_counter


class Process:
    """This one, from now on."""

    def __init__(self) -> None:
        self.since = clock()
        self._cpu_before = cpu_seconds()

    def facts(self, device: str) -> dict[str, Any]:
        """By the names that a run's record has for them. Without a wait for the device."""
        import torch

        cuda_is_used = torch.cuda.is_available() and torch.cuda.is_initialized()
        return {
            "torch": torch.__version__,
            "wall_seconds": clock() - self.since,
            "cpu_seconds": cpu_seconds() - self._cpu_before,
            "queue_seconds": queue_seconds(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            "threads": torch.get_num_threads(),
            "instructions": own_instructions(),
            "peak_bytes": int(torch.cuda.max_memory_allocated()) if cuda_is_used else peak_resident_bytes(),
            "free_bytes": free_memory(),
            "shm_free_bytes": shm_room()[1],
            "device_capability": tuple(torch.cuda.get_device_capability()) if device == "cuda" else (),
            "matmul_precision": torch.get_float32_matmul_precision(),
            "searches_kernels": torch.backends.cudnn.benchmark,
            "deterministic": torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled(),
        }
