"""Folders that are written whole: exchanged in one step, or in two with a way back; leftovers of dead processes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from loopwright.storage import folder as folder_module
from loopwright.storage.files import DiskFull
from loopwright.storage.folder import clear_leftovers, exchange, settled, temporary_folder, whole_folder
from loopwright.storage.manifest import MANIFEST, Manifest, verify
from tests.storage.cases import failing, tree


def test_a_folder_appears_whole_with_its_manifest(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "f", needed=3, kept="nothing") as made:
        (made / "a").write_text("one")
        (made / "a").chmod(0o600)
        assert not (tmp_path / "f").exists()
    assert len({path.stat().st_mode for path in (tmp_path / "f").iterdir()}) == 1  # who reads the manifest reads the rest
    assert sorted(tree(tmp_path)) == ["f/a", f"f/{MANIFEST}"] and verify(tmp_path / "f") == []
    with whole_folder(tmp_path / "f", needed=3, kept="nothing") as made:
        (made / "b").write_text("two")
    assert sorted(tree(tmp_path)) == ["f/b", f"f/{MANIFEST}"] and verify(tmp_path / "f") == []


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), RuntimeError("I/O error: No space left (os error 28)")])
def test_a_folder_that_does_not_fit_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(DiskFull, match=r"the disk is full.*; the others are unharmed"):
        write_folder(tmp_path / "f", error)
    assert list(tmp_path.iterdir()) == []


def write_folder(path: Path, error: Exception) -> None:
    with whole_folder(path, needed=0, kept="the others are unharmed") as made:
        (made / "a").write_text("one")
        raise error


def test_a_folder_larger_than_the_disk_is_refused_before_it_is_begun(tmp_path: Path) -> None:
    place = whole_folder(tmp_path / "f", needed=10**15, kept="all is well")
    with pytest.raises(DiskFull, match=r"1e\+03 TB needed, .* free\); all is well"):
        place.__enter__()
    assert list(tmp_path.iterdir()) == []


def test_other_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(KeyError), whole_folder(tmp_path / "f", needed=0, kept=""):
        raise KeyError("x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with whole_folder(tmp_path / "f", needed=3, kept="") as made:
        (made / "a").write_text("one")
    monkeypatch.setattr(folder_module, "exchange", lambda one, other: False)
    rename, calls = os.rename, iter([rename_ok := os.rename, failing(OSError(errno.EIO, "broken")), rename_ok])
    monkeypatch.setattr(os, "rename", lambda *names: next(calls, rename)(*names))
    with pytest.raises(OSError, match="broken"), whole_folder(tmp_path / "f", needed=3, kept="") as made:
        (made / "b").write_text("two")
    assert sorted(tree(tmp_path)) == ["f/a", f"f/{MANIFEST}"]


def test_leftovers_are_cleared_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".x.12345678.tmp").mkdir()
    (tmp_path / ".x.12345678.tmp" / "a").write_text("")
    theirs = [".lock", ".notes.tmp", ".x.old.tmp/a", "z.tmp"]
    (tmp_path / ".x.old.tmp").mkdir()
    for name in (".y.0a1b2c3d.tmp", *theirs):
        (tmp_path / name).write_text("")
    clear_leftovers(tmp_path)
    assert sorted(tree(tmp_path)) == theirs
    with temporary_folder(tmp_path / "x"):
        pass
    assert sorted(tree(tmp_path)) == theirs
    clear_leftovers(tmp_path / "absent")


def written(path: Path, **files: str) -> None:
    with whole_folder(path, needed=0, kept="") as made:
        for name, text in files.items():
            (made / name).write_text(text)


def test_two_folders_change_places_in_one_step(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name)
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this disk cannot exchange folders")
    assert tree(tmp_path) == {"a/b": b"b", "b/a": b"a"}
    with pytest.raises(OSError, match="No such file"):
        exchange(tmp_path / "a", tmp_path / "absent")


def test_a_system_that_cannot_exchange_renames_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "exchange", lambda one, other: False)
    written(tmp_path / "f", a="one")
    written(tmp_path / "f", b="two")
    assert sorted(tree(tmp_path)) == ["f/b", f"f/{MANIFEST}"]


def test_what_was_being_replaced_is_found_and_put_back(tmp_path: Path) -> None:
    written(tmp_path / "f", a="one")
    (tmp_path / "f").rename(tmp_path / "f.replaced")  # killed between the two renames
    assert settled(tmp_path / "f") == tmp_path / "f.replaced" and settled(tmp_path / "g") == tmp_path / "g"
    with pytest.raises(KeyError), whole_folder(tmp_path / "f", needed=0, kept=""):
        raise KeyError("the next write fails too")
    assert sorted(tree(tmp_path)) == ["f/a", f"f/{MANIFEST}"] and settled(tmp_path / "f") == tmp_path / "f"
    (tmp_path / "f.replaced").mkdir()  # killed after them
    written(tmp_path / "f", b="two")
    assert sorted(tree(tmp_path)) == ["f/b", f"f/{MANIFEST}"]


def test_what_is_carried_over_stands_in_the_new_folder_with_what_was_said_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    written(folder, config="one", words="mine", readme="old")
    (folder / "words").write_text("hurt")  # damage stays damage: the manifest says what was written
    (folder / "added").write_text("later")
    (folder / "sub").mkdir()
    (folder / "sub" / "x").write_text("deep")
    os.symlink("nowhere", folder / "link")
    before = Manifest.of(folder)
    with whole_folder(folder, needed=0, kept="", carry=lambda name: name != "config") as made:
        (made / "readme").write_text("new")
    found = {name: text.decode() for name, text in tree(folder).items() if name != MANIFEST}
    assert found == {"readme": "new", "words": "hurt", "added": "later", "sub/x": "deep"} and (folder / "link").is_symlink()
    after = Manifest.of(folder)
    assert before is not None and after is not None and set(after.entries) == {"readme", "words"}
    assert after.entries["words"] == before.entries["words"]


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    dead = tmp_path / ".f.12345678.tmp"
    dead.mkdir()
    with temporary_folder(tmp_path / "f") as mine:
        assert not dead.exists()
        with temporary_folder(tmp_path / "f") as other:  # another writer of the same folder
            clear_leftovers(tmp_path)
            assert mine.is_dir() and other.is_dir() and mine != other
    assert list(tmp_path.iterdir()) == []
