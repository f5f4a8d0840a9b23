"""Where kernels run in tests: on a GPU where there is one, else in Triton's interpreter, for which Triton must be installed:

TRITON_INTERPRET=1 pytest tests/kernels
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def need_triton() -> None:
    """Skips a file of tests where no kernel can run. (The interpreter must be chosen before Triton is imported by anybody.)"""
    if find_spec("triton") is None or (DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"):
        pytest.skip("neither a GPU nor Triton's interpreter (TRITON_INTERPRET=1)", allow_module_level=True)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Returns normal numbers in float32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(DEVICE)
