"""Adapter-only saving: small files that know their base."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import loopwright as lw
from tests.cases import noisy

NAMES = ["asura-tiny", "ouroboros-qwen2.5-3b-tiny", "relaxed-tiny", "huginn-tiny", "ouro-1.4b-tiny"]
IDS = torch.arange(10)[None]


def fresh_parts(model: lw.LoopedForCausalLM, name: str) -> lw.LoopedForCausalLM:
    """Returns a model with the same base and parts at their start."""
    torch.manual_seed(99)
    other = lw.build(name)
    base = {n: p for n, p in model.state_dict().items() if n.split(".")[0] in ("embed_tokens", "embed_norm", "norm", "lm_head")}
    base |= {n: p for n, p in model.state_dict().items() if n.split(".")[0] in ("prelude", "core", "coda")}
    if model.config.end_norm == "every":
        base["end_norm.weight"] = model.end_norm.weight.detach()
    other.load_state_dict(base, strict=False)
    return other


@pytest.mark.parametrize("name", NAMES)
def test_parts_go_back_onto_their_base(name: str, tmp_path: Path) -> None:
    model = noisy(name)
    lw.save_adapters(model, tmp_path / "parts")
    stored = load_file(tmp_path / "parts" / "adapters.safetensors")
    assert stored and not any(n.startswith(("core.", "prelude.", "coda.", "embed", "lm_head", "norm.")) for n in stored)
    plain = fresh_parts(model, name)
    assert not torch.equal(plain(IDS).logits, model(IDS).logits) or name == "ouro-1.4b-tiny"
    whole = lw.load_adapters(plain, tmp_path / "parts")
    assert torch.equal(whole(IDS).logits, model(IDS).logits)
    assert whole.embed_tokens.weight is plain.embed_tokens.weight and not whole.training
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))


def test_a_base_can_be_a_folder_and_lack_the_parts(tmp_path: Path) -> None:
    """The parts bring the config: a plainly looped base becomes the adapted model."""
    model = noisy("relaxed-tiny")
    plain = lw.build("relaxed-tiny", adapters=[], max_steps=None)
    plain.load_state_dict({n: p for n, p in model.state_dict().items() if not n.startswith("adapters.")})
    lw.save(plain, tmp_path / "base")
    lw.save_adapters(model, tmp_path / "parts")
    assert torch.equal(lw.load_adapters(tmp_path / "base", tmp_path / "parts")(IDS).logits, model(IDS).logits)


def test_another_base_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = noisy("relaxed-tiny")
    lw.save_adapters(model, tmp_path / "parts")
    with pytest.raises(ValueError, match="belong on another base; its tensors have the same shapes but other values"):
        lw.load_adapters(noisy("relaxed-tiny", seed=1), tmp_path / "parts")
    with pytest.raises(ValueError, match="belong on another base; its config differs: hidden_size is 64, not 32"):
        lw.load_adapters(lw.build("relaxed-tiny", hidden_size=64), tmp_path / "parts")
    with pytest.raises(ValueError, match="its config differs: prelude_layers is 1, not 0, core_layers is 1, not 2"):
        lw.load_adapters(lw.build("relaxed-tiny", core_layers=1, prelude_layers=1), tmp_path / "parts")
    with pytest.raises(ValueError, match="norm is "):
        lw.load_adapters(lw.build("relaxed-tiny", norm={"kind": "rms", "eps": 1e-3}), tmp_path / "parts")


def test_a_folder_of_parts_is_not_a_model(tmp_path: Path) -> None:
    lw.save_adapters(noisy("relaxed-tiny"), tmp_path / "parts")
    with pytest.raises(FileNotFoundError, match="holds adapters only; put them on their base with load_adapters"):
        lw.load(tmp_path / "parts")
    with pytest.raises(FileNotFoundError, match=r"there is no adapters.json"):
        lw.load_adapters(noisy("relaxed-tiny"), tmp_path / "nothing")
    lw.save(noisy("relaxed-tiny"), tmp_path / "model")
    with pytest.raises(FileNotFoundError, match=r"there is no adapters.json"):
        lw.load_adapters(noisy("relaxed-tiny"), tmp_path / "model")


def test_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no part of this model holds parameters"):
        lw.save_adapters(lw.build("stars-addition-tiny"), tmp_path / "parts")


# onto the dense model that a retrofit was made from


def dense(seed: int = 0, layers: int = 6, **changes: Any) -> lw.LoopedForCausalLM:
    return noisy("ouroboros-qwen2.5-3b-tiny", seed=seed, **PLAIN, **{"prelude_layers": layers, **changes}).eval()


PLAIN: dict[str, Any] = {
    "core_layers": 0, "coda_layers": 0, "gate": {"kind": "none"}, "end_norm": "never", "max_steps": None, "adapters": [],
    "beyond_max_steps": "refuse",
}  # fmt: skip
LAYOUT = {"prelude": [0, 1], "core": [3], "coda": [4, 5]}


def retrofitted(source: lw.LoopedForCausalLM, layout: dict[str, list[int]] = LAYOUT) -> lw.LoopedForCausalLM:
    """The layers of a source in three stacks, with parts that have an effect."""
    sizes = {f"{stack}_layers": len(layers) for stack, layers in layout.items()}
    model = noisy("ouroboros-qwen2.5-3b-tiny", seed=7, **sizes).eval()
    for stack, layers in layout.items():
        for block, layer in zip(getattr(model, stack), layers, strict=True):
            block.load_state_dict(source.prelude[layer].state_dict())
    for name in ("embed_tokens", "norm"):
        getattr(model, name).load_state_dict(getattr(source, name).state_dict())
    return model


def test_parts_find_their_layers_in_the_source(tmp_path: Path) -> None:
    source = dense()
    model = retrofitted(source)
    lw.save_adapters(model, tmp_path / "parts", source)
    stored = load_file(tmp_path / "parts" / "adapters.safetensors")
    assert {name.split(".")[0] for name in stored} == {"adapters", "gate", "end_norm"}
    record = json.loads((tmp_path / "parts" / "adapters.json").read_text())["base"]
    assert record["core.0.mlp.up_proj.weight"][0] == "prelude.3.mlp.up_proj.weight"
    assert record["coda.1.mlp.up_proj.weight"][0] == "prelude.5.mlp.up_proj.weight" and record["norm.weight"][0] == "norm.weight"
    whole = lw.load_adapters(source, tmp_path / "parts")
    assert torch.equal(whole(IDS).logits, model(IDS).logits) and not torch.equal(whole(IDS).logits, source(IDS).logits)
    assert whole.core[0].mlp.up_proj.weight is source.prelude[3].mlp.up_proj.weight
    assert lw.save_adapters(whole, tmp_path / "again", source) and same_files(tmp_path / "parts", tmp_path / "again")


def same_files(a: Path, b: Path) -> bool:
    return all((a / file.name).read_bytes() == file.read_bytes() for file in b.glob("adapters.*"))


def test_what_was_trained_is_stored_beside_the_parts(tmp_path: Path) -> None:
    """A coda layer that was unfrozen, and a core that is an average, are no tensors of the source."""
    source = dense()
    model = retrofitted(source)
    with torch.no_grad():
        model.coda[1].mlp.up_proj.weight += 1
        for parameter in model.core.parameters():
            parameter += 1
    lw.save_adapters(model, tmp_path / "parts", source)
    stored = load_file(tmp_path / "parts" / "adapters.safetensors")
    assert "coda.1.mlp.up_proj.weight" in stored and "coda.1.mlp.down_proj.weight" not in stored
    assert {name for name, _ in model.named_parameters() if name.startswith("core.")} <= set(stored)
    assert torch.equal(lw.load_adapters(source, tmp_path / "parts")(IDS).logits, model(IDS).logits)


def test_a_layer_that_stands_twice_is_two_tensors(tmp_path: Path) -> None:
    source = dense()
    model = retrofitted(source, {"prelude": [0], "core": [2, 2], "coda": [5]})
    lw.save_adapters(model, tmp_path / "parts", source)
    whole = lw.load_adapters(source, tmp_path / "parts")
    assert torch.equal(whole(IDS).logits, model(IDS).logits)
    a, b = (layer.mlp.up_proj.weight for layer in whole.core)
    assert torch.equal(a, b) and a.data_ptr() != b.data_ptr()
    lw.save(whole, tmp_path / "whole")
    assert torch.equal(lw.load(tmp_path / "whole")(IDS).logits, model(IDS).logits)


def test_another_source_is_refused_with_the_reason(tmp_path: Path) -> None:
    source = dense()
    lw.save_adapters(retrofitted(source), tmp_path / "parts", source)
    with pytest.raises(ValueError, match=r"belong on another base; .* other values: embed_tokens.weight, norm.weight, prelude.0"):
        lw.load_adapters(dense(seed=1), tmp_path / "parts")
    with pytest.raises(ValueError, match=r"it lacks: prelude\.4\..*"):
        lw.load_adapters(dense(layers=4), tmp_path / "parts")
    with pytest.raises(ValueError, match="its config differs: rope_parameters is "):
        lw.load_adapters(dense(rope_parameters={"rope_type": "default", "rope_theta": 5e5}), tmp_path / "parts")
    with torch.no_grad():
        source.prelude[3].mlp.up_proj.weight[0, 0] += 1e-3
    with pytest.raises(ValueError, match=r"other values: prelude\.3\.mlp\.up_proj\.weight$"):
        lw.load_adapters(source, tmp_path / "parts")
    source.prelude[2].mlp.up_proj.weight.data.zero_()
    lw.save_adapters(retrofitted(source), tmp_path / "parts", source)
    source.prelude[2].mlp.up_proj.weight.data.fill_(9)  # a layer that was dropped does not matter
    lw.load_adapters(source, tmp_path / "parts")
    with pytest.raises(ValueError, match="the model has no tensor of this base"):
        lw.save_adapters(retrofitted(source), tmp_path / "other", dense(seed=5))
    (tmp_path / "parts" / "manifest.json").unlink()
    (tmp_path / "parts" / "adapters.json").write_text('{"base_sha256": "0"}')
    with pytest.raises(ValueError, match="not a record of parts"):
        lw.load_adapters(source, tmp_path / "parts")


def test_the_right_base_in_another_dtype_is_told_apart_from_another_one(tmp_path: Path) -> None:
    lw.save(dense(), tmp_path / "source")
    wide, narrow = lw.load(tmp_path / "source"), lw.load(tmp_path / "source", dtype=torch.bfloat16)
    lw.save_adapters(retrofitted(wide), tmp_path / "wide", wide)
    lw.save_adapters(retrofitted(narrow), tmp_path / "narrow", narrow)
    with pytest.raises(ValueError, match="belong on another base, or on this one in a wider dtype than bfloat16; its tensors"):
        lw.load_adapters(narrow, tmp_path / "wide")
    with pytest.raises(ValueError, match="were made on this base in bfloat16; it is in float32; allowed: bfloat16"):
        lw.load_adapters(tmp_path / "source", tmp_path / "narrow")
    cast = lw.load_adapters(narrow, tmp_path / "narrow", torch.float32)
    assert {value.dtype for value in cast.parameters()} == {torch.float32} and cast.dtype == torch.float32
    assert torch.equal(cast.core[0].mlp.up_proj.weight, narrow.prelude[3].mlp.up_proj.weight.float())
    assert torch.equal(cast.gate.weight, retrofitted(narrow).gate.weight)  # the parts were not rounded on the way


@pytest.mark.slow
def test_a_fresh_process_gives_the_same_bits(tmp_path: Path) -> None:
    source = dense()
    model = retrofitted(source)
    lw.save(source, tmp_path / "source")
    lw.save_adapters(model, tmp_path / "parts", tmp_path / "source")
    lw.save(model, tmp_path / "whole")
    # the two are compared in one process: on some processors torch leaves a matrix library for good once it has failed on
    # another dtype, so that two processes need not round alike
    code = (
        "import sys, torch, loopwright as lw\n"
        "ids = torch.arange(10)[None]\n"
        "found, whole = lw.load_adapters(sys.argv[1], sys.argv[2])(ids).logits, lw.load(sys.argv[3])(ids).logits\n"
        "assert torch.equal(found, whole), 'other bits'\n"
        "print('same bits')\n"
    )
    words = [str(tmp_path / name) for name in ("source", "parts", "whole")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.stdout == "same bits\n", done.stderr
