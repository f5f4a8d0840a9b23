"""The class that vLLM builds, beside a stand-in for vLLM: filled from a saved folder it gives the tokens of `generate`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import loopwright as lw
from tests.cases import noisy
from tests.vllm.paged import Attention, decode, vllm
from tests.vllm.test_pages import PROMPTS, alone

__all__ = ["vllm"]


def opened(config: Any, quantisation: Any = None) -> Any:
    settings = SimpleNamespace(model_config=SimpleNamespace(hf_config=config), cache_config=None, quant_config=quantisation)
    return import_module("loopwright.vllm.model").LoopedForVllm(vllm_config=settings)


@pytest.mark.parametrize("quantised", [False, True])
def test_a_saved_folder_gives_the_tokens_of_generate(vllm: type[Attention], tmp_path: Path, quantised: bool) -> None:
    model = noisy("huginn-tiny", std=0.3).eval()
    model.save_pretrained(tmp_path)
    config = lw.LoopedConfig.from_pretrained(tmp_path)
    config.depth = 3  # what hf_overrides do
    ours = opened(config, SimpleNamespace(get_name=lambda: "fp8") if quantised else None)
    weights = load_file(tmp_path / "model.safetensors")
    assert ours.load_weights(weights.items()) == {name for name, _ in ours.named_parameters(remove_duplicate=False)}
    assert len({layer.name for layer in ours.slots}) == len(ours.slots) == 2 + 3 * 2 + 2
    assert ("Column" in type(ours.looped.core[0].self_attn.q_proj).__name__) == quantised

    @torch.no_grad()
    def forward(ids: Tensor, positions: Tensor, owners: list[int]) -> Tensor:
        vllm.batch = [str(owner) for owner in owners]
        return ours.compute_logits(ours.forward(ids, positions))

    assert decode(forward, PROMPTS, 4) == [alone(model, prompt, 3) for prompt in PROMPTS]


def test_weights_that_are_missing_or_unknown_are_refused(vllm: type[Attention]) -> None:
    config = lw.preset("huginn-tiny")
    weights = {name: weight for name, weight in lw.build("huginn-tiny").state_dict().items() if name != "lm_head.weight"}
    with pytest.raises(ValueError, match="other: a weight of the folder"):
        opened(config).load_weights({**weights, "other": torch.zeros(1)}.items())
    del weights["norm.weight"]
    with pytest.raises(ValueError, match=r"norm\.weight: not in the folder"):
        opened(config).load_weights(weights.items())


def test_a_depth_that_the_model_has_not_is_refused(vllm: type[Attention]) -> None:
    config = lw.preset("asura-tiny")
    config.depth = 9
    with pytest.raises(ValueError, match="beyond max_steps"):
        opened(config)
