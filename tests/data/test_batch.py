"""Batches: which tokens are real, how many are predicted, moving whole."""

from __future__ import annotations

from dataclasses import fields

import torch

from loopwright.data.batch import Batch


def test_real_tokens_by_mask_by_length_or_all() -> None:
    ids = torch.zeros(2, 3, dtype=torch.long)
    wanted = torch.tensor([[True, True, False], [True, True, True]])
    assert Batch(ids, ids).valid.all()
    assert torch.equal(Batch(ids, ids, attention_mask=wanted.long()).valid, wanted)
    assert torch.equal(Batch(ids, ids, lengths=torch.tensor([2, 3])).valid, wanted)


def test_the_first_token_is_no_target() -> None:
    labels = torch.tensor([[5, 6, -100], [-100, -100, 7]])
    assert Batch(labels, labels).targets == 2 and len(Batch(labels, labels)) == 2


def test_every_tensor_moves() -> None:
    x = torch.ones(1, 2, dtype=torch.long)
    moved = Batch(x, x, x, x, torch.ones(1), torch.ones(1)).to("meta")
    assert {getattr(moved, f.name).device.type for f in fields(moved)} == {"meta"}
    assert Batch(x, x).to("meta").rows is None
