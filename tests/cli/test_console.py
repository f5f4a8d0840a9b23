"""The console: as wide as the window, or wide enough for a file."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from loopwright.cli.console import WIDE, console, plain, show, table


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


@dataclass
class Found:
    """A result of two numbers."""

    loss: float
    depths: tuple[int, ...]


def test_results_become_plain_data() -> None:
    assert plain({1: Found(math.inf, (1, 2)), "path": Path("a") / "b"}) == {"1": {"loss": None, "depths": [1, 2]}, "path": "a/b"}


def test_json_takes_the_place_of_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def verb() -> dict[str, float]:
        console().print("a table")
        console(stderr=True).print("a warning")
        return {"größe": math.nan}

    assert show(verb, as_json=False)["größe"] is not None and capsys.readouterr().out == "a table\n"
    show(verb, as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"größe": None} and printed.err == "a warning\n"
