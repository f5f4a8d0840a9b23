"""Passages: every token of a text once, bytes that add up, whatever the tokenizer says of blanks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.data.tokenizer import Tokenizer
from loopwright.evaluation.text import Passage, padded_batch, read_passages
from tests.data.words import save_words

TEXTS = ["the a the", "  ", "y\nthé – a\ny the", "a", "<eos> the"]


@pytest.fixture(scope="module", params=[{}, {"bos": True}, {"trim": True}], ids=["plain", "bos", "trimmed"])
def words(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(save_words(tmp_path_factory.mktemp("words"), **request.param))


def write(folder: Path, texts: list[str]) -> Path:
    path = folder / "text.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return path


def test_every_token_is_in_one_passage_of_its_document(words: Tokenizer, tmp_path: Path) -> None:
    found = read_passages("t", write(tmp_path, TEXTS), words, 4)
    opening = len(words.opening)
    real = [text for text in TEXTS if not text.isspace()]
    for document, (text, ids) in enumerate(zip(real, words.encode(real), strict=True)):
        rows = [row for row in found.rows if row.document == document]
        assert all(len(row.ids) <= 4 and row.ids[:opening] == tuple(words.opening) for row in rows)
        kept = [i for row in rows for i in row.ids[opening:]]
        assert kept == ids[: len(kept)] and len(ids) - len(kept) <= 1  # a lone last token without an opening cannot be scored
        if opening:
            assert sum(row.bytes for row in rows) == len(text.encode()) and sum(row.targets for row in rows) == len(ids)


@pytest.mark.long
@given(st.lists(st.text("the ay\né–漢 ", max_size=40), min_size=1, max_size=4), st.integers(3, 9))
def test_bytes_are_those_of_the_scored_tokens(
    words: Tokenizer, tmp_path_factory: pytest.TempPathFactory, texts: list[str], context: int
) -> None:
    texts = [*texts, "the a the"]
    found = read_passages("t", write(tmp_path_factory.mktemp("x"), texts), words, context)
    documents = [text for text in texts if text and not text.isspace()]
    for row in found.rows:
        edges = [words.decode([row.ids[place]]) for place in (row.first - 1, -1)]
        if any(edge.isspace() for edge in edges):  # some tokenizers misplace the end of a token of blanks alone
            continue
        # the vocabulary is byte-level: a letter for each byte, so that a passage may begin and end inside a character
        assert row.bytes == sum(map(len, words.own.convert_ids_to_tokens(list(row.ids[row.first :]))))
        text = words.decode(list(row.ids[row.first :]))
        assert "�" in text or text in documents[row.document]


def test_rows_are_padded_and_masked_only_where_they_differ(words: Tokenizer, tmp_path: Path) -> None:
    found = read_passages("t", write(tmp_path, TEXTS), words, 4)
    order = found.by_length()
    lengths = [len(found.rows[place].ids) for place in order]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] == 4 > lengths[-1]
    assert found.batch(order[:2]).attention_mask is None
    batch = found.batch([order[0], order[-1]])
    assert batch.attention_mask is not None and batch.attention_mask.sum(1).tolist() == [4, lengths[-1]]
    assert (batch.labels != -100).sum(1).tolist() == [found.rows[place].targets for place in (order[0], order[-1])]


def test_labels_are_the_ids_at_the_scored_places_alone() -> None:
    batch = padded_batch([(5, 6, 7), (8, 9)], [[2], [1]])
    assert batch.input_ids.tolist() == [[5, 6, 7], [8, 9, 0]]
    assert batch.labels.tolist() == [[-100, -100, 7], [-100, 9, -100]]


def test_the_fingerprint_follows_text_context_and_place(words: Tokenizer, tmp_path: Path) -> None:
    path = write(tmp_path, TEXTS)
    prints = [read_passages("t", path, words, context, most=most).fingerprint for context, most in ((4, None), (5, None), (4, 2))]
    assert len(set(prints)) == 3 and read_passages("other", path, words, 4).fingerprint == prints[0]


def test_passages_are_drawn_from_all_documents_and_always_alike(words: Tokenizer, tmp_path: Path) -> None:
    whole = read_passages("t", write(tmp_path, ["the a " * 40, *["the a the"] * 40]), words, 4)
    few = whole.drawn(20)
    place_of = {id(row): place for place, row in enumerate(whole.rows)}
    places = [place_of[id(row)] for row in few.rows]
    assert len(few) == 20 and places == sorted(set(places)) and few == whole.drawn(20)
    documents = {row.document for row in few.rows}
    assert 0 in documents and max(documents) > 30 and len(documents) > 5  # the first 20 would be of the first document alone
    assert whole.drawn(len(whole)) == whole == whole.drawn(10**6) and few.fingerprint != whole.drawn(19).fingerprint
    with pytest.raises(ValueError, match=r"rows must be a whole number >= 1 \(got 0\)"):
        whole.drawn(0)


def test_plain_text_is_one_document_and_faults_are_told(words: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "plain.txt"
    path.write_text("the a the a the a")
    assert {row.document for row in read_passages("t", str(path), words, 4).rows} == {0}
    assert read_passages("t", str(path), words, 4, most=1).rows == read_passages("t", str(path), words, 4).rows[:1]
    with pytest.raises(ValueError, match=r"context must be a whole number >= \d \(got 1\)"):
        read_passages("t", str(path), words, 1)
    with pytest.raises(ValueError, match=r"rows must be a whole number >= 1 \(got 0\)"):
        read_passages("t", str(path), words, 4, most=0)
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(ValueError, match="holds no text of two tokens or more"):
        read_passages("t", str(tmp_path / "empty.txt"), words, 4)


def test_a_passage_counts_what_it_scores() -> None:
    assert Passage((1, 2, 3, 4), 1, 9, 0).targets == 3
