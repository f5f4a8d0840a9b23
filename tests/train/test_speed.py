"""The FLOPs that MFU is counted from, and what the log tells."""

from __future__ import annotations

import pytest
import torch

from loopwright.data.batch import Batch
from loopwright.model.cost import pass_flops, training_flops
from loopwright.model.presets import preset
from loopwright.train.objectives.losses import EveryStep, Final
from loopwright.train.rollout import Plan
from loopwright.train.speed import Speedometer, peak_of

CPU = torch.device("cpu")


def batch(rows: int = 3, length: int = 10) -> Batch:
    ids = torch.zeros(rows, length, dtype=torch.long)
    return Batch(ids, ids)


@pytest.mark.parametrize(
    "name",
    [
        "ouro-1.4b-tiny",
        "huginn-tiny",
        pytest.param("asura-tiny", marks=pytest.mark.slow),
        pytest.param("ouroboros-qwen2.5-3b-tiny", marks=pytest.mark.slow),
    ],
)
def test_flops_are_those_of_inspect(name: str) -> None:
    config = preset(name)
    deepest = min(config.max_steps or 5, 5)
    meter = Speedometer(config, Final(), "bf16", CPU)
    for depth in range(1, deepest + 1):
        assert meter.flops([(batch(), Plan(depth, depth))]) == training_flops(config, depth=depth, batch=3, length=10)


def test_steps_without_a_gradient_run_forward_only() -> None:
    config = preset("huginn-tiny")
    meter = Speedometer(config, Final(), "bf16", CPU)
    deep, kept = (pass_flops(config, depth=depth, batch=3, length=10)["total"] for depth in (8, 2))
    assert meter.flops([(batch(), Plan(8, 2))]) == deep + 2 * kept
    assert meter.flops([(batch(), Plan(8, 2)), (batch(), Plan(8, 2))]) == 2 * (deep + 2 * kept)


def test_every_step_reads_out_every_time() -> None:
    config = preset("ouro-1.4b-tiny")
    final, every = (Speedometer(config, objective, "bf16", CPU) for objective in (Final(), EveryStep()))
    head = pass_flops(config, depth=4, batch=3, length=10)["head"]
    assert every.flops([(batch(), Plan(4, 4))]) - final.flops([(batch(), Plan(4, 4))]) == 3 * 3 * head


def test_peaks() -> None:
    assert peak_of("NVIDIA H200", "bf16") == peak_of("NVIDIA H100 80GB HBM3", "bf16") == 989e12
    assert peak_of("NVIDIA H100 PCIe", "bf16") == 756e12 and peak_of("NVIDIA L4", "tf32") == 60.5e12
    assert peak_of("NVIDIA A100-SXM4-80GB", "bf16") == 312e12 and peak_of("NVIDIA GeForce RTX 4090", "bf16") == 165e12
    assert all(peak_of(f"NVIDIA {name}", "bf16") is None for name in ("L40", "GeForce RTX 4090 Laptop GPU", "H100 NVL", "A1000"))
    assert peak_of("NVIDIA H200", "fp32") is None and peak_of("another card", "bf16") is None
    assert Speedometer(preset("ouro-1.4b-tiny"), Final(), "bf16", CPU).row([(batch(), Plan(1, 1))], 1.0, 1) == {}
