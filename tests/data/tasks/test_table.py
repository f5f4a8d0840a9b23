"""Tables: batches are gathers, padding is told or masked and changes nothing, alphabets go both ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import loopwright as lw
from loopwright.confined import token_ids
from loopwright.data.batch import IGNORED
from loopwright.data.build import build_data
from loopwright.data.tasks.addition import Addition
from loopwright.data.tasks.task import EOS, PAD, Alphabet, Table, TaskRows, stack

LETTERS = Alphabet(["a", "b", "c", PAD, EOS])


def small(padding: str = "masked") -> Table:
    ids = np.array([LETTERS.encode(f"abc{EOS}"), LETTERS.encode(f"ac{EOS}{PAD}")])
    return TaskRows(ids, np.array([2, 1]), np.array([4, 3]), np.array([1, 2])).table(LETTERS, padding)


def test_a_batch_gathers_rows_and_labels_answers() -> None:
    batch = small().batch([1, 0, 1])
    assert batch.input_ids.tolist() == [[0, 2, 4, 3], [0, 1, 2, 4], [0, 2, 4, 3]] and batch.input_ids.dtype == torch.long
    assert batch.labels.tolist() == [[-100, 2, 4, -100], [-100, -100, 2, 4], [-100, 2, 4, -100]]
    assert batch.attention_mask is not None and batch.attention_mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch.targets == 6
    assert torch.equal(small().batch(torch.tensor([1, 0, 1])).labels, batch.labels)


def test_plain_padding_has_no_mask_but_the_same_real_tokens() -> None:
    masked, plain = (small(padding).batch([0, 1]) for padding in ("masked", "plain"))
    assert plain.attention_mask is None
    assert torch.equal(plain.valid, masked.valid) and not plain.valid.all()
    assert torch.equal(plain.to("cpu").valid, masked.valid)


def test_without_padding_there_is_no_mask() -> None:
    rows = TaskRows(np.array([[0, 1, 4]]), np.array([1]), np.array([3]), np.array([1]))
    batch = rows.table(LETTERS, "masked").batch([0])
    assert batch.attention_mask is None and batch.lengths is None and batch.valid.all()


@pytest.mark.parametrize("name", ["universal-tiny", "huginn-tiny", "stars-addition-tiny"])
def test_plain_padding_changes_nothing_on_real_tokens(name: str) -> None:
    torch.manual_seed(0)
    model = lw.build(name, vocab_size=15, pad_token_id=13, eos_token_id=14).eval()
    table = Addition(digits=2, train=40, valid=1, test=1).splits().train
    masked, plain = (replace(table, padding=padding).batch(range(16)) for padding in ("masked", "plain"))
    assert masked.attention_mask is not None and not masked.attention_mask.all()
    with torch.no_grad():
        a = model(masked.input_ids, attention_mask=masked.attention_mask, labels=masked.labels)
        b = model(plain.input_ids, attention_mask=plain.attention_mask, labels=plain.labels)
    assert torch.allclose(a.logits[masked.valid], b.logits[plain.valid], atol=1e-5)
    assert torch.allclose(a.loss, b.loss, atol=1e-5)


def test_text_both_ways() -> None:
    words = Alphabet(["+1", "0", PAD, EOS], separator=" ")
    assert words.encode(f"0 +1 {EOS}") == [1, 0, 3] and words.decode([1, 0, 3, 2, 2]) == f"0 +1 {EOS}"
    assert small().show(1) == f"ac{EOS}"
    with pytest.raises(ValueError, match=r"'d' is no symbol of this task; .*allowed: a, b, c"):
        LETTERS.encode("ad")


@pytest.mark.parametrize(
    ("symbols", "words"),
    [(["a", EOS], f"without {PAD!r}"), (["a", PAD], f"without {EOS!r}"), (["a", "a", PAD, EOS], "4, of which 3 differ")],
)
def test_symbols_that_are_no_alphabet_are_refused(symbols: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Alphabet(symbols)


def test_stack_mixes_rows_and_keeps_what_belongs_together() -> None:
    rows = [TaskRows(np.array([[i, 4]]), np.array([i]), np.array([i + 1]), np.array([i])) for i in range(3)]
    mixed = stack(rows, np.array([2, 0, 1]))
    assert mixed.ids[:, 0].tolist() == mixed.starts.tolist() == mixed.required_depth.tolist() == [2, 0, 1]
    assert mixed.lengths.tolist() == [3, 1, 2]


def test_answers_in_place_are_labels_beside_the_ids() -> None:
    ids, answers = np.array([[0, 1, 4], [1, 4, 3]]), np.array([[3, 2, 0], [3, 1, 3]])
    rows = TaskRows(ids, np.array([1, 1]), np.array([3, 2]), np.array([1, 1]), answers)
    table = stack([rows, rows], np.array([1, 2, 0, 3])).table(LETTERS, "masked")
    batch = table.batch([0, 1])
    assert batch.input_ids.tolist() == [[1, 4, 3], [0, 1, 4]] and batch.labels.tolist() == [[-100, 1, -100], [-100, 2, 0]]
    moved = table.to("meta").answers
    assert moved is not None and moved.device.type == "meta"


def test_a_table_moves_whole() -> None:
    moved = small().to("meta")
    assert {x.device.type for x in (moved.ids, moved.starts, moved.lengths, moved.required_depth)} == {"meta"}
    assert IGNORED == -100


@pytest.mark.parametrize("kind", ["addition", "hops", "chain", "columns"])
def test_a_task_has_a_tokenizer_with_its_ids(tmp_path: Path, kind: str) -> None:
    """The text of every row has the row's ids, saved and read again too; what is no symbol is refused, not taken for another."""
    splits = build_data({"kind": kind, "train": 50, "valid": 5, "test": 5})
    table = splits.train
    assert isinstance(table, Table)
    splits.tokenizer.save_pretrained(tmp_path)
    for words in (splits.tokenizer, lw.tokenizer(tmp_path)):
        for row in range(50):
            ids = table.ids[row, : table.lengths[row]].tolist()
            assert words(table.show(row)).input_ids == ids and words.decode(ids) == table.show(row)
        assert (words.eos_token_id, words.pad_token_id, len(words)) == (splits.eos_id, splits.pad_id, splits.vocab_size)
        with pytest.raises(ValueError, match=r"prompt: '1 \?' has no tokens in this tokenizer .*; allowed: '"):
            token_ids(words, "1 ?")


def test_a_tokenizer_says_how_answers_are_written(tmp_path: Path) -> None:
    for options, said in (({}, "the sum is written from its last"), ({"reverse": "all"}, "every number is written from its last")):
        splits = Addition(train=20, valid=5, test=5, digits=2, **options).splits()
        splits.tokenizer.save_pretrained(tmp_path)
        assert lw.tokenizer(tmp_path).init_kwargs["reading"].startswith(said)
    assert "reading" not in Alphabet(["a", PAD, EOS]).tokenizer().init_kwargs
