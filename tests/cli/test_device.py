"""Dtypes and devices by name."""

import pytest
import torch

from loopwright.cli.opening import find_device, find_dtype


def test_names_of_dtypes() -> None:
    assert find_dtype("bf16") is find_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(ValueError, match="dtype: unknown 'bf17'; did you mean 'bf16'"):
        find_dtype("bf17")


def test_devices_that_are_there() -> None:
    assert find_device("cpu") == "cpu"
    with pytest.raises(ValueError, match="device: unknown 'gpu'; allowed: cpu, cuda, cuda:N, mps"):
        find_device("gpu")
