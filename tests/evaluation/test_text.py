"""Held-out text: what a passage is, and its loss as a likelihood or marked as none."""

from __future__ import annotations

import gzip
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import loopwright as lw
from loopwright.checking.probes import Verdict
from loopwright.data.tokenizer import Tokenizer
from loopwright.evaluation import text as heldout
from loopwright.evaluation.likelihood import NOT_A_LIKELIHOOD, causality_of, need_likelihood
from loopwright.evaluation.text import HeldOut, Passage, Passages, held_out, padded_batch, prefix_batch, read_passages
from tests.cases import noisy
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


CAUSAL = Verdict(True, "as planted")


def made(documents: int = 40, *, seed: int = 0, vocabulary: int = 90) -> Passages:
    """Passages of several lengths, one or two of each document."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for document in range(documents):
        for length in torch.randint(3, 12, (1 + document % 2,), generator=generator).tolist():
            ids = torch.randint(vocabulary, (length,), generator=generator).tolist()
            rows.append(Passage(tuple(ids), 1, 4 * (length - 1), document))
    return Passages("made", 12, tuple(rows), vocabulary)


def leaky(seed: int = 0) -> lw.LoopedForCausalLM:
    spec = {"kind": "controller", "rank": 4, "style": 8, "pooling": "sequence", "leak_future": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return noisy("ouroboros-qwen2.5-3b-tiny", adapters=[spec], seed=seed).eval()


def by_hand(model: lw.LoopedForCausalLM, ids: tuple[int, ...], place: int, depth: int) -> float:
    """−log p of one token given what stands before it."""
    with torch.no_grad():
        logits = model(torch.tensor([ids[:place]]), depth=depth).logits[0, -1].double()
    return -float(logits.log_softmax(-1)[ids[place]])


@pytest.mark.long
@pytest.mark.parametrize("size", [1, *(pytest.param(more, marks=pytest.mark.slow) for more in (7, None))])
def test_the_loss_is_the_mean_of_each_tokens_own(size: int | None) -> None:
    model, text = noisy("ouroboros-qwen2.5-3b-tiny").eval(), made(6)
    report = held_out(model, text, depths=[1, 3], batch_size=size)
    for place, depth in enumerate([1, 3]):
        each = [[by_hand(model, row.ids, i, depth) for i in range(row.first, len(row.ids))] for row in text.rows]
        total, count = sum(map(sum, each)), sum(map(len, each))
        assert report.losses[place] == pytest.approx([sum(row) for row in each], rel=1e-5)
        assert report.loss[place] == pytest.approx(total / count, rel=1e-5)
        assert report.perplexity[place] == pytest.approx(math.exp(total / count), rel=1e-5)
        assert report.bits_per_byte[place] == pytest.approx(total / math.log(2) / (4 * count), rel=1e-5)
    assert report.targets == count and report.targets_of == tuple(map(len, each)) and report.bytes == 4 * count


def test_the_mode_comes_back_and_a_dense_model_has_one_depth() -> None:
    model = noisy("stars-addition-tiny", vocab_size=96, core_layers=0, prelude_layers=1).train()
    assert held_out(model, made(4)).depth == (1,) and model.training
    with pytest.raises(ValueError, match="dense model"):
        held_out(model, made(4), depths=[2])


def test_intervals_are_over_documents_or_the_passages_of_one() -> None:
    model = noisy("stars-addition-tiny", vocab_size=96).eval()
    many, few = (held_out(model, made(n), depths=[1], causality=CAUSAL) for n in (40, 8))
    assert (many.unit, many.documents, many.passages) == ("document", 40, 60) and (few.unit, few.passages) == ("document", 12)
    assert "intervals over 40 documents" in str(many.table().title)
    one = held_out(model, replace(made(8), rows=made(8).rows[:1] * 3), depths=[1], causality=CAUSAL)
    assert (one.unit, one.at(1)[2].tolist()) == ("passage", [0, 1, 2]) and "intervals over 3 passages" in str(one.table().title)
    losses, targets, units = many.at(1)
    assert units.tolist() == list(many.document_of)
    assert many.loss_low[0] < many.loss[0] < many.loss_high[0]
    assert float(losses.sum() / targets.sum()) == pytest.approx(many.loss[0], rel=1e-5)


# models that see the future


@pytest.mark.long
def test_a_planted_leak_is_refused_before_any_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    model = leaky()
    monkeypatch.setattr(heldout, "readings", lambda *a: pytest.fail("a loss was computed"))
    with pytest.raises(ValueError, match=r"not causal, so its loss is not a likelihood.*--teacher-forced.*--honest N"):
        held_out(model, made(4), depths=[2])
    assert causality_of(model).passed is False and causality_of(noisy("ouroboros-qwen2.5-3b-tiny")).passed is True
    assert need_likelihood(model, marked=True).passed is False


@pytest.mark.long
def test_a_marked_report_says_so_everywhere(tmp_path: Path) -> None:
    report = held_out(leaky(), made(4), depths=[2], marked=True)
    assert not report.likelihood and report.note == NOT_A_LIKELIHOOD
    assert NOT_A_LIKELIHOOD in report.save(tmp_path / "r.json").read_text()
    from rich.console import Console

    console = Console(width=200, record=True, file=(tmp_path / "out").open("w"))
    console.print(report.table())
    assert console.export_text().count(NOT_A_LIKELIHOOD) == 2
    sound = held_out(noisy("ouroboros-qwen2.5-3b-tiny"), made(4), depths=[2])
    assert sound.note == "" and NOT_A_LIKELIHOOD not in sound.save(tmp_path / "s.json").read_text()


def test_a_narrow_window_loses_no_digit_and_a_notebook_is_not_flooded(tmp_path: Path) -> None:
    from rich.console import Console

    report = held_out(noisy("ouroboros-qwen2.5-3b-tiny"), made(4), depths=[2], honest=3)
    console = Console(width=80, record=True, file=(tmp_path / "out").open("w"))
    console.print(report.table(80))
    text = console.export_text()
    assert "…" not in text and report.honest is not None
    for column in (report.loss, report.loss_low, report.bits_per_byte, report.honest.loss_high):
        assert f"{column[0]:.4g}" in text
    assert len(repr(report)) < 120 and f"{report.loss[0]:.4g} at depth 2" in repr(report)


@pytest.mark.long
def test_the_honest_score_of_a_leaking_model_is_that_of_its_prefixes() -> None:
    model, text = leaky(), made(3)
    report = held_out(model, text, depths=[1, 3], honest=10_000)
    assert report.honest is not None and report.honest.positions == report.targets
    each = [by_hand(model, row.ids, i, 3) for row in text.rows for i in range(row.first, len(row.ids))]
    assert report.honest.loss[1] == pytest.approx(sum(each) / len(each), rel=1e-5)
    assert report.honest.forced[1] == pytest.approx(report.loss[1], rel=1e-5)
    assert report.honest.gain[1] == pytest.approx(report.honest.loss[1] - report.honest.forced[1], abs=2e-5)
    assert abs(report.honest.gain[1]) > 1e-4


def test_the_honest_score_of_a_causal_model_is_its_one_pass() -> None:
    report = held_out(noisy("ouroboros-qwen2.5-3b-tiny"), made(8), depths=[2], honest=20)
    assert report.honest is not None and report.honest.positions == 20 and abs(report.honest.gain[0]) < 1e-5
    assert report.honest.loss_low[0] < report.honest.loss[0] < report.honest.loss_high[0]


def test_a_prefix_does_not_hold_what_it_is_to_predict() -> None:
    batch = prefix_batch([(5, 6, 7), (8, 9)])
    assert batch.input_ids.tolist() == [[5, 6, 0], [8, 0, 0]] and batch.attention_mask.tolist() == [[1, 1, 0], [1, 0, 0]]
    assert batch.labels.tolist() == [[-100, -100, 7], [-100, 9, -100]]


# files and faults


@pytest.mark.long
def test_reports_come_back_from_their_files(tmp_path: Path) -> None:
    for honest in (0, 5):
        report = held_out(noisy("ouroboros-qwen2.5-3b-tiny"), made(8), depths=[1, 2], honest=honest)
        assert HeldOut.load(report.save(tmp_path / "r.json")) == report
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(ValueError, match="not a report of held-out loss"):
        HeldOut.load(tmp_path / "r.json")
    with pytest.raises(ValueError, match="depth 5 was not measured; allowed: 1, 2"):
        report.at(5)


@pytest.mark.long
def test_ids_that_the_model_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="its ids go up to 199, the model has 96 tokens"):
        held_out(noisy("ouroboros-qwen2.5-3b-tiny"), made(2, vocabulary=200), depths=[1])
    for size in (-1, 0):
        with pytest.raises(ValueError, match=rf"batch must be a whole number >= 1 \(got {size}\)"):
            held_out(noisy("ouroboros-qwen2.5-3b-tiny"), made(2), depths=[1], batch_size=size)
