"""Running text from files and from the hub: the right documents in the right split, packed with EOS, tokenised once."""

from __future__ import annotations

import gzip
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from loopwright.data.batch import BatchSource, Splits
from loopwright.data.text import Hub, HubRows, Text
from loopwright.data.tokenizer import Tokenizer
from loopwright.data.tokens import Windows
from tests.data.words import SHARED, save_words


def story(path: Path, *texts: str | None, field: str = "text") -> str:
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))
    return str(path)


def joined(source: BatchSource) -> str:
    """The text of windows, each without its first token, which is the last of the one before."""
    assert isinstance(source, Windows)
    rows = source.batch(range(len(source))).input_ids
    return source._decode([*rows[0, :1].tolist(), *rows[:, 1:].flatten().tolist()])


def test_documents_are_joined_with_eos(tmp_path: Path) -> None:
    words = save_words(tmp_path / "words")
    train = story(tmp_path / "train.jsonl", "one", None, "two<eos>", " ")
    valid, ood = story(tmp_path / "valid.jsonl", "five"), story(tmp_path / "ood.jsonl", "seven")
    splits = Text(files=train, valid_files=[valid], test_files={"ood": ood}, tokenizer=words, length=2).splits(tmp_path / "kept")
    assert joined(splits.train) == "one<eos>two<eos><eos>"  # of which the second is text
    train_windows = splits.train
    assert isinstance(train_windows, Windows) and train_windows.shards.tokens == 3 + 1 + 3 + len("<eos>") + 1
    assert joined(splits.valid) == "five<eos>" and list(splits.tests) == ["ood"]
    assert not splits.exact and splits.notes["train"] == {"documents": 2, "tokens": 13, "windows": 12, "empty": 2}
    for apart in (True, False):
        options: dict[str, Any] = {"valid_files": [valid], "tokenizer": words, "length": 3, "apart": apart}
        rows = Text(files=train, **options).splits(tmp_path / "kept").train.batch([0, 1])
        assert (rows.segment_ids is not None) == apart and rows.targets == (3 if apart else 4)  # "one" and "e<eos>t"
    assert splits.vocab_size == 264 and splits.eos_id == train_windows.shards.read(3, 4)[0]


def test_a_bos_opens_every_document(tmp_path: Path) -> None:
    words = save_words(tmp_path / "words", bos=True)
    files = story(tmp_path / "train.jsonl", "v", "one", "two")
    assert joined(Text(files=files, tokenizer=words, length=2, valid=1).splits(tmp_path).train) == "<s>one<eos><s>two<eos>"


def test_the_first_documents_are_held_out_where_valid_has_no_files(tmp_path: Path) -> None:
    words = save_words(tmp_path / "words")
    files = story(tmp_path / "train.jsonl", *(f"{i}{i}{i}" for i in range(9)))
    splits = Text(files=files, tokenizer=words, length=2, limit=5, valid=2).splits(tmp_path / "kept")
    assert joined(splits.valid) == "000<eos>111<eos>" and joined(splits.train) == "".join(f"{i}{i}{i}<eos>" for i in range(2, 7))
    with pytest.raises(ValueError, match=r"nothing is left for train, since the first 9 documents are held out \(valid: 9\)"):
        Text(files=files, tokenizer=words, length=4, valid=9).splits(tmp_path / "kept")


def test_a_limit_by_lot_is_another_set_of_shards(tmp_path: Path) -> None:
    words = save_words(tmp_path / "words")
    files = story(tmp_path / "train.jsonl", *(f"{i:02}" for i in range(30)))
    kept: dict[Any, str] = {}
    for seed in (None, 0, 1):
        splits = Text(files=files, tokenizer=words, length=2, limit=5, limit_seed=seed, valid=2).splits(tmp_path / "kept")
        kept[seed] = joined(splits.train)
        assert joined(splits.valid) == "00<eos>01<eos>" and kept[seed].count("<eos>") == 5
    assert kept[None] == "02<eos>03<eos>04<eos>05<eos>06<eos>" and len(set(kept.values())) == 3
    assert len(list((tmp_path / "kept").glob("train-*"))) == 3


def test_where_no_document_is_left_the_cause_is_named(tmp_path: Path) -> None:
    words = save_words(tmp_path / "words")
    (tmp_path / "one.txt").write_text("one file without a separator is one document")
    with pytest.raises(ValueError, match=r"held out \(valid: 100\); give a smaller valid, valid_files, or a separator"):
        Text(files=str(tmp_path / "one.txt"), tokenizer=words, length=4).splits(tmp_path / "kept")
    blank = story(tmp_path / "blank.jsonl", " ", "")
    with pytest.raises(ValueError, match=r"data \(text\): nothing is left for train; its records were left out: 2 empty$"):
        Text(files=blank, valid_files=blank, tokenizer=words, length=4).splits(tmp_path / "kept")
    (tmp_path / "none.jsonl").write_text("\n")
    none = str(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match=r"data \(text\): the source of train holds no records$"):
        Text(files=none, valid_files=none, tokenizer=words, length=4).splits(tmp_path / "kept")


def test_plain_text_is_one_document_or_cut(tmp_path: Path) -> None:
    words = save_words(tmp_path / "words")
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    (tmp_path / "b.txt").write_text("vvv")
    options: dict[str, Any] = {"files": str(tmp_path / "a.txt"), "valid_files": str(tmp_path / "b.txt"), "tokenizer": words}
    assert joined(Text(**options, length=3).splits(tmp_path / "kept").train) == "one\n\ntwo<eos>"
    assert joined(Text(**options, length=2, separator="\n\n").splits(tmp_path / "kept").train) == "one<eos>two<eos>"


def test_text_is_tokenised_once_and_progress_is_told(tmp_path: Path) -> None:
    words = save_words(tmp_path / "words")
    files = story(tmp_path / "train.jsonl", *(f"some text {i}" for i in range(700)))
    told: list[tuple[str, int, int | None]] = []

    def build(length: int) -> Splits:
        return Text(files=files, tokenizer=words, length=length, limit=600, valid=50).splits(
            tmp_path / "kept", lambda *facts: told.append(facts)
        )

    first = build(16)
    assert told == [("tokenising train", done, 600) for done in (256, 512, 600)] + [("tokenising valid", 50, 50)]
    told.clear()
    assert joined(build(16).train) == joined(first.train) and len(build(31).train) == len(first.train) // 2 and not told
    story(Path(files), *["other text"] * 700)
    with pytest.warns(UserWarning, match="tokenised anew; train-.* has another source"):
        build(16)
    assert told


def test_documents_that_are_measured_and_trained_on_are_told(tmp_path: Path) -> None:
    words = save_words(tmp_path / "words")
    files = story(tmp_path / "train.jsonl", "one", "two", "three", "two")
    with pytest.warns(
        UserWarning, match=r"data \(text\): 1 of the 2 documents of valid are in train too, token for token: their loss"
    ):
        Text(files=files, tokenizer=words, length=2, valid=2).splits(tmp_path / "kept")
    with pytest.warns(UserWarning, match="4 of the 4 documents of test are in train too"):
        Text(files=files, valid_files=story(tmp_path / "v.jsonl", "x"), test_files=files, tokenizer=words, length=2).splits(
            tmp_path
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Text(files=files, valid_files=story(tmp_path / "v.jsonl", "x"), tokenizer=words, length=2).splits(tmp_path)


def test_faults_are_one_line(tmp_path: Path) -> None:
    words = save_words(tmp_path / "words")
    good = story(tmp_path / "good.jsonl", "text")
    with pytest.raises(ValueError, match=r"good.jsonl:1: no field 'body'; it has: text"):
        Text(files=good, valid_files=good, tokenizer=words, field="body").splits(tmp_path / "kept")
    with pytest.raises(ValueError, match=r"train-\w+: 5 tokens; allowed: at least one window of 1,024"):
        Text(files=good, valid_files=good, tokenizer=words).splits(tmp_path / "kept")
    for options, message in [
        ({"length": 1}, r"length must be a whole number >= 2 \(got 1\)"),
        ({"limit": 0}, r"limit must be .* \(got 0\)"),
        ({"limit_seed": 3}, "limit_seed is 3 without a limit; allowed: with limit, how many records to draw"),
        ({"limit": 1, "limit_seed": -1}, r"limit_seed must be a whole number >= 0 \(got -1\)"),
        ({"valid": 0}, r"valid must be .* \(got 0\)"),
        ({"test_files": {"valid": good}}, "a test is called 'valid'; allowed: letters"),
        ({"test_files": {"../x": good}}, "a test is called '../x'; allowed: letters"),
        ({"valid_files": "nowhere.txt"}, "no file matches 'nowhere.txt'"),
    ]:
        with pytest.raises(ValueError, match=message):
            Text(files=good, tokenizer=words, **options)


# the hub


def test_a_dataset_by_name(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    words = save_words(tmp_path / "words")
    (tmp_path / "set").mkdir()
    story(tmp_path / "set" / "train.jsonl", *(f"{i}{i}{i}" for i in range(6)), field="body")
    story(tmp_path / "set" / "test.jsonl", "xyz", field="body")
    options: dict[str, Any] = {"dataset": str(tmp_path / "set"), "tokenizer": words, "field": "body", "length": 2}
    splits = Hub(**options, limit=3, valid=1, test_split="test").splits(tmp_path / "kept")
    assert joined(splits.train) == "111<eos>222<eos>333<eos>" and joined(splits.valid) == "000<eos>"
    assert joined(splits.tests["test"]) == "xyz<eos>"
    splits = Hub(**options, valid_split="test").splits(tmp_path / "kept")
    assert joined(splits.valid) == "xyz<eos>" and len(splits.train) == 6 * 4 - 1
    drawn = {joined(Hub(**options, limit=3, limit_seed=seed, valid=1).splits(tmp_path / "kept").train) for seed in range(4)}
    assert len(drawn) > 1 and all(text.count("<eos>") == 3 and "000" not in text for text in drawn)
    with pytest.raises(ValueError, match=r"set train \(row 0\): no field 'text'; it has: body"):
        Hub(**{**options, "field": "text"}, valid_split="test").splits(tmp_path / "kept")


def test_the_default_is_fineweb_edu() -> None:
    rows = Hub(tokenizer="words").parts["train"].records
    assert rows == HubRows("HuggingFaceFW/fineweb-edu", "sample-10BT", "train", None)
    assert Hub(tokenizer="words", dataset="a/b").parts["train"].records == HubRows("a/b")


def test_without_the_package_or_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = save_words(tmp_path / "words")
    hub = Hub(tokenizer=words, dataset="nobody/nothing")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "datasets", None)
        with pytest.raises(ValueError, match=r"a Hugging Face dataset needs the package datasets; pip install datasets"):
            hub.splits(tmp_path / "kept")
    datasets = pytest.importorskip("datasets")

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach the Hub\nand more")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ValueError, match=r"data: nobody/nothing train cannot be read \(Couldn't reach the Hub\)$"):
        hub.splits(tmp_path / "kept")
    assert list((tmp_path / "kept").glob("[!.]*")) == []


@pytest.mark.long
def test_the_real_corpus(tmp_path: Path) -> None:
    corpus, folder = SHARED / "corpus" / "valid.jsonl.gz", SHARED / "tokenizers" / "gpt2"
    if not corpus.is_file() or not folder.is_dir():
        pytest.skip("the shared data are not here")
    with gzip.open(corpus, "rt") as file:
        texts = [json.loads(next(file))["text"] for _ in range(8)]
    splits = Text(files=str(corpus), tokenizer=str(folder), length=8, limit=6, valid=2).splits(tmp_path)
    words = Tokenizer(folder)
    ids = [token for text in texts[2:] for token in [*words.own(text).input_ids, words.eos_id]]
    assert splits.notes["train"]["tokens"] == len(ids)
    assert splits.train.batch(range(len(splits.train))).input_ids[:, 1:].flatten().tolist() == ids[1 : (len(ids) - 1) // 7 * 7 + 1]
