"""Tokenizers: what data asks of them, and one-line faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from loopwright.data.tokenizer import Tokenizer
from tests.data.words import save_words


def test_ids_and_their_meaning(tmp_path: Path) -> None:
    plain, opened = Tokenizer(save_words(tmp_path / "a")), Tokenizer(save_words(tmp_path / "b", bos=True))
    assert plain.decode([plain.eos_id]) == plain.eos == "<eos>" and plain.pad_id == plain.eos_id
    assert plain.vocab_size == 256 + 4 + 4 and plain.opening == [] and opened.opening == [opened.own.bos_token_id]
    assert opened.encode(["the a"]) == plain.encode(["the a"]) == [[plain.own.get_vocab()["the"], plain.own.get_vocab()["Ġa"]]]


def test_control_words_in_a_text_are_text(tmp_path: Path) -> None:
    words = Tokenizer(save_words(tmp_path))
    (ids,) = words.encode(["one<eos>two<|im_end|>"])
    assert not set(ids) & set(words.own.all_special_ids) and words.decode(ids) == "one<eos>two<|im_end|>"


def test_tokens_end_where_their_text_ends(tmp_path: Path) -> None:
    for name in ("plain", "trimmed", "opened"):
        words = Tokenizer(save_words(tmp_path / name, trim=name == "trimmed", bos=name == "opened"))
        ((ids, ends),) = words.encode_with_ends(["the a<eos>"])
        assert [ids] == words.encode(["the a<eos>"]) and ends == [3, 5, 6, 7, 8, 9, 10]


def test_the_fingerprint_changes_with_the_tokenizer(tmp_path: Path) -> None:
    same, again = (Tokenizer(save_words(tmp_path / name)).fingerprint for name in "ab")
    other = Tokenizer(save_words(tmp_path / "c", extra="<more>")).fingerprint
    opened = Tokenizer(save_words(tmp_path / "d", bos=True)).fingerprint
    assert same == again and len({same, other, opened}) == 3
    used = Tokenizer(str(tmp_path / "a"))
    used.encode(["something"])
    assert Tokenizer(str(tmp_path / "a")).fingerprint == used.fingerprint == same


def test_faults(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer: '.*' cannot be loaded \(.*\); allowed: a folder or a hub id") as caught:
        Tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
    endless = PreTrainedTokenizerFast(tokenizer_object=Inner(models.WordLevel({"a": 0, "?": 1}, unk_token="?")), unk_token="?")
    endless.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="the tokenizer has no EOS token"):
        Tokenizer(tmp_path)
