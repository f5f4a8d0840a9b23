"""Records: every form of file, and faults that name the file and the line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from loopwright.data.records import Files, Part, text_field


def lines(path: Path, *records: object) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


def texts(files: Files, field: str = "text") -> list[str | None]:
    return [text_field(record, field) for record in files]


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
    assert [fields["text"] for _, fields in Part(files, 1, 3)] == ["1", "2", "3"]
    assert [fields["text"] for _, fields in Part(files, 4)] == ["4", "5"]
    assert len({Part(files, 1, 3).fingerprint(), Part(files, 1).fingerprint(), Part(files, 0, 3).fingerprint()}) == 3


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
    ("x.jsonl", b'{"text": "a"}\n{"body": "b", "id": 1}\n', "x.jsonl:2: no field 'text'; it has: body, id"),
    ("x.jsonl", b'{"text": "a"}\n{"text": 7}\n', "x.jsonl:2: field 'text' holds int; allowed: text"),
    ("x.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', r"x.jsonl: cannot be read after line 0 \(.*invalid start byte"),
    ("x.txt", b"\xff\xfe", r"x.txt: cannot be read after line 0 \(.*invalid start byte"),
    ("x.txt.gz", b"no gzip", r"x.txt.gz: cannot be read after line 0 \(Not a gzipped file"),
    (
        "x.jsonl.gz",
        gzip.compress(b'{"text": "a"}\n' * 9999)[:-9],
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
    for read in (Files.fingerprint, texts):
        with pytest.raises(ValueError, match=r"folder.txt: cannot be read.*\(Is a directory\)"):
            read(Files(str(tmp_path / "folder.txt")))
