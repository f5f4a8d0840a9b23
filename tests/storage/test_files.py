"""Files that are written whole, and a full disk in one line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from loopwright.storage.files import DiskFull, clear_when_full, read_json, write_json, write_whole
from tests.storage.cases import failing, tree


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "one")
    write_whole(tmp_path / "a", b"two")
    assert tree(tmp_path) == {"a": b"two"}
    write_json(tmp_path / "b.json", {"x": [1, 2.5, None]})
    assert read_json(tmp_path / "b.json") == {"x": [1, 2.5, None]}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    write_whole(tmp_path / "a", "one")
    monkeypatch.setattr(os, call, failing(OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"):
        write_whole(tmp_path / "a", "two")
    assert tree(tmp_path) == {"a": b"one"}


def test_a_full_disk_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a", "one")
    monkeypatch.setattr(os, "fsync", failing(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(DiskFull) as caught:
        write_whole(tmp_path / "a", "x" * 2_500_000)
    assert str(caught.value) == f"{tmp_path / 'a'}: the disk is full (2.5 MB were to be written); what stood there is unharmed"
    assert tree(tmp_path) == {"a": b"one"}


def test_read_json(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no config.json"):
        read_json(tmp_path / "config.json")
    for content in (b"{", b"\xff\xfe", b""):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"not readable as JSON|is not UTF-8 text"):
            read_json(tmp_path / "config.json")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "link.json").symlink_to(tmp_path / "other.json")  # as in the hub's cache
    assert read_json(tmp_path / "link.json") == {"a": 1}
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="holds a list; allowed: a JSON object"):
        read_json(tmp_path / "config.json")


def test_a_plain_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "x.json", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"has 1,099,511,627,776 bytes; allowed: at most 67,108,864"):
        read_json(tmp_path / "x.json")


def test_what_is_not_plain_data_is_refused(tmp_path: Path) -> None:
    for data in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(ValueError, match="not plain data"):
            write_json(tmp_path / "x.json", data)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk quota is used up"),
        (OSError(errno.EFBIG, "File too large"), "a file would be larger than this process may write (ulimit -f)"),
        (RuntimeError("I/O error: File too large (os error 27)"), "a file would be larger than this process may write (ulimit -f)"),
        (Exception("No space left on device (os error 28)"), "the disk is full"),
    ],
)
def test_each_want_of_room_is_named(tmp_path: Path, error: Exception, reason: str) -> None:
    with pytest.raises(DiskFull) as caught, clear_when_full(tmp_path, 12, "the rest is unharmed"):
        raise error
    assert str(caught.value) == f"{tmp_path}: {reason} (12 bytes were to be written); the rest is unharmed"


def test_another_error_of_the_system_passes_through(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="os error 13"), clear_when_full(tmp_path, 12, "all"):
        raise RuntimeError("Permission denied (os error 13)")
