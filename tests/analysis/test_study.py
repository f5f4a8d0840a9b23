"""A study: what it holds, what it refuses, and that other weights are not taken for the same."""

import pytest
import torch

from loopwright.analysis import study as analysis_study
from loopwright.analysis.study import Subject, study
from loopwright.analysis.trace.edit import ablate_massive
from loopwright.analysis.trace.record import OutOfMemory
from loopwright.analysis.trace.trace import check_lengths
from tests.analysis.summaries import ROWS, dense, looped
from tests.cases import noisy

pytestmark = pytest.mark.usefixtures("few_products")


def test_what_the_model_is():
    about = looped()["model"]
    assert about["layers"] == {"prelude": 1, "core": 4, "coda": 1} and about["looped"] and about["name"] == "loop"
    assert dense()["model"]["depth"] == 1 and not dense()["model"]["looped"]


@pytest.mark.slow
def test_other_weights_in_the_same_folder_are_refused(tmp_path):
    model = noisy("huginn-tiny")
    first = study(Subject("m", model, ROWS), tmp_path, depth=5)
    assert study(Subject("m", model, ROWS), tmp_path, depth=5) == first
    with torch.no_grad():
        model.core[0].mlp.up_proj.weight.add_(0.01)
    with pytest.raises(ValueError, match="weights is"):
        study(Subject("m", model, ROWS), tmp_path, depth=5)


@pytest.mark.long
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


@pytest.mark.long
def test_progress_is_told(tmp_path):
    told = []
    study(Subject("m", noisy("huginn-tiny"), ROWS), tmp_path, depth=5, batch=2, progress=lambda *words: told.append(words))
    assert ("traces", 2, 3) in told and ("traces", 3, 3) in told


def test_memory_that_ends_in_a_close_look_is_one_line_and_keeps_the_traces(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines.")

    subject = Subject("m", noisy("huginn-tiny"), [[1, 2, 3], [4, 5]])
    monkeypatch.setattr(analysis_study, "compare_pairs", full)
    with pytest.raises(OutOfMemory, match="all 2 traces are kept; take fewer pairs") as found:
        study(subject, tmp_path, depth=3)
    assert "\n" not in str(found.value)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    assert study(subject, tmp_path, depth=3, pairs=0)["examples"] == 2
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")} and len(before) == 2


def test_weights_that_are_not_finite_are_refused(tmp_path):
    model = noisy("huginn-tiny")
    with torch.no_grad():
        next(model.core.parameters()).view(-1)[0] = float("inf")
    with pytest.raises(ValueError, match=r"m: core\.\S+ is not finite, so there is nothing to analyze"):
        study(Subject("m", model, [[1, 2, 3]]), tmp_path / "traces", depth=2)
    assert not (tmp_path / "traces").exists()
