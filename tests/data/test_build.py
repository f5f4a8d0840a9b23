"""Data by kind: every kind from plain data, unknown names refused, vocabularies compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loopwright.data.build import DATA, build_data, cache_folder, check_vocab
from loopwright.schema import check_kind, options_of, read_yaml
from tests.data.words import save_words

SMALL = {"train": 30, "valid": 5, "test": 5}
TASKS: dict[str, dict[str, Any]] = {
    "addition": {"kind": "addition", "digits": 2, **SMALL},
    "hops": {"kind": "hops", **SMALL},
    "chain": {"kind": "chain", **SMALL},
    "columns": {"kind": "columns", **SMALL},
}
TEXTS: dict[str, dict[str, Any]] = {
    "text": {"kind": "text", "files": "{folder}/set/train.jsonl"},
    "hub": {"kind": "hub", "dataset": "{folder}/set"},
    "chat": {"kind": "chat", "files": "{folder}/set/train.jsonl", "question": "text", "answer": "answer"},
}


def test_every_kind_is_here() -> None:
    assert set(DATA) == {*TASKS, *TEXTS, "stories", "given"}  # which test_stories.py builds, and tests/test_api.py passes


@pytest.mark.parametrize("name", TASKS)
def test_tasks(tmp_path: Path, name: str) -> None:
    splits = build_data(TASKS[name], tmp_path)
    assert len(splits.train) == 30 and splits.exact and splits.eos_id is not None and list(tmp_path.iterdir()) == []
    assert splits.train.batch([0]).targets > 0 and "test" in splits.tests
    assert splits.alike == getattr(DATA[name], "alike", False)


@pytest.mark.parametrize("name", TEXTS)
def test_texts(tmp_path: Path, name: str) -> None:
    if name == "hub":
        pytest.importorskip("datasets")
    (tmp_path / "set").mkdir()
    lines = [json.dumps({"text": f"the text {i}", "answer": f"{i}"}) for i in range(8)]
    (tmp_path / "set" / "train.jsonl").write_text("\n".join(lines))
    spec = {key: value.format(folder=tmp_path) for key, value in TEXTS[name].items()}
    told: list[str] = []
    splits = build_data(
        {**spec, "tokenizer": save_words(tmp_path / "words"), "length": 16, "valid": 2},
        tmp_path / "kept",
        lambda what, *_: told.append(what),
    )
    assert splits.exact == (name == "chat") and splits.train.batch([0]).targets > 0 and len(splits.valid) > 0
    assert splits.alike == getattr(DATA[name], "alike", False) == (name != "chat")
    assert told == ["tokenising train", "tokenising valid"] and len(list((tmp_path / "kept").glob("[!.]*"))) == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "adition"}, "data: unknown kind 'adition'; did you mean 'addition'"),
        ({"kind": "addition", "digit": 3}, r"data \(addition\): unknown 'digit'; did you mean 'digits'"),
        ({"kind": "addition", "digits": "3"}, r"data \(addition\): digits is '3'; allowed: a whole number"),
        ({"kind": "hops", "hops": 3}, r"data \(hops\): hops is 3; allowed: a list"),
        ({"kind": "text", "tokenizer": "x"}, r"data \(text\): missing files"),
        ({"kind": "text", "tokenizer": "x", "files": 3}, r"data \(text\): files is 3; allowed: text or a list"),
        ({"digits": 3}, "is not a mapping with a 'kind'"),
    ],
)
def test_refusals(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_data(spec)


def test_a_vocabulary_that_does_not_fit() -> None:
    splits = build_data(TASKS["addition"])
    check_vocab(splits, 15)
    check_vocab(splits, 16)
    with pytest.raises(ValueError, match=r"data: its ids go up to 14, the model has 14 tokens \(vocab_size\); allowed: .* of 15"):
        check_vocab(splits, 14)


def test_where_tokens_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "loopwright" / "tokens"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "loopwright" / "tokens"


def test_the_page_names_every_kind_and_option_and_its_examples_are_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    for kind, made in {k: v for k, v in DATA.items() if k != "given"}.items():
        missing = [name for name in (kind, *options_of(made)) if f"`{name}`" not in page]
        assert missing == [], kind
    examples = [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]
    assert {read_yaml(text, "page")["data"]["kind"] for text in examples} == set(DATA) - {"given"}
    for text in examples:
        check_kind("data", read_yaml(text, "page")["data"], DATA)
