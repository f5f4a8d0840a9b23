"""A file of Ouroboros' public code on its base gives the logits of that code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import loopwright as lw
from tests.cases import gap, golden_folders
from tests.checkpoints.families.test_ouroboros import nested

GOLDEN = golden_folders("ouroboros-v2-step")[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden base as a folder, and its parts as the trainer saves them."""
    folder, said = tmp_path_factory.mktemp("published"), json.loads((GOLDEN / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said["base"]))
    save_file(load_file(GOLDEN / "model.safetensors"), folder / "model.safetensors", metadata={"format": "pt"})
    torch.save(nested(load_file(GOLDEN / "sgrc.safetensors")), folder / "parts.pt")
    return folder


def retrofitted(place: Path, **changes: object) -> lw.LoopedForCausalLM:
    said = json.loads((GOLDEN / "config.json").read_text())["ouroboros"]
    sizes = {"rank": said["lora_rank"], "style": said["controller_style_dim"], "pooling": "sequence", "leak_future": True}
    with pytest.warns(UserWarning, match="leaks future"):
        return lw.retrofit(
            place, "ouroboros", prelude=said["n_prelude"], core=said["recurrent_layer_idx"], coda=said["n_coda"], depth=3,
            max_steps=said["max_recurrence"], adapters=sizes, **changes,
        )  # fmt: skip


def test_the_logits_are_those_of_the_public_code(place: Path) -> None:
    golden, base = load_file(GOLDEN / "golden.safetensors"), retrofitted(place)
    before = {name: p.clone() for name, p in base.named_parameters()}
    model = lw.load_adapters(base, place / "parts.pt")
    with torch.no_grad():
        for depth in (1, 3):
            assert gap(model(golden["input_ids"], depth=depth).logits, golden[f"logits_depth_{depth}"]) < 1e-4
            assert gap(base(golden["input_ids"], depth=depth).logits, golden[f"logits_depth_{depth}"]) > 1e-2
    assert all(torch.equal(p, before[name]) for name, p in base.named_parameters()), "the base stays as it was"
    assert lw.load_adapters(base, place / "parts.pt", torch.bfloat16).dtype == torch.bfloat16


def test_on_a_dense_base_layout_bases_and_pooling_are_the_published_ones(place: Path) -> None:
    with pytest.warns(UserWarning, match="leaks future"):
        model = lw.load_adapters(place, place / "parts.pt")
    spec, trained = model.config.adapters[0], load_file(GOLDEN / "sgrc.safetensors")
    assert (spec["rank"], spec["style"], spec["pooling"], spec["alpha"]) == (6, 12, "sequence", 16.0)
    assert model.config.max_steps == 5 and torch.equal(model.end_norm.weight, trained["step_norm.weights"])


def test_parts_that_do_not_fit_are_refused(place: Path, tmp_path: Path) -> None:
    for base, there in ((lw.retrofit(place, "gate-only"), r"has none"), (lw.build("ouroboros-qwen2.5-3b-tiny"), r"has \(6, 32\)")):
        with pytest.raises(ValueError, match=rf"parts.pt: .* the base {there}; allowed: the dense source, or a retrofit"):
            lw.load_adapters(base, place / "parts.pt")


def test_what_halts_is_read_where_the_base_has_a_halter(place: Path, tmp_path: Path) -> None:
    base = retrofitted(place, halting={"kind": "halter", "width": 8})
    flat = load_file(GOLDEN / "sgrc.safetensors")
    assert torch.equal(lw.load_adapters(base, place / "parts.pt").halting.last.bias, torch.tensor([-2.0]))
    for number, name in zip((0, 2, 4), ("first", "second", "last"), strict=True):
        layer = getattr(base.halting, name)
        flat |= {f"halter.{number}.weight": layer.weight.detach() + 1, f"halter.{number}.bias": layer.bias.detach() + 1}
    save_file(flat, tmp_path / "with.safetensors")
    assert torch.equal(lw.load_adapters(base, tmp_path / "with.safetensors").halting.last.bias, torch.tensor([-1.0]))
    lw.load_adapters(retrofitted(place), tmp_path / "with.safetensors")
