"""Results are named by what they hold, tried before the work, and never replaced by less."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli.results import file_stem, how_made, keep_more, need_writable


@dataclass
class Kept:
    depth: tuple[int, ...] = (1, 2, 4)
    source: str = "runs/a/checkpoints/00000002"
    rows: int = 1000
    dtype: str = "float32"


def test_a_name_says_what_was_chosen_by_hand() -> None:
    assert file_stem("test") == file_stem("test", checkpoint="last") == "test"
    assert file_stem("test", rows=3) == "test-rows-3"
    assert file_stem("test", rows=3, checkpoint="40", data="my/other.yaml") == "test-other-update-40-rows-3"
    assert file_stem("test", checkpoint="best") == "test-best"
    assert file_stem("", rows=3) == "rows-3" and file_stem("") == ""


def test_a_page_names_the_program_and_no_folder_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/place/loopwright/__main__.py", "analyze", "/opt/place/model", "--prompts", "two words"])
    assert dict(how_made())["command"] == "loopwright analyze model --prompts 'two words'"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_writable("evaluate", tmp_path / "new" / "eval", tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"out: .*file is a file; allowed: a folder"):
        need_writable("evaluate", tmp_path / "file" / "eval")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    if os.geteuid() == 0:  # whom no mode stops
        monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    with pytest.raises(OSError, match=r"evaluate: cannot write into .*eval \(permission denied\); give another folder with --out"):
        need_writable("evaluate", closed / "eval")


def refused(*, dir: Path) -> Any:
    raise PermissionError(13, "Permission denied", str(dir))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"depths": [1, 2]}, "1 of its 3 depths are not asked for now"),
        ({"facts": {"rows": 3}}, "its rows is 1,000, now 3"),
        ({"facts": {"dtype": "bfloat16"}}, "its dtype is float32, now bfloat16"),
        ({"source": "runs/b"}, "they are of .*runs/a"),
    ],
)
def test_other_results_are_kept_unless_it_is_asked(tmp_path: Path, asked: dict[str, Any], reason: str) -> None:
    path = tmp_path / "test.json"
    given = {"depths": [1, 2, 4, 8], "facts": {}} | asked
    keep_more(path, lambda _: Kept(), **given)  # nothing stands there
    path.touch()
    with pytest.raises(ValueError, match=rf"test.json: holds other results \({reason}\); --overwrite replaces them, --out FOLDER"):
        keep_more(path, lambda _: Kept(), **given)
    keep_more(path, lambda _: Kept(), **given, overwrite=True)


def test_the_same_or_more_replaces_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    path.touch()
    facts = {"rows": 1000, "dtype": "float32"}
    keep_more(path, lambda _: Kept(), depths=[1, 2, 4, 8], facts=facts, source="runs/a/checkpoints/00000009")
    keep_more(path, lambda _: Kept(source="", dtype=""), depths=[1, 2, 4], facts=facts, source="runs/b")  # of an older version


def test_a_file_that_is_no_report_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    path.touch()

    def read(path: Path) -> Kept:
        raise ValueError("not a report")

    with pytest.raises(ValueError, match=r"test.json: holds something else; --overwrite replaces it, --out FOLDER keeps both"):
        keep_more(path, read, depths=[1], facts={})
