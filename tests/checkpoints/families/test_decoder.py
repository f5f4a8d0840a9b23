"""What the Llama-like families share."""

from __future__ import annotations

from typing import Any

import pytest

import loopwright as lw
from loopwright.checkpoints.families.dense import read_decoder, write_decoder
from loopwright.checkpoints.families.fields import Fields

JSON: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip


def test_absent_and_null_heads() -> None:
    assert read_decoder(Fields("here", JSON))["num_key_value_heads"] == 4
    assert read_decoder(Fields("here", JSON), key_value_heads=2)["num_key_value_heads"] == 2
    null = {**JSON, "num_key_value_heads": None}
    assert read_decoder(Fields("here", null), key_value_heads=2)["num_key_value_heads"] == 4
    assert read_decoder(Fields("here", JSON))["head_dim"] == 8
    assert read_decoder(Fields("here", JSON), head_dim=16)["head_dim"] == 16
    assert read_decoder(Fields("here", {**JSON, "head_dim": 6}), head_dim=16)["head_dim"] == 6


def test_layers_go_into_the_stack() -> None:
    found = read_decoder(Fields("here", JSON), stack="core")
    assert (found["prelude_layers"], found["core_layers"], found["coda_layers"]) == (0, 3, 0)


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_hidden_layers", "rms_norm_eps", "max_position_embeddings"])
def test_sizes_and_eps_are_never_defaults(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is missing"):
        read_decoder(Fields("here", {key: value for key, value in JSON.items() if key != name}))


def test_the_activation_is_checked() -> None:
    with pytest.raises(ValueError, match="hidden_act is 'gelu', which is not supported; allowed: 'silu'"):
        read_decoder(Fields("here", {**JSON, "hidden_act": "gelu"}))


def test_written_is_read_again() -> None:
    found = read_decoder(Fields("here", {**JSON, "rope_theta": 77.0, "bos_token_id": 5, "tie_word_embeddings": True}))
    written = write_decoder(lw.LoopedConfig(**found))
    assert read_decoder(Fields("here", written)) == found
