"""Batches: which tokens are real, how many are predicted, moving whole."""

from __future__ import annotations

from dataclasses import fields

import pytest
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
    names = [f.name for f in fields(Batch)]
    moved = Batch(**dict.fromkeys(names, x)).to("meta")
    assert {getattr(moved, name).device.type for name in names} == {"meta"}
    assert Batch(x, x).to("meta").rows is None


def test_what_is_asked_is_found_once() -> None:
    labels = torch.tensor([[5, 6, -100, 8], [-100, -100, 7, -100]])
    batch = Batch(labels, labels).ready()
    assert batch.asked is not None and batch.asked.tolist() == [1, 3, 6, 0]  # 3 targets, filled up to a multiple of 2 rows
    assert labels[0, 0] == 5 and len(batch.asked) - batch.targets == 1


def test_documents_of_nearly_all_tokens_have_one_shape_where_that_is_wanted() -> None:
    """Each first token of a document is not asked for: a number that differs from batch to batch."""
    draws, shapes = torch.Generator().manual_seed(0), set()
    for _ in range(8):
        begins = torch.rand(4, 32, generator=draws) < 0.1
        labels = torch.where(begins, -100, 7)
        batch = Batch(labels.abs(), labels, segment_ids=begins.long().cumsum(1))
        fine, coarse = batch.ready().asked, batch.ready(coarse=True).asked
        assert fine is not None and coarse is not None
        shapes.add(len(coarse))
        assert coarse[coarse > 0].tolist() == fine[fine > 0].tolist() and len(fine) % 4 == 0
    assert shapes == {4 * 32}
    few = Batch(labels.abs(), torch.where(torch.arange(32) < 5, labels, -100), segment_ids=begins.long().cumsum(1))
    assert len(few.ready(coarse=True).asked) == 16 and len(Batch(labels.abs(), labels).ready(coarse=True).asked) < 4 * 32


def test_documents_are_checked_before_they_go_to_a_device() -> None:
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="segment_ids: negative entries"):
        Batch(ids, ids, segment_ids=torch.tensor([[0, 0, -1]])).ready()


def test_padding_is_told_by_a_mask_or_by_lengths() -> None:
    x = torch.ones(1, 2, dtype=torch.long)
    assert not Batch(x, x).padded and Batch(x, x, attention_mask=x).padded and Batch(x, x, lengths=torch.tensor([2])).padded
