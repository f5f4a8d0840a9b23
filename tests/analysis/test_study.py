"""A study: what it holds, what it refuses, and that other weights are not taken for the same."""

import pytest
import torch

from loopwright.analysis.edit import ablate_massive
from loopwright.analysis.study import Subject, check_lengths, study
from tests.analysis.summaries import ROWS, dense, looped
from tests.cases import noisy


def test_what_the_model_is():
    about = looped()["model"]
    assert about["layers"] == {"prelude": 1, "core": 4, "coda": 1} and about["looped"] and about["name"] == "loop"
    assert dense()["model"]["depth"] == 1 and not dense()["model"]["looped"]


def test_other_weights_in_the_same_folder_are_refused(tmp_path):
    model = noisy("huginn-tiny")
    first = study(Subject("m", model, ROWS), tmp_path, depth=5)
    assert study(Subject("m", model, ROWS), tmp_path, depth=5) == first
    with torch.no_grad():
        model.core[0].mlp.up_proj.weight.add_(0.01)
    with pytest.raises(ValueError, match="weights is"):
        study(Subject("m", model, ROWS), tmp_path, depth=5)


def test_an_edited_study_says_so_and_differs(tmp_path):
    model = noisy("huginn-tiny")
    plain = study(Subject("m", model, ROWS), tmp_path / "a", depth=5)
    edited = study(
        Subject("m", model, ROWS), tmp_path / "b", depth=5, edit=ablate_massive(model.config), edited="second MLP zeroed"
    )
    assert edited["model"]["edited"] == "second MLP zeroed"
    assert edited["by_place"]["norm"]["mean"] != plain["by_place"]["norm"]["mean"]


def test_prompts_are_checked_before_anything_runs():
    model = noisy("huginn-tiny", max_position_embeddings=4)
    for rows, words in (
        ([], "none; allowed"),
        ([[1], []], "number 2 has no tokens"),
        ([[1] * 5], "number 1 has 5 tokens; the model's context holds 4"),
        ([[96]], "token id 96; the model knows 96 tokens"),
    ):
        with pytest.raises(ValueError, match=words):
            check_lengths(model.config, rows)


def test_progress_is_told(tmp_path):
    told = []
    study(Subject("m", noisy("huginn-tiny"), ROWS), tmp_path, depth=5, batch=2, progress=lambda *words: told.append(words))
    assert ("traces", 2, 3) in told and ("traces", 3, 3) in told
