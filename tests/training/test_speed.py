"""The FLOPs that MFU is counted from, what the log tells, and that an update does not wait for the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loopwright.data.batch import Batch, Splits
from loopwright.model.cost import TRAINING_FACTOR, pass_flops
from loopwright.model.presets import preset
from loopwright.training import loop
from loopwright.training.objectives.losses import EveryStep, Final
from loopwright.training.recipe import make_recipe
from loopwright.training.report import Objects, Speedometer, peak_of
from loopwright.training.rollout import Plan

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
        assert (
            meter.flops([(batch(), Plan(depth, depth))])
            == TRAINING_FACTOR * pass_flops(config, depth=depth, batch=3, length=10)["total"]
        )


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


class Documents:
    """Text as recipes hand it over: rows of one length, several documents in each."""

    def __len__(self) -> int:
        return 64

    def batch(self, indices: Tensor) -> Batch:
        draws = torch.Generator().manual_seed(int(indices[0]))
        ids = torch.randint(0, 96, (len(indices), 128), generator=draws)
        return Batch(ids, ids.clone(), segment_ids=(torch.rand(ids.shape, generator=draws) < 0.05).long().cumsum(1))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("huginn-tiny", {}),
        ("huginn-tiny", {"graph": False}),
        ("huginn-tiny", {"objective": {"kind": "every-step"}, "remat": "step", "accumulate": 2, "average": {"kind": "ema"}}),
        ("ouro-1.4b-tiny", {"objective": {"kind": "expected-exit"}, "remat": "step"}),  # as ouro-pretrain
    ],
)
def test_on_the_gpu_an_update_waits_for_the_device_once(
    name: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss and norm are read when all but the optimiser's step is queued and the next rows are drawn: no step may be taken on what
    is not finite. Nothing else may wait."""
    read, last = loop.collect, 7

    def reading(*arguments: Any) -> Any:
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        found = read(*arguments)
        torch.cuda.set_sync_debug_mode(mode)
        return found

    def strict(row: dict[str, Any]) -> None:  # the first updates compile; after the last one the run validates and saves
        torch.cuda.set_sync_debug_mode("error" if 2 < row["update"] < last else "default")

    monkeypatch.setattr(loop, "collect", reading)
    model = {"kind": "preset", "name": name, "changes": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}}
    data = {
        "about": "text", "model": model, "data": {"kind": "text", "files": "x", "tokenizer": "gpt2"}, "updates": last + 1,
        "batch": 8, "depth": {"kind": "fixed", "depth": 3}, "precision": "bf16", **changes,
    }  # fmt: skip
    splits = Splits(Documents(), Documents(), vocab_size=96, alike=True)
    try:
        outcome = loop.train(make_recipe(data), tmp_path / "run", given=Objects(data=splits), on_update=strict)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert outcome.finished and outcome.progress.update == last + 1


def test_what_is_not_counted_leaves_the_peak_of_memory_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak of before is not forgotten with it."""
    peak = [5]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.__setitem__(0, 1))
    meter = Speedometer(preset("ouro-1.4b-tiny"), Final(), "bf16", torch.device("cuda"))
    with meter.uncounted():
        peak[0] = 9
    assert meter.row([], 1.0, 1)["peak_memory"] == 5
    peak[0] = 7
    assert meter.row([], 1.0, 1)["peak_memory"] == 7
