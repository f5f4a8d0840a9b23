"""Ouro against its golden cases, and back to its own names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import loopwright as lw
from tests.cases import gap, golden_folders
from tests.checkpoints.golden import Case, decode, short
from tests.checkpoints.parity import folder_copy

FOLDERS = golden_folders("ouro-mha", "ouro-gqa")
SMALL = golden_folders("ouro-gqa")[0]


def check_outputs(case: Case, ids: Tensor, mask: Tensor | None = None, *, row: str = "") -> None:
    model = case.model
    with torch.no_grad():
        out = model(ids, attention_mask=mask, output_steps=True)
        case.compare(f"{row}hidden_states", torch.stack(out.states), mask)
        case.compare(f"{row}step_logits", torch.stack(out.step_logits), mask)
        case.compare(f"{row}final_logits", out.logits, mask)
        case.compare(f"{row}exit_lambda", model.halting.values(out.states), mask)
        case.compare(f"{row}exit_pdf", out.exit_probs, mask)
        expected = model(ids, attention_mask=mask, select="expected", labels=ids)
        case.compare(f"{row}expected_logits", expected.logits, mask)
        if "loss_labels_eq_input" in case.facts["outputs"]:
            case.compare("loss_labels_eq_input", expected.loss[None])
        for threshold in (0.5, 0.9, 1.0):
            model.halting.threshold = threshold
            chosen = model(ids, attention_mask=mask, select="hub")
            case.compare(f"{row}threshold_{threshold}.logits", chosen.logits, mask)
            case.compare(f"{row}threshold_{threshold}.exit_step", model.halting.exit_step(chosen.exit_probs), mask)


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_golden(folder: Path) -> None:
    case = Case(folder)
    ids, mask = case.values["input_ids"], case.values.get("attention_mask")
    assert case.model.config.halting == {"kind": "exit", "threshold": 1.0} and case.model.config.depth == 4
    check_outputs(case, ids, mask)
    if mask is not None:
        for index in range(len(ids)):
            check_outputs(case, ids[index : index + 1, mask[index].bool()], row=f"row{index}.")
    case.assert_all_compared()


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_cached_decoding(folder: Path) -> None:
    case = Case(folder)
    mask = case.values.get("attention_mask")
    case.compare("final_logits", decode(case.model, case.values["input_ids"], depth=4, mask=mask), mask)


@pytest.mark.parametrize("field", ["rms_norm_eps", "rope_theta", "total_ut_steps"])
def test_the_file_is_read(field: str, tmp_path: Path) -> None:
    """Each field that must match changes the answer, so that it cannot come from a default."""
    changed = {"rms_norm_eps": 1e-3, "rope_theta": 10_000.0, "total_ut_steps": 3}[field]
    case = Case(SMALL)
    ids = case.values["input_ids"][1:]
    other = lw.load(folder_copy(SMALL, tmp_path / "other", **{field: changed}))
    assert gap(other(ids).logits, case.model(ids).logits) > 1e-3


def test_early_releases_lack_the_loop_fields(tmp_path: Path) -> None:
    bare = lw.load(folder_copy(SMALL, tmp_path / "bare", total_ut_steps=None, early_exit_threshold=None))
    assert bare.config.depth == 4 and bare.config.halting["threshold"] == 1.0


@pytest.mark.parametrize(
    ("field", "value", "refused"),
    [
        ("attention_bias", False, "attention_bias is True, which is not supported; allowed: False"),
        ("mlp_bias", False, "mlp_bias is True, which is not supported"),
        ("rltt_logprob_chunk_size", 2048, "rltt_logprob_chunk_size is True; allowed: a whole number of at least 0"),
        ("rltt_loop_level_checkpointing", True, "rltt_loop_level_checkpointing is 'x'; allowed: true, false"),
        ("rltt_other", None, "unknown field rltt_other (True)"),
    ],
)
def test_fields_of_fine_tunes_are_read(field: str, value: object, refused: str, tmp_path: Path) -> None:
    """What changes no pass, and a null, which says nothing; the same with a value that would change one is refused by name."""
    plain = lw.load(SMALL).state_dict()
    for number, one in enumerate((value, None)):
        folder = folder_copy(SMALL, tmp_path / str(number))
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**settings, field: one}))
        assert all(torch.equal(x, plain[name]) for name, x in lw.load(folder).state_dict().items())
    with pytest.raises(ValueError, match=re.escape(refused)):
        lw.load(folder_copy(SMALL, tmp_path / "wrong", **{field: "x" if value is True else True}))


def test_theta_is_never_a_default(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rope_theta is missing"):
        lw.load(folder_copy(SMALL, tmp_path / "bare", rope_theta=None))


@pytest.mark.parametrize("folder", FOLDERS[:2], ids=short)
def test_export_gives_the_released_files_back(folder: Path, tmp_path: Path) -> None:
    model = lw.load(folder)
    assert lw.export(model, tmp_path / "back").name == "ouro"
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    again = lw.load(tmp_path / "back")
    assert again.config.to_dict() == model.config.to_dict()
