"""The console: as wide as the window, or wide enough for a file."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from loopwright.commands.console import WIDE, console, table


def test_a_file_is_wide_and_each_stream_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    line = "x" * (WIDE - 1)
    console().print(line)
    console(stderr=True).print("[1, 2]", markup=False)
    printed = capsys.readouterr()
    assert printed.out == f"{line}\n" and printed.err == "[1, 2]\n"


def test_a_narrow_window_breaks_words_and_keeps_numbers() -> None:
    made = table("bytes", "what", "bytes", "in words")
    made.add_row("activations of a training pass of many rows, all steps kept, in a long sentence", "20,656,947,200", "19.2 GiB")
    window = Console(width=60, record=True, file=io.StringIO())
    window.print(made)
    text = window.export_text()
    assert "20,656,947,200" in text and "19.2 GiB" in text and "…" not in text
