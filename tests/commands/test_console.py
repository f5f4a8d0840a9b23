"""The console: as wide as the window, or wide enough for a file."""

from __future__ import annotations

import pytest

from loopwright.commands.console import WIDE, console


def test_a_file_is_wide_and_each_stream_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    line = "x" * (WIDE - 1)
    console().print(line)
    console(stderr=True).print("[1, 2]", markup=False)
    printed = capsys.readouterr()
    assert printed.out == f"{line}\n" and printed.err == "[1, 2]\n"
