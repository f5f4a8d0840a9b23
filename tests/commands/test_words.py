"""Words on the command line, and the tools of the verbs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import loopwright as lw
from loopwright.commands.words import fitting_threads, is_preset, need_weights


def test_a_folder_wins_over_a_preset_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_preset("huginn") and is_preset("huginn-tiny")
    (tmp_path / "huginn").mkdir()
    assert not is_preset("huginn")
    assert not is_preset("owner/name")
    with pytest.raises(ValueError, match="did you mean 'asura'"):
        is_preset("asure-tiny")


def test_where_weights_are_needed_presets_are_neither_taken_nor_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    where = r"; allowed: the folder of a model or a run, or a hub id \(owner/name\)$"
    for name in ("huginn", "huginn-tiny"):
        with pytest.raises(ValueError, match=f"^verb: {name!r} is a preset, which has no trained weights{where}"):
            need_weights("verb", name)
    with pytest.raises(ValueError, match=f"^verb: 'nothere' is no folder{where}"):
        need_weights("verb", "nothere")
    (tmp_path / "huginn").mkdir()
    for name in ("huginn", "owner/name", "./nothere"):  # what stands there, or does not, is told when it is opened
        need_weights("verb", name)


def test_small_models_run_on_one_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with fitting_threads(lw.build("huginn-tiny")):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
