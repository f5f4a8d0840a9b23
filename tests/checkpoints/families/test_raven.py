"""What Huginn and the retrofitted models share, against the golden cases of all three."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import loopwright as lw
from tests.cases import gap, golden_folders
from tests.checkpoints.golden import Case, decode, short
from tests.checkpoints.parity import folder_copy

NAMES = ("huginn-tiny", "retrofit-llama", "retrofit-olmo2")
FOLDERS = golden_folders(*NAMES)
LEFTOVERS = ("padding_multiple", "block_size", "init_values", "effective_expected_depth")
FAMILY = {"huginn-tiny": "huginn", "retrofit-llama": "retrofit-llama", "retrofit-olmo2": "retrofit-olmo2"}


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
@torch.no_grad()
def test_golden(folder: Path) -> None:
    case = Case(folder)
    model, ids, state = case.model, case.values["input_ids"], case.values["initial_state"]
    e, _ = model.embed(ids)
    case.compare("prelude_output", e)
    for depth in case.facts["steps"]:
        out = model(ids, depth=depth, initial_state=state, output_steps=True)
        case.compare(f"logits_r{depth}", out.logits)
        assert gap(out.step_logits[0], case.values["logits_r1"]) <= case.tolerance
        if f"latents_r{depth}" in case.facts["outputs"]:
            case.compare(f"latents_r{depth}", model.norm(out.states[-1]))
    case.compare("states", torch.stack(out.states))
    case.compare("logits_zero_state_r4", model(ids, depth=4, initial_state=torch.zeros_like(state)).logits)
    case.assert_all_compared()


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_cached_decoding(folder: Path) -> None:
    case = Case(folder)
    logits = decode(case.model, case.values["input_ids"], depth=4, state=case.values["initial_state"])
    case.compare("logits_r4", logits)


@pytest.mark.parametrize("name", NAMES)
def test_export_gives_the_released_files_back(name: str, tmp_path: Path) -> None:
    folder = golden_folders(name)[0]
    model = lw.load(folder)
    assert lw.export(model, tmp_path / "back").name == FAMILY[name]
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    assert before.keys() == after.keys()
    for tensor in before:
        assert gap(before[tensor], after[tensor]) <= (1e-6 if tensor == "freqs_cis" else 0.0), tensor
    released, ours = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "back"))
    # the unused leftovers of Raven's class may differ; every field that says something is the same
    for field in set(released) - {"transformers_version", *LEFTOVERS}:
        assert ours[field] == released[field], field
    assert lw.load(tmp_path / "back").config.to_dict() == model.config.to_dict()


def test_the_start_of_the_state_is_read() -> None:
    huginn, retrofit = (lw.load(golden_folders(name)[0]).config for name in ("huginn-tiny", "retrofit-llama"))
    assert huginn.state == {"kind": "noise", "std": 0.11180339887498948, "scale": 5.656854249492381}
    assert retrofit.state == {"kind": "noise", "std": 0.008703882797784892, "scale": 1.0}
    assert (huginn.embedding_scale, retrofit.embedding_scale) == (5.656854249492381, 1.0)
    assert huginn.depth == retrofit.depth == 32


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("injection_type", "add", "injection_type is 'add', which is not supported; allowed: 'linear'"),
        ("state_init", "unit", "state_init is 'unit'"),
        ("test_time_noise", 0.1, "test_time_noise is 0.1"),
        ("bias", True, "bias is True"),
        ("n_layers", 7, "n_layers is 7"),
        ("init_values", {"std": 0.1}, "init_values.embed_scale is None"),
        ("mean_recurrence", "32", "mean_recurrence is '32'; allowed: a whole number"),
    ],
)
def test_other_systems_of_the_same_class_are_refused(field: str, value: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        lw.load(folder_copy(golden_folders("huginn-tiny")[0], tmp_path / "other", **{field: value}))


@pytest.mark.parametrize("name", ["huginn-tiny", "retrofit-llama-1b-tiny"])
@pytest.mark.parametrize("kind", [None, "normal", "takase"])
def test_the_start_is_written_down_as_it_was(name: str, kind: str | None, tmp_path: Path) -> None:
    model = lw.build(name, **({} if kind is None else {"init": {"kind": kind}}))
    lw.export(model, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    own = kind or {"huginn-tiny": "takase", "retrofit-llama-1b-tiny": "retrofit"}[name]
    assert written["init_strategy"] == own
    std = 0.02 if own != "takase" else math.sqrt(2 / (5 * 32))
    less = math.sqrt(2 * model.config.num_hidden_layers) if own == "takase" else 1.0
    assert written["init_values"]["embedding"] == pytest.approx(std)
    assert written["init_values"]["out_proj"] == pytest.approx(std / less)
    assert written["init_values"]["std"] == pytest.approx(model.state.std)  # Raven's class starts its state with it
    assert lw.load(tmp_path / "out").config.init == {"kind": own}
