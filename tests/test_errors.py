"""How a command ends: codes, one line each, and a traceback that can be found."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.errors import one_line, run_and_exit


class UsageError(Exception):
    """Stands for typer's."""

    ctx = None

    def format_message(self) -> str:
        return "No such option"


def ends(work: Callable[[], object]) -> int:
    with pytest.raises(SystemExit) as stop:
        run_and_exit(work, UsageError)
    return stop.value.code


def raising(error: BaseException) -> Callable[[], object]:
    def work() -> object:
        raise error

    return work


def test_codes() -> None:
    assert ends(lambda: None) == 0 and ends(lambda: 1) == 1
    assert ends(raising(UsageError())) == ends(raising(ValueError("a"))) == ends(raising(OSError("b"))) == 2
    assert ends(raising(KeyboardInterrupt())) == 130 and ends(raising(BrokenPipeError())) == 141


def test_an_error_nobody_thought_of_is_one_line_that_names_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert ends(raising(KeyError("kind"))) == 70
    printed = capsys.readouterr().err
    found = re.fullmatch(r"loopwright: unexpected error: KeyError: 'kind'; the traceback is in (\S+), please report it\n", printed)
    assert found and "KeyError: 'kind'" in Path(found[1]).read_text() and "test_errors.py" in Path(found[1]).read_text()


@pytest.mark.parametrize(("code", "words"), [("modle.x", "NameError: name 'modle' is not defined"), ("len()", "TypeError: len()")])
def test_an_error_in_a_file_of_the_users_own_names_its_line(
    code: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    mine, made = str(tmp_path / "mine.py"), {}
    exec(compile(f"def late():\n    return {code}\n", mine, "exec"), made)
    with pytest.raises(SystemExit) as stop:
        run_and_exit(made["late"], UsageError, lambda: [mine])
    printed = capsys.readouterr().err
    assert stop.value.code == 2 and printed.startswith(f"loopwright: mine.py, line 2, in late: {words}")
    assert "report it" not in printed
    assert ends(made["late"]) == (2 if "len" in code else 70) and "mine.py" not in capsys.readouterr().err.split(";")[0]


def test_a_traceback_that_cannot_be_written_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    assert ends(raising(ZeroDivisionError())) == 70
    printed = capsys.readouterr().err
    assert "Traceback (most recent call last)" in printed
    assert printed.endswith("loopwright: unexpected error: ZeroDivisionError; the traceback stands above\n")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 5 bytes\nmore"),
        RuntimeError("CUDA out of memory"),
    ],
)
def test_no_memory_is_a_line_of_its_own(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(raising(error)) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("loopwright: out of memory (") and printed.count("\n") == 1 and "take less at once" in printed


def test_a_hostile_message_stays_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(raising(ValueError("a\n\x1b[31mred\x07 ☃ \ud800" + "x" * 10**6))) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("loopwright: a \\x1b[31mred\\x07 ☃ \\ud800xxx") and printed.count("\n") == 1 and len(printed) < 2100
    assert one_line("a\tb\r\nc\u2028d") == "a b c d"


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "from loopwright.errors import run_and_exit; run_and_exit(lambda: print('x' * 10**6), ZeroDivisionError)"
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" -c "$1" | true', sys.executable, code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 141 and done.stderr == ""


def test_what_the_operating_system_says_is_told_without_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(lambda: (tmp_path / "nothing").read_text()) == 2
    assert capsys.readouterr().err == f"loopwright: {tmp_path / 'nothing'}: no such file or directory\n"
