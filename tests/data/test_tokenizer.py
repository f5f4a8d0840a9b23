"""Tokenizers: what data asks of them, and one-line faults."""

from __future__ import annotations

import logging
from itertools import accumulate
from logging.handlers import MemoryHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError
from tokenizers import Tokenizer as Inner
from tokenizers import models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from loopwright.data.build import build_data
from loopwright.data.tokenizer import Tokenizer, _said_once_read
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


@pytest.mark.parametrize("text", ["ü漢字 the😀a", "😀😀", "the\r\nthé"])
def test_tokens_end_inside_characters_of_several_bytes(tmp_path: Path, text: str) -> None:
    words = Tokenizer(save_words(tmp_path))
    ((ids, ends),) = words.encode_with_ends([text])
    sizes = [len(token) for token in words.own.convert_ids_to_tokens(ids)]  # byte-level: a letter for each byte
    assert ends == list(accumulate(sizes)) and ends[-1] == len(text.encode())


def test_bytes_that_stand_for_no_token_count_one_each(tmp_path: Path) -> None:
    pieces = ["<s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "b"]
    inner = Inner(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<s>").save_pretrained(tmp_path)
    ((ids, ends),) = Tokenizer(tmp_path).encode_with_ends(["a漢b😀"])
    assert (len(ids), ends) == (9, [1, 2, 3, 4, 5, 6, 7, 8, 9])


def test_the_fingerprint_changes_with_the_tokenizer(tmp_path: Path) -> None:
    same, again = (Tokenizer(save_words(tmp_path / name)).fingerprint for name in "ab")
    other = Tokenizer(save_words(tmp_path / "c", extra="<more>")).fingerprint
    opened = Tokenizer(save_words(tmp_path / "d", bos=True)).fingerprint
    assert same == again and len({same, other, opened}) == 3
    used = Tokenizer(str(tmp_path / "a"))
    used.encode(["something"])
    assert Tokenizer(str(tmp_path / "a")).fingerprint == used.fingerprint == same


def test_faults(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer: '.*': the tokenizer cannot be read \(.*\); allowed: a folder") as caught:
        Tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
    endless = PreTrainedTokenizerFast(tokenizer_object=Inner(models.WordLevel({"a": 0, "?": 1}, unk_token="?")), unk_token="?")
    endless.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="the tokenizer has no EOS token"):
        Tokenizer(tmp_path)


def test_a_broken_model_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers tells of each library that it tried; what it says of a tokenizer that it reads is passed on."""
    (tmp_path / "tokenizer.model").write_bytes(b"garbage")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    logger, heard = logging.getLogger("transformers"), MemoryHandler(99, flushLevel=99)
    monkeypatch.setattr(logger, "handlers", [heard])
    monkeypatch.setattr(logger, "level", logging.WARNING)
    logger.manager._clear_cache()
    with pytest.raises(ValueError, match=r"^tokenizer: '.*': the tokenizer cannot be read \(.*\); allowed: a folder or") as caught:
        Tokenizer(tmp_path)
    assert "\n" not in str(caught.value) and not heard.buffer
    with _said_once_read():
        logger.warning("a warning")
        assert not heard.buffer
    assert [record.getMessage() for record in heard.buffer] == ["a warning"]


def test_a_name_that_is_nowhere_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is asked once, and not at all about what cannot be a hub id."""
    asked: list[str] = []

    def answer(error: Exception) -> None:
        def model_info(name: str, **options: Any) -> None:
            asked.append(name)
            raise error

        monkeypatch.setattr(huggingface_hub, "model_info", model_info)

    def refuse(*given: Any, **options: Any) -> None:
        assert options["local_files_only"] is True  # else every file is asked for, again and again
        raise OSError("nothing of that name")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse)
    unreachable = (OSError("no route"), "it is not in the cache; the hub cannot be reached")
    for error, said in ((httpx_error(404), r"the hub has none of that name \(status 404\)"), unreachable):
        answer(error)
        with pytest.raises(ValueError, match=said) as caught:
            Tokenizer("nosuchtok")
        assert "'nosuchtok'" in str(caught.value) and "\n" not in str(caught.value)
    assert asked == ["nosuchtok"] * 2
    for name in (str(tmp_path / "nosuch"), "./nosuch", "a/b/c", tmp_path / "nosuch"):
        with pytest.raises(ValueError, match=r"there is no folder .*, and it is not a hub id"):
            Tokenizer(name)
    assert len(asked) == 2


def httpx_error(status: int) -> Exception:
    return HfHubHTTPError("not there", response=SimpleNamespace(status_code=status, headers={}, request=None))  # type: ignore[arg-type]


def test_a_text_that_a_small_vocabulary_has_no_words_for(tmp_path: Path) -> None:
    build_data({"kind": "addition", "train": 8, "valid": 4, "test": 4}, tmp_path / "data").tokenizer.save_pretrained(
        tmp_path / "words"
    )
    words = Tokenizer(tmp_path / "words")
    for told in (words.encode, words.encode_with_ends):
        with pytest.raises(ValueError, match="no tokens in this tokenizer"):
            told(["what"])
