"""Words on the command line, and the tools of the verbs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import loopwright as lw
from loopwright.commands.words import fitting_threads, is_preset


def test_a_folder_wins_over_a_preset_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_preset("huginn") and is_preset("huginn-tiny")
    (tmp_path / "huginn").mkdir()
    assert not is_preset("huginn")
    assert not is_preset("owner/name")
    with pytest.raises(ValueError, match="did you mean 'asura'"):
        is_preset("asure-tiny")


def test_small_models_run_on_one_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with fitting_threads(lw.build("huginn-tiny")):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
