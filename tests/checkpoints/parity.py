"""Tiny random transformers models, and the two directions every dense family must pass."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

import loopwright as lw
from tests.cases import gap

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 20_000.0, "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn-all": {
        "rope_type": "yarn", "rope_theta": 20_000.0, "factor": 4.0, "original_max_position_embeddings": 32,
        "attention_factor": 1.3, "beta_fast": 24.0, "beta_slow": 2.0, "truncate": False,
    },
}  # fmt: skip


def tiny(kind: type[PreTrainedConfig], **changes: Any) -> PreTrainedModel:
    """Returns a small random model of a family whose norms and biases are not trivial."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(kind(**{**SIZES, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def assert_same(ours: lw.LoopedForCausalLM, theirs: PreTrainedModel) -> None:
    """Logits agree to 1e-5 on plain and on left-padded rows."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(2, SIZES["vocab_size"], (2, 24), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    with torch.no_grad():
        assert gap(ours(ids).logits, theirs(ids).logits) < 1e-5
        padded = ours(ids, attention_mask=mask).logits, theirs(ids, attention_mask=mask).logits
        assert gap(*(logits[mask.bool()] for logits in padded)) < 1e-5


def assert_same_tokens(theirs: PreTrainedModel, folder: Path) -> None:
    """32 greedy tokens are the same, of theirs and of theirs loaded by us."""
    theirs.save_pretrained(folder)
    ours = lw.load(folder)
    ids = torch.randint(2, SIZES["vocab_size"], (2, 8), generator=torch.Generator().manual_seed(4))
    options = {"max_new_tokens": 32, "do_sample": False, "pad_token_id": 0}
    expected = theirs.generate(ids, **options)
    assert expected.shape == (2, 40) and torch.equal(ours.generate(ids, **options), expected)


def assert_both_ways(theirs: PreTrainedModel, folder: Path, *, family: str, shard_bytes: int = 10**9, **saving: Any) -> None:
    """theirs → lw.load = theirs, and → lw.export → transformers = theirs, tensor for tensor."""
    theirs.save_pretrained(folder / "theirs", **saving)
    ours = lw.load(folder / "theirs")
    assert not ours.training and not ours.config.is_looped
    assert_same(ours, theirs)
    assert lw.export(ours, folder / "back", family=family, shard_bytes=shard_bytes).name == family
    back, report = AutoModelForCausalLM.from_pretrained(folder / "back", dtype=torch.float32, output_loading_info=True)
    assert type(back) is type(theirs)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    before, after = theirs.state_dict(), back.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    ids = torch.arange(2, 26)[None]
    with torch.no_grad():
        assert torch.equal(back(ids).logits, theirs(ids).logits)


def folder_copy(source: Path, target: Path, **changes: Any) -> Path:
    """Copies a model folder, writable, without its manifest, with config fields changed; None removes a field."""
    target.mkdir(parents=True)
    for path in (path for path in source.iterdir() if path.name != "manifest.json"):
        shutil.copyfile(path, target / path.name)
    settings = json.loads((target / "config.json").read_text())
    settings.update(changes)
    settings = {name: value for name, value in settings.items() if name not in changes or value is not None}
    (target / "config.json").write_text(json.dumps(settings))
    return target
