"""What is known of tokens of text, and what every rule does with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.halting.reading import measure
from experiments.halting.tokens import BLOCKS, TOLERANCE, TextTokens, tenths
from loopwright.data.tokens import Windows, kept_shards
from loopwright.model.causal_lm import LoopedForCausalLM
from tests.cases import noisy


def windows_of(folder: Path, count: int, length: int = 6) -> Windows:
    """So many windows of one document: the numbers 0, 1, 2 … without an end."""
    ids = [i % 100 for i in range(count * (length - 1) + 1)]
    return Windows(kept_shards(folder, "test", {}, lambda: [(ids, None)], vocab_size=100), length, str, apart=False)


@torch.no_grad()
def share_right(model: LoopedForCausalLM, tokens: TextTokens, depth: int) -> float:
    """The share of tokens that the model itself says at this depth."""
    pairs = [(model(batch.input_ids, depth=depth).logits[:, :-1].argmax(-1), batch.labels[:, 1:]) for _, batch in tokens.batches()]
    return float(torch.cat([said == labels for said, labels in pairs]).double().mean())


def test_windows_are_read_at_even_distances_and_blocks_are_stretches_of_equal_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.halting.tokens.WINDOWS", 100)
    tokens = TextTokens(windows_of(tmp_path, 250))
    batches = list(tokens.batches())
    assert [place for places, _ in batches for place in places] == list(range(100))
    starts = torch.cat([batch.input_ids[:, 0] for _, batch in batches])
    assert starts.tolist() == [5 * (i * 250 // 100) % 100 for i in range(100)]
    row = torch.arange(100).repeat_interleave(5)
    known = tokens.known(row, torch.rand(3, 500), torch.rand(3, 500) < 0.5)
    assert known.block.bincount(minlength=BLOCKS).tolist() == [10] * BLOCKS and bool((known.block.diff() >= 0).all())


def test_a_token_of_text_is_settled_where_it_stays_near_full_depth(tmp_path: Path) -> None:
    tokens = TextTokens(windows_of(tmp_path, 4))
    near, far = 1 + TOLERANCE / 2, 1 + 2 * TOLERANCE
    losses = torch.tensor([[near, far, near, 0.5], [near, near, far, 0.1], [1.0, 1.0, 1.0, 1.0]])
    known = tokens.known(torch.arange(4), losses, losses > 0)
    assert known.settled.tolist() == [1, 2, 3, 1]
    assert torch.allclose(known.wants, (losses[0] - 1).double()) and known.answer.tolist() == [0, 1, 2, 3]


def test_tenths_are_of_equal_size_and_in_order() -> None:
    values = torch.randn(200, generator=torch.Generator().manual_seed(0))
    groups = tenths(values)
    assert groups.bincount().tolist() == [20] * 10
    assert all(values[groups == i].max() <= values[groups == i + 1].min() for i in range(9))


def test_text_is_measured_by_every_rule_and_by_the_oracle(tmp_path: Path) -> None:
    model = noisy("ouro-1.4b-tiny", vocab_size=100, halting={"kind": "exit"})
    tokens = TextTokens(windows_of(tmp_path, BLOCKS))
    found = measure(model, tokens, 3, "gate")
    assert found["needs"] == [25] * 10
    for depth, share in enumerate(found["fixed"]["exact"], 1):
        assert share == pytest.approx(share_right(model, tokens, depth))
    # the oracle gives away at most the tolerance, and a fixed depth has its own mean depth
    assert found["oracle"]["loss"] <= found["fixed"]["loss"][-1] + TOLERANCE
    assert sum(found["fixed"]["blocks"]) / BLOCKS == pytest.approx(found["fixed"]["at_target"])
    for curve in found["rules"].values():
        assert curve["loss"][-1] == pytest.approx(found["fixed"]["loss"][-1])
