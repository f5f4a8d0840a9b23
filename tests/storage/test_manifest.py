"""Manifests: every damage is named."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from loopwright.storage import manifest as manifest_module
from loopwright.storage.files import read_json
from loopwright.storage.manifest import MANIFEST, Damaged, Manifest, entries_of, verify, write_entries


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "sub" / "ü.txt").write_text("text")
    write_entries(tmp_path, entries_of(tmp_path))
    return tmp_path


def test_a_manifest_holds_size_and_sum(folder: Path) -> None:
    sha = "40aff2e9d2d8922e47afd4648e6967497158785fbd1da870e7110266bf944880"
    assert read_json(folder / MANIFEST)["files"]["a.bin"] == {"bytes": 256, "sha256": sha}
    assert verify(folder) == []
    (folder / ".DS_Store").write_text("the file system's own")
    assert verify(folder) == []


def test_each_kind_of_damage_is_named(folder: Path) -> None:
    cases: list[tuple[str, bytes | None, str]] = [
        ("a.bin", b"\x01" + bytes(range(1, 256)), "a.bin: its content changed (sha256 differs)"),
        ("a.bin", bytes(range(255)), "a.bin: 255 bytes where the manifest says 256"),
        ("a.bin", None, "a.bin: missing"),
        ("sub/extra", b"", "sub/extra: not in the manifest"),
        (MANIFEST, None, "manifest.json: missing"),
        (MANIFEST, b'{"files": {', "manifest.json: not readable as JSON"),
        (MANIFEST, b"[]", "manifest.json: holds a list; allowed: a JSON object"),
        (MANIFEST, b"[" * 100_000, "manifest.json: nested more than 100 deep"),
        (MANIFEST, b"{}", "manifest.json: not in the form in which it was written"),
        (MANIFEST, (folder / MANIFEST).read_bytes() + b"\n", "manifest.json: not in the form in which it was written"),
    ]
    for name, content, message in cases:
        path = folder / name
        before = path.read_bytes() if path.exists() else None
        path.unlink() if content is None else path.write_bytes(content)
        problems = verify(folder)
        assert len(problems) == 1 and message in problems[0], (name, problems)
        path.unlink(missing_ok=True) if before is None else path.write_bytes(before)
    assert verify(folder) == []


def test_a_link_or_pipe_in_the_place_of_a_file_is_not_followed(folder: Path) -> None:
    (folder / "a.bin").rename(folder.parent / "moved")
    (folder / "a.bin").symlink_to(folder.parent / "moved")
    assert [p.split(": ")[1] for p in verify(folder)] == ["not a plain file"]
    (folder / "a.bin").unlink()
    os.mkfifo(folder / "a.bin")
    assert [p.split(": ")[1] for p in verify(folder)] == ["not a plain file"]


def test_one_file_is_checked_alone_and_links_are_followed(folder: Path) -> None:
    manifest = Manifest.of(folder)
    assert manifest is not None
    (folder / "sub" / "ü.txt").write_text("tex?")
    (folder / "a.bin").rename(folder.parent / "blob")  # as the hub's cache keeps files
    (folder / "a.bin").symlink_to(folder.parent / "blob")
    manifest.check("a.bin")
    manifest.check_size("sub/ü.txt")
    with pytest.raises(Damaged, match="its content changed"):
        manifest.check("sub/ü.txt")
    with pytest.raises(Damaged, match="other: not in the manifest"):
        manifest.check("other")


def test_a_folder_without_a_manifest_has_none(tmp_path: Path) -> None:
    assert Manifest.of(tmp_path) is None
    (tmp_path / MANIFEST).symlink_to("nowhere")
    with pytest.raises(Damaged, match=r"there is no manifest.json"):
        Manifest.of(tmp_path)


def test_a_large_file_is_hashed_in_blocks_and_each_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "BLOCK", 100)
    content = bytes(range(256)) * 2
    (tmp_path / "large").write_bytes(content)
    (tmp_path / "small").write_bytes(content[:100])
    write_entries(tmp_path, entries_of(tmp_path))
    blocks = [hashlib.sha256(content[start : start + 100]).digest() for start in range(0, 512, 100)]
    expected = hashlib.sha256(b"".join(blocks)).hexdigest()
    assert read_json(tmp_path / MANIFEST)["files"] == {
        "large": {"bytes": 512, "blocks": expected},
        "small": {"bytes": 100, "sha256": hashlib.sha256(content[:100]).hexdigest()},
    }
    assert verify(tmp_path) == []
    for place in (0, 99, 100, 250, 511):
        (tmp_path / "large").write_bytes(content[:place] + b"x" + content[place + 1 :])
        assert len(verify(tmp_path)) == 1, place


def test_one_sum_of_a_large_file_in_an_older_manifest_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "BLOCK", 100)
    assert verify(folder) == []
    (folder / "a.bin").write_bytes(b"x" + bytes(range(1, 256)))
    assert len(verify(folder)) == 1
