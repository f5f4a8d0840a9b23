"""A folder cut into parts: the same files again, and nothing of parts that are missing, changed or of another folder."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from experiments.sft.__main__ import main
from experiments.sft.parts import BYTES, archive, join, split


def folder_with(path: Path, seed: int = 0) -> Path:
    """A folder with numbers that no compression makes small, and a text within a `.gz` file."""
    (path / "packed").mkdir(parents=True)
    (path / "packed" / "blocks").write_bytes(random.Random(seed).randbytes(5_000))
    with gzip.open(path / "text.jsonl.gz", "wt") as file:
        file.write('{"text": "one"}\n')
    return path


@pytest.mark.parametrize("most", [700, 100_000])
def test_parts_are_small_enough_and_make_the_folder_again_in_any_order(tmp_path: Path, most: int) -> None:
    source = folder_with(tmp_path / "source")
    parts = split(source, tmp_path / "parts", most)
    assert len(parts) == -(-len(archive(source)) // most)
    assert all((part / BYTES).stat().st_size <= most for part in parts)
    out = join(parts[::-1], tmp_path / "again")
    assert (out / "packed" / "blocks").read_bytes() == (source / "packed" / "blocks").read_bytes()
    assert (out / "text.jsonl").read_text() == '{"text": "one"}\n' and not (out / "text.jsonl.gz").exists()


def test_a_part_that_is_missing_changed_or_of_another_folder_is_named(tmp_path: Path) -> None:
    parts = split(folder_with(tmp_path / "source"), tmp_path / "parts", 2_000)
    other = split(folder_with(tmp_path / "other", 1), tmp_path / "others", 2_000)
    with pytest.raises(ValueError, match=r"^join: missing of 3 parts: 1$"):
        join([parts[0], parts[2]], tmp_path / "out")
    with pytest.raises(ValueError, match="of 2 archives; allowed: all of one"):
        join([parts[0], parts[1], other[2]], tmp_path / "out")
    changed = bytearray((parts[1] / BYTES).read_bytes())
    changed[100] ^= 1
    (parts[1] / BYTES).write_bytes(changed)
    with pytest.raises(ValueError, match="SHA-256 of the parts together"):
        join(parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_cuts_and_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, parts, out = folder_with(tmp_path / "source"), tmp_path / "parts", tmp_path / "out"
    for words in (["split", source, parts, "--bytes", 3_000], ["join", parts / "1", parts / "0", out]):
        monkeypatch.setattr("sys.argv", ["sft", *map(str, words)])
        main()
    assert (out / "packed" / "blocks").read_bytes() == (source / "packed" / "blocks").read_bytes()


def test_what_cannot_be_cut_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no file"):
        split(tmp_path, tmp_path / "parts", 10)
    with pytest.raises(ValueError, match="most is 0"):
        split(folder_with(tmp_path / "source"), tmp_path / "parts", 0)


def test_a_file_beside_its_own_compressed_form_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "valid.jsonl").write_text("a")
    (tmp_path / "valid.jsonl.gz").write_bytes(gzip.compress(b"b"))
    with pytest.raises(ValueError, match=r"split: valid\.jsonl and valid\.jsonl\.gz in .*; allowed: one of them"):
        archive(tmp_path)
