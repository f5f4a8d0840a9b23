"""Which documents of a held-out text are of which source, and a row read on one source alone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from experiments.ouroboros.plan import TOKEN
from experiments.ouroboros.sources import main, sources
from experiments.templates import ouroboros
from loopwright.data.tokenizer import Tokenizer
from loopwright.evaluation.text import read_passages
from tests.data.words import save_words


def test_documents_of_the_drawn_passages_are_told_by_source(tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl.gz"
    with gzip.open(text, "wt") as out:
        out.writelines(json.dumps({"text": "low lower lowest " * 9, "source": f"book {i % 2}"}) + "\n" for i in range(6))
    words = save_words(tmp_path / "words")
    every = sources(text, str(words), context=8, passages=1000)
    assert every["documents"] == {"book 0": [0, 2, 4], "book 1": [1, 3, 5]}
    drawn = read_passages("text", text, Tokenizer(words), 8).drawn(3)
    few = sources(text, str(words), context=8, passages=3)
    assert few["fingerprint"] == drawn.fingerprint != every["fingerprint"]
    assert sorted(place for places in few["documents"].values() for place in places) == sorted({row.document for row in drawn.rows})


def test_lines_without_text_have_no_number(tmp_path: Path) -> None:
    """A blank line, an empty text and one of blanks are no document: those behind them are numbered as the passages are."""
    rows = ['{"text": "low lower", "source": "a"}', "", '{"text": "", "source": "b"}', '{"text": "lowest low", "source": "c"}']
    rows += ['{"text": "  "}', '{"text": null, "source": "b"}', '{"text": "lower low low", "source": "d"}']
    text = tmp_path / "text.jsonl.gz"
    text.write_bytes(gzip.compress("\n".join(rows).encode()))
    words = str(save_words(tmp_path / "words"))
    assert sources(text, words, context=8, passages=1000)["documents"] == {"a": [0], "c": [1], "d": [2]}
    drawn = sources(text, words, context=8, passages=1)["documents"]
    assert drawn == {"acd"[place]: [place] for place in [read_passages("", text, Tokenizer(words), 8).drawn(1).rows[0].document]}


@pytest.mark.parametrize(("row", "what"), [({}, "nothing"), ({"source": None}, "NoneType"), ({"source": ["a"]}, "list")])
def test_a_document_without_a_source_is_told_in_a_line(
    row: dict[str, object], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, out = tmp_path / "text.jsonl.gz", tmp_path / "out.json"
    rows = [{"text": "low lower", "source": "a"}, {"text": "lowest"} | row]
    text.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    monkeypatch.setattr("sys.argv", ["sources", str(out), "--source", str(save_words(tmp_path / "words")), "--text", str(text)])
    with pytest.raises(SystemExit, match=rf"^{text}:2: a document needs a field 'source' with .* \(got {what}\)$"):
        main()
    assert not out.exists()


def test_a_tokenizer_that_is_not_there_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["sources", str(tmp_path / "out.json"), "--source", str(tmp_path / "none"), "--text", str(tmp_path / "text.jsonl.gz")]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit, match="there is no folder"):
        main()
    assert not (tmp_path / "out.json").exists()


def test_a_row_on_one_source_has_its_documents_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ouroboros.own()[TOKEN][0]
    whole, part = (each["texts"][ouroboros.BOOK_IN] for each in (run, *ouroboros.every_on_book([run])))
    _, numbers = ouroboros.book_documents()
    assert set(part["document_of"]) == numbers and part["targets"] == sum(part["targets_of"]) < whole["targets"]
    places = [place for place, document in enumerate(whole["document_of"]) if document in numbers]
    assert part["losses"][2] == tuple(whole["losses"][2][place] for place in places)
    assert part["loss"][2] == pytest.approx(sum(part["losses"][2]) / part["targets"])
    monkeypatch.setattr(ouroboros, "book_documents", lambda: ("other", numbers))
    with pytest.raises(ValueError, match="other passages"):
        ouroboros.every_on_book([run])
