"""The bound counts what must be read; every depth and batch size is measured; what cannot be is refused."""

from __future__ import annotations

import pytest
import torch

import loopwright as lw
from loopwright.evaluation import throughput as module
from loopwright.evaluation.throughput import copy_bandwidth, decode_bytes, throughput

MODEL = lw.build("ouro-1.4b-tiny")


@pytest.fixture(autouse=True)
def small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.COPIED, "cpu", 2**20)


def test_bytes_by_hand() -> None:
    config = MODEL.config
    core = sum(p.numel() for p in MODEL.core.parameters())
    head = MODEL.lm_head.weight.numel()
    keys = 2 * config.core_layers * config.num_key_value_heads * config.head_dim
    assert decode_bytes(MODEL, 3, 5, 7) == 4 * (3 * core + head + 3 * 5 * 7 * keys)
    assert decode_bytes(MODEL.bfloat16(), 3, 5, 7) == 2 * (3 * core + head + 3 * 5 * 7 * keys)
    MODEL.float()


def test_every_depth_and_batch_is_measured() -> None:
    lines: list[str] = []
    report = throughput(MODEL, [1, 2], [1, 3], prompt_tokens=4, new_tokens=5, source="made", tell=lines.append)
    assert [(row.depth, row.batch) for row in report.rows] == [(1, 1), (1, 3), (2, 1), (2, 3)]
    assert all(row.tokens_per_s > 0 and row.first_token_s > 0 and row.memory > 0 and row.share > 0 for row in report.rows)
    assert report.rows[0].bound > report.rows[2].bound and report.rows[1].bound > report.rows[0].bound
    assert lines == ["copy bandwidth", "depth 1, batch 1", "depth 1, batch 3", "depth 2, batch 1", "depth 2, batch 3"]
    data = report.to_dict()
    assert data["rows"][0]["share"] == report.rows[0].share and data["bandwidth"] > 0
    assert len(report.table(200).rows) == 4


def test_a_copy_reads_and_writes() -> None:
    assert copy_bandwidth(torch.device("cpu"), repeats=2) > 1e6


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="new_tokens must be a whole number >= 4"):
        throughput(MODEL, [1], [1], prompt_tokens=4, new_tokens=1)
    with pytest.raises(ValueError, match="batch must be a whole number >= 1"):
        throughput(MODEL, [1], [0], prompt_tokens=4, new_tokens=4)
    with pytest.raises(ValueError, match=r"more than the model's .* positions"):
        throughput(MODEL, [1], [1], prompt_tokens=MODEL.config.max_position_embeddings, new_tokens=4)


def test_weights_that_are_not_finite_end_it_in_one_line() -> None:
    """No token can be chosen, so that a loop that waits for the first one would not end."""
    model = lw.build("ouro-1.4b-tiny")
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    with pytest.raises(ValueError, match=r"^bench: depth 2, batch 3: logits are not finite after \d+ tokens, .*chosen$"):
        throughput(model, [2], [3], prompt_tokens=4, new_tokens=5)
