"""Prompts: each source gives its texts, a draw is a pure function of its seed, and every mistake is one line."""

import gzip
import json

import pytest

from loopwright.analysis.study import DATA, read_prompts


def write(path, *rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def test_text_files_and_sets(tmp_path):
    for text in ("Hello there.", "Read the file a.txt", "a " * 3000):
        assert read_prompts(text) == [text]
    (tmp_path / "a.txt").write_text("one\n\n two \nthree")
    assert read_prompts(str(tmp_path / "a.txt")) == ["one", " two ", "three"]
    rows = write(tmp_path / "b.jsonl", {"text": "t", "id": 1}, {"prompt": "p", "text": "t"}, {"tokens": [1, 2]}, {"text": ""})
    assert read_prompts(rows) == ["t", "p", [1, 2]]
    write(tmp_path / "gsm8k_test.jsonl.gz", {"question": "q", "answer": "a"})
    write(tmp_path / "hellaswag_val.jsonl", {"ctx": "c", "endings": []})
    assert read_prompts("gsm8k", data=str(tmp_path)) == ["q"]
    assert read_prompts("hellaswag", environment={DATA: str(tmp_path)}) == ["c"]


def test_a_draw_is_a_pure_function_of_its_seed_and_keeps_the_order(tmp_path):
    source = write(tmp_path / "x.jsonl", *({"text": str(i)} for i in range(50)))
    drawn = read_prompts(source, examples=10, seed=1)
    assert drawn == read_prompts(source, examples=10, seed=1) != read_prompts(source, examples=10, seed=2)
    assert drawn == sorted(drawn, key=int) and len(set(drawn)) == 10
    assert len(read_prompts(source, examples=99)) == 50


@pytest.mark.parametrize(
    ("source", "data", "words"),
    [
        ("  ", None, "an empty text"),
        ("gsm8k", None, "give --data FOLDER"),
        ("gsm8k", "nowhere", "holds no gsm8k"),
        ("gsm8", None, "did you mean 'gsm8k'"),
        ("missing.jsonl", None, "there is no such file"),
        ("empty.txt", None, "holds no prompt"),
        ("fields.jsonl", None, "no field 'text'"),
        ("tokens.jsonl", None, "no list of token ids"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, source, data, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n \n")
    write(tmp_path / "fields.jsonl", {"body": "x"})
    write(tmp_path / "tokens.jsonl", {"tokens": [1, "a"]})
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        read_prompts(source, data=data, environment={})
    assert "\n" not in str(caught.value)


def test_a_file_is_a_file_whatever_its_name_holds(tmp_path):
    place = tmp_path / "two words"
    place.mkdir()
    (place / "my prompts.txt").write_text("one\ntwo\n")
    assert read_prompts(str(place / "my prompts.txt")) == ["one", "two"]
    for text in ("read notes.txt aloud", "word " * 2000, "a\0b c", "~nobody at all"):
        assert read_prompts(text) == [text]


def test_no_examples_are_refused():
    with pytest.raises(ValueError, match="examples: 0"):
        read_prompts("x", examples=0)


def test_a_user_that_is_not_there_is_named():
    with pytest.raises(FileNotFoundError, match="names a user who is not here"):
        read_prompts("~nosuchuser/x.txt")
