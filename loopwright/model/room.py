"""How much memory is free, and whether the weights of a model fit into it: asked before any of it is taken."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from loopwright.model.config import plain_parameters

if TYPE_CHECKING:
    from loopwright.model.config import LoopedConfig

MEMORY = Path("/proc/meminfo")  # where Linux says what is available
SMALL = 2**26  # bytes that are taken without asking what is free


def free_bytes(device: str) -> int | None:
    """Returns the free memory of a device, what the system would give back of its caches included; None where nobody says."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    if MEMORY.is_file():
        match = re.search(r"^MemAvailable:\s+(\d+) kB", MEMORY.read_text(), re.MULTILINE)
        if match:
            return int(match[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def check_room(what: str, wanted: int, device: torch.device, advice: str) -> None:
    """Raises a ValueError where so many bytes are not free on a device. The allocator may promise more than there is."""
    free = free_bytes(str(device)) if wanted > SMALL and device.type in ("cpu", "cuda") else None
    if free is not None and device.type == "cuda":  # what torch holds of it without using it is free for us
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if free is not None and wanted > free:
        raise ValueError(f"{what} take {wanted / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB are free on {device}; {advice}")


def need_room(config: LoopedConfig) -> None:
    """Raises a ValueError where the weights of a model that is about to be built do not fit into the free memory."""
    wanted = plain_parameters(config) * torch.get_default_dtype().itemsize
    check_room("model: its weights", wanted, torch.get_default_device(), "take a smaller model or another machine")
