"""Files of the user's own parts: executed once, where the user names them; a mistake in one is a line that names its place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwright.registry import file_digests, import_file, import_files, missing_files, noted_files
from tests.own_kinds import own_kinds

COUNTS = "import builtins\nbuiltins.times_imported = getattr(builtins, 'times_imported', 0) + 1\n"


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    modules, path = dict(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    with own_kinds():
        yield
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.path[:] = path


def times() -> int:
    import builtins

    return getattr(builtins, "times_imported", 0)


def test_a_file_is_executed_once_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "its_own_parts.py").write_text(COUNTS + "WORD = 'here'\n")
    before = times()
    found = import_files(["its_own_parts.py", "./its_own_parts.py"])
    assert found == [tmp_path / "its_own_parts.py"] * 2 and times() == before + 1
    import its_own_parts  # type: ignore[import-not-found]

    assert its_own_parts.WORD == "here" and times() == before + 1
    assert noted_files() == ["its_own_parts.py"] and len(file_digests()["its_own_parts.py"]) == 12


def test_a_module_that_is_there_already_is_not_executed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_there.py").write_text(COUNTS)
    monkeypatch.syspath_prepend(tmp_path)
    before = times()
    import parts_there  # type: ignore[import-not-found]  # noqa: F401

    import_file("parts_there.py")
    assert times() == before + 1 and noted_files() == ["parts_there.py"]


def test_a_file_hides_no_package(tmp_path: Path) -> None:
    (tmp_path / "safetensors.py").write_text("WORD = 'mine'\n")
    (tmp_path / "wave.py").write_text("WORD = 'mine'\n")  # of the standard library, and not imported yet
    import_files(["safetensors.py", "wave.py"])
    import wave

    import safetensors

    assert safetensors.__name__ == "safetensors" and hasattr(safetensors, "safe_open") and hasattr(wave, "Wave_read")


def test_a_neighbour_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "its_neighbour.py").write_text("WORD = 'next door'\n")
    (tmp_path / "with_neighbour.py").write_text("import its_neighbour\nassert its_neighbour.WORD == 'next door'\n")
    assert import_file("with_neighbour.py") == tmp_path / "with_neighbour.py"


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\n\n\ndef f():\n    return undefined\n\n\nf()\n")
    (tmp_path / "no_python.py").write_text("x = 1\ny = (\n")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"^import: .*broken.py, line 5: NameError: name 'undefined' is not defined$"):
        import_file("broken.py")
    with pytest.raises(ValueError, match=r"^import: .*no_python.py, line 2: SyntaxError: "):
        import_file("no_python.py")
    with pytest.raises(
        ValueError, match=r"^import: gone.py: there is no such file \(looked for /.*gone.py\); allowed: the path of a"
    ):
        import_file("gone.py")
    with pytest.raises(ValueError, match=r"^import: notes.txt: is no Python file"):
        import_file("notes.txt")
    assert noted_files() == [] and "broken" not in sys.modules


def test_a_file_that_failed_half_way_is_executed_again(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "from loopwright.registry import note_file\nfrom pathlib import Path\nnote_file(Path(__file__))\n1 / 0\n"
    )
    for _ in range(2):
        with pytest.raises(ValueError, match="line 4: ZeroDivisionError"):
            import_file("half.py")
    assert noted_files() == []


def test_a_strangers_file_name_is_quoted() -> None:
    assert "--import 'a.py; rm -r x'" in missing_files(["a.py; rm -r x"])


def test_what_is_missing_is_named_and_what_is_there_is_not(tmp_path: Path) -> None:
    (tmp_path / "parts_here.py").write_text("")
    import_file("parts_here.py")
    assert missing_files(["parts_here.py"]) == missing_files(None) == missing_files("x.py") == missing_files([1]) == ""
    assert missing_files(["parts_here.py", "other.py"]) == (
        "; it was trained with custom parts: look at what they do, then give --import other.py"
    )
    assert len(missing_files([f"{i}" + "a" * 10_000 for i in range(1000)])) < 2000  # what a stranger's file says is cut


def test_a_folder_outside_the_working_directory_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_afar.py").write_text("")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    import_file("../parts_afar.py")
    assert noted_files() == [str(tmp_path / "parts_afar.py")]
