"""What vLLM cannot run is refused by its name, in one line."""

from __future__ import annotations

from typing import Any

import pytest

import loopwright as lw
from loopwright.model.presets import PRESETS
from loopwright.vllm.plugin import check_expressible

CONTROLLER = {"kind": "controller", "rank": 4, "style": 8}


def test_every_preset_can_be_run() -> None:
    for name in PRESETS:
        check_expressible(lw.preset(name, read_out="last"))


@pytest.mark.parametrize(
    ("name", "changes", "devices", "complaint"),
    [
        ("ouroboros-qwen2.5-3b", {"adapters": [{**CONTROLLER, "pooling": "chunk"}]}, {}, "adapters[0] (controller) has pooling"),
        ("ouroboros-qwen2.5-3b", {"sliding_window": 8}, {}, "beside sliding_window 8"),
        ("asura", {}, {"ranks": 2}, "adapters (abba) are not split"),
        ("retrofit-olmo2-1b", {}, {"ranks": 2}, "qk_norm 'full' reads all heads"),
        ("huginn", {}, {"ranks": 2}, "num_attention_heads is 55, not a multiple of tensor_parallel_size 2"),
        ("universal", {}, {}, "read_out is 'expected', and it reads the last step alone; allowed: last"),
        ("relaxed", {}, {"quantised": "fp8"}, "adapters (low-rank) read plain weights"),
    ],
)  # fmt: skip
def test_refusals(name: str, changes: dict[str, Any], devices: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match="vLLM cannot run this model") as error:
        check_expressible(lw.preset(name, **changes), **devices)
    assert complaint in str(error.value) and "\n" not in str(error.value)


def test_what_is_left_when_a_layer_is_split() -> None:
    check_expressible(lw.preset("ouro-1.4b"), ranks=8, quantised="fp8")
    check_expressible(lw.preset("retrofit-llama-1b"), ranks=8)
