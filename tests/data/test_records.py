"""Records: every form of file, and faults that name the file and the line."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from loopwright.data import records
from loopwright.data.records import FilePart, Files, drawn_places, text_field


def lines(path: Path, *records: object) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


def save(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def texts(files: Files, field: str = "text") -> list[str | None]:
    return [text_field(record, field) for record in files]


def test_text_is_that_of_the_file_to_the_byte(tmp_path: Path) -> None:
    """Line ends stay; a byte-order mark says how the file is written and is no text of it."""
    mark, text = b"\xef\xbb\xbf", b"one\r\ntwo\r\n\r\nthree\rfour\n"
    for name, content in (("a.txt", text), ("b.txt", mark + text), ("c.txt.gz", gzip.compress(mark + text, mtime=0))):
        (tmp_path / name).write_bytes(content)
        assert texts(Files(str(tmp_path / name))) == [text.decode()], name
        for separator in ("\r\n\r\n", "\n\n"):  # as it is written, or as the file ends its lines
            assert texts(Files(str(tmp_path / name), separator=separator)) == ["one\r\ntwo", "three\rfour\n"], name
    (tmp_path / "d.jsonl").write_bytes(mark + b'{"text": "x\\r\\n"}\r\n\r\n{"text":\r"y"}\r\n')
    assert texts(Files(str(tmp_path / "d.jsonl"))) == ["x\r\n", "y"]


def test_patterns_and_forms(tmp_path: Path) -> None:
    lines(tmp_path / "b-1.jsonl", {"text": "one"}, {"text": "two", "id": 3})
    lines(tmp_path / "a-2.jsonl.gz", {"text": "three"})
    lines(tmp_path / "a-1.jsonl.gz", {"text": "zero"}, {"text": None}, {"text": " \n"})
    (tmp_path / "c.txt").write_text("four\nfive\n\nsix")
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress("sieben ä".encode()))
    assert texts(Files(str(tmp_path / "*-*.jsonl*"))) == ["zero", None, None, "three", "one", "two"]
    assert texts(Files([str(tmp_path / "c.txt"), str(tmp_path / "d.txt.gz")])) == ["four\nfive\n\nsix", "sieben ä"]
    assert texts(Files(str(tmp_path / "c.txt"), field="story", separator="\n\n"), "story") == ["four\nfive", "six"]
    (tmp_path / "e.jsonl").write_text('{"text": "x"}\n\n{"text": "y"}')
    assert texts(Files(str(tmp_path / "e.jsonl"))) == ["x", "y"]


def test_parts(tmp_path: Path) -> None:
    files = Files(str(lines(tmp_path / "x.jsonl", *({"text": str(i)} for i in range(6)))))
    assert [fields["text"] for _, fields in FilePart(files, 1, 3)] == ["1", "2", "3"]
    assert [fields["text"] for _, fields in FilePart(files, 4)] == ["4", "5"]
    assert len({FilePart(files, 1, 3).fingerprint(), FilePart(files, 1).fingerprint(), FilePart(files, 0, 3).fingerprint()}) == 3


def test_a_fingerprint_is_of_contents_in_their_order(tmp_path: Path) -> None:
    a, b = lines(tmp_path / "a.jsonl", {"text": "one"}), lines(tmp_path / "b.jsonl", {"text": "two"})
    first = Files([str(a), str(b)]).fingerprint()
    assert Files([str(b), str(a)]).fingerprint() != first != Files([str(a), str(b)], separator="x").fingerprint()
    a.rename(tmp_path / "z.jsonl")
    assert Files([str(tmp_path / "z.jsonl"), str(b)]).fingerprint() == first
    lines(b, {"text": "tw0"})
    assert Files([str(tmp_path / "z.jsonl"), str(b)]).fingerprint() != first


BAD: list[tuple[str, bytes, str]] = [
    ("x.jsonl", b'{"text": "a"}\n{"text": \n', r"x.jsonl:2: not valid JSON \(Expecting value at column"),
    ("x.jsonl", b'{"text": "a"}\n["b"]\n', "x.jsonl:2: a list; allowed: an object with fields on each line"),
    ("x.jsonl", b'{"text": "a"}\n{"body": "b", "id": 1}\n', "x.jsonl:2: no field 'text'; it has: body, id; name the one"),
    ("x.jsonl", b'{"text": "a"}\n{"text": 7}\n', "x.jsonl:2: field 'text' holds int; allowed: text"),
    (
        "x.jsonl",
        b'{"text": "a"}\n{"text": "\xff"}\n',
        r"x.jsonl: cannot be read after line 0 \(.*invalid start byte\); save it",
    ),
    ("x.txt", b"\xff\xfe", r"x.txt: cannot be read after line 0 \(.*invalid start byte\); save it"),
    ("x.txt.gz", b"no gzip", r"x.txt.gz: cannot be read after line 0 \(Not a gzipped file"),
    (
        "x.jsonl.gz",
        gzip.compress(b'{"text": "a"}\n' * 9999, mtime=0)[:-9],
        r"x.jsonl.gz: cannot be read after line \d+ \(Compressed",
    ),
    ("x.csv", b"a,b", r"x.csv: not a file of records; allowed: .jsonl, .jsonl.gz, .txt, .txt.gz"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_faults_name_the_file_and_the_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        texts(Files(str(tmp_path / name)))
    assert "\n" not in str(caught.value)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data: no file matches '.*/nothing-\*.jsonl'"):
        Files(str(tmp_path / "nothing-*.jsonl"))
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")  # opening it would wait for ever
    (tmp_path / "endless.txt").symlink_to("/dev/zero")
    for name in ("folder.txt", "pipe.jsonl", "endless.txt"):
        with pytest.raises(ValueError, match=f"{name}: not a regular file$"):
            Files(str(tmp_path / name))
    files = Files(save(tmp_path / "gone.txt", "text"))
    (tmp_path / "gone.txt").unlink()
    for read in (Files.fingerprint, texts):
        with pytest.raises(ValueError, match=r"gone.txt: cannot be read.*\(No such file or directory\)"):
            read(files)


@pytest.mark.parametrize("unit", [b"0", b"\n", b'{"text": "--"}\n'])
@pytest.mark.parametrize("name", ["bomb.jsonl.gz", "bomb.txt.gz"])
def test_what_unpacks_to_far_more_than_text_would_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: bytes, name: str
) -> None:
    monkeypatch.setattr("loopwright.data.records.HARMLESS", 2**16)
    path = tmp_path / name
    path.write_bytes(gzip.compress(unit * (2**20 // len(unit)), 9))
    assert path.stat().st_size < 2**20 / 200
    with pytest.raises(ValueError, match=rf"{name}: cannot be read after line \d+ \(it unpacks to over [\d,]+ bytes, 200 times"):
        for _ in Files(str(path), separator="--"):
            pass


def test_a_record_is_bounded_and_a_corpus_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.data.records.LARGEST", 20)
    monkeypatch.setattr("loopwright.data.records.CHUNK", 8)
    lines = save(tmp_path / "a.jsonl", '{"text": "a"}\n' * 30)
    assert texts(Files(lines)) == ["a"] * 30
    with pytest.raises(ValueError, match=r"a.jsonl:2: a line of over 20 characters"):
        texts(Files(save(tmp_path / "a.jsonl", '{"text": "a"}\n' + '{"text": "' + "a" * 20 + '"}\n')))
    pieces = [f"piece {number}" for number in range(30)]
    assert texts(Files(save(tmp_path / "a.txt", "<end>".join(pieces)), separator="<end>")) == pieces
    with pytest.raises(ValueError, match=r"a.txt \(piece 2\): over 20 characters, and its separator is not found"):
        texts(Files(save(tmp_path / "a.txt", "one<end>" + "a" * 30), separator="<end>"))
    with pytest.raises(ValueError, match=r"a.txt \(piece 1\): over 20 characters, and it has no separator"):
        texts(Files(save(tmp_path / "a.txt", "a" * 30)))


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 100])
@pytest.mark.parametrize("separator", ["-", "--", "<end>", "aba"])
def test_pieces_are_those_of_the_whole_text_however_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, separator: str
) -> None:
    monkeypatch.setattr("loopwright.data.records.CHUNK", chunk)
    generator = random.Random(chunk)
    for _ in range(20):
        text = "".join(generator.choice(["a", "b", "-", separator, "<end"]) for _ in range(40))
        found = [record["text"] for _, record in Files(save(tmp_path / "a.txt", text), separator=separator)]
        assert found == text.split(separator)


def test_half_a_character_is_named_with_its_line(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jsonl", '{"text": "fine \\ud83d\\ude00"}\n{"text": "b\\ud83d"}\n')
    first, second = Files(path)
    assert text_field(first, "text") == "fine \U0001f600"
    with pytest.raises(ValueError, match=r"a.jsonl:2: character 2 is a lone surrogate \('\\ud83d'\), half of a character"):
        text_field(second, "text")


def test_deep_and_odd_json_is_one_line(tmp_path: Path) -> None:
    for text in ("[" * 100_000, '{"a": ' * 100_000, '{"a": ' + "9" * 5000 + "}"):
        with pytest.raises(ValueError, match=r"a.jsonl:1: not (valid|readable as) JSON \("):
            texts(Files(save(tmp_path / "a.jsonl", text)))


def test_a_part_drawn_by_lot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(str(lines(tmp_path / "x.jsonl", *({"text": str(i)} for i in range(40)))))
    part = FilePart(files, 5, 12, seed=3)
    found = [int(fields["text"]) for _, fields in part]
    assert found == sorted(set(found)) and len(found) == 12 and found[0] >= 5 and found != list(range(5, 17))
    assert [int(fields["text"]) for _, fields in part] == found == [int(f["text"]) for _, f in FilePart(files, 5, 12, seed=3)]
    assert [int(fields["text"]) for _, fields in FilePart(files, 5, 12, seed=4)] != found
    assert [int(fields["text"]) for _, fields in FilePart(files, 5, 99, seed=3)] == list(range(5, 40))
    parts = [FilePart(files, 5, 12), FilePart(files, 5, 12, seed=0), FilePart(files, 5, 12, seed=3)]
    assert len({each.fingerprint() for each in parts}) == 3
    monkeypatch.setattr(records, "DRAWS", 7)  # however many numbers are drawn at a time
    assert [int(fields["text"]) for _, fields in part] == found
    monkeypatch.setattr(Files, "count", lambda self: 400)
    with pytest.raises(ValueError, match="data: the source said that it has 400 records, and ended before them"):
        list(part)


def test_every_place_is_drawn_alike() -> None:
    counts = np.bincount(np.concatenate([drawn_places(10, 3, seed) for seed in range(3000)]), minlength=10)
    assert counts.sum() == 9000 and abs(counts - 900).max() < 4 * (3000 * 0.3 * 0.7) ** 0.5
