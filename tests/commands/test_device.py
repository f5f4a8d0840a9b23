"""Words on the command line, and the tools of the verbs."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

import loopwright as lw
from loopwright.commands import device as words
from loopwright.commands.console import table
from loopwright.commands.device import fitting_threads


def test_small_models_run_on_one_thread_unless_somebody_has_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, model = torch.get_num_threads(), lw.build("huginn-tiny")
    words._say_once.cache_clear()
    torch.set_num_threads(2)
    try:
        for _ in range(2):
            with fitting_threads(model):
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 2
        said = capsys.readouterr().err
        assert said.count("threads: 1 of 2, for a model of ") == 1 and "OMP_NUM_THREADS" in said
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        with fitting_threads(model):
            assert torch.get_num_threads() == 2
        assert capsys.readouterr().err == ""
    finally:
        torch.set_num_threads(before)


def test_a_narrow_window_breaks_words_and_keeps_numbers() -> None:
    made = table("bytes", "what", "bytes", "in words")
    made.add_row("activations of a training pass of many rows, all steps kept, in a long sentence", "20,656,947,200", "19.2 GiB")
    window = Console(width=60, record=True, file=io.StringIO())
    window.print(made)
    text = window.export_text()
    assert "20,656,947,200" in text and "19.2 GiB" in text and "…" not in text
