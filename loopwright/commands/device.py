"""Dtypes and devices by their names on the command line."""

from __future__ import annotations

import torch

from loopwright.checkpoints.load import DTYPE_NAMES
from loopwright.schema import suggest


def find_dtype(name: str) -> torch.dtype:
    """Returns the dtype of a name such as bf16 or float32."""
    if name not in DTYPE_NAMES:
        raise ValueError(f"dtype: unknown {name!r}; {suggest(name, DTYPE_NAMES)}")
    return DTYPE_NAMES[name]


def find_device(name: str) -> str:
    """Returns the name of a device that is there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device: unknown {name!r}; allowed: cpu, cuda, cuda:N, mps") from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type) or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise ValueError(f"device: {name!r} is not there; allowed here: {', '.join(kind for kind, here in there.items() if here)}")
    return name
