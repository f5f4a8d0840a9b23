"""The class that vLLM builds, beside a stand-in for vLLM: tokens of `generate`, split linear maps, and the depths of a batch."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import loopwright as lw
from tests.cases import noisy
from tests.vllm.paged import Attention, SplitLinear, decode, vllm
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


def test_the_maps_of_the_blocks_are_split_and_no_other(vllm: type[Attention]) -> None:
    model = lw.build("huginn-tiny")
    names = list(model.state_dict())
    import_module("loopwright.vllm.model").split_linears(model, None)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert {name for name, module in linears.items() if not isinstance(module, SplitLinear)} == {"lm_head", "injection.proj"}
    split = [module for module in linears.values() if isinstance(module, SplitLinear)]
    assert len(split) == 6 * 7 and len({module.prefix for module in split}) == len(split)
    assert {module.prefix.split(".")[-1] for module in split if type(module).__name__ == "RowParallelLinear"} == {
        "o_proj",
        "down_proj",
    }
    assert list(model.state_dict()) == names  # so that saved folders still fit


def test_depths_of_requests_reach_the_model(vllm: type[Attention]) -> None:
    model = SimpleNamespace(config=lw.preset("huginn-tiny"))
    state = import_module("loopwright.vllm.model").LoopedModelState(None, model, None, torch.device("cpu"))
    state.add_request(1, SimpleNamespace(sampling_params=SimpleNamespace(extra_args={"depth": 2})))
    state.add_request(3, SimpleNamespace(sampling_params=None))
    batch = SimpleNamespace(
        idx_mapping_np=np.array([3, 1, 0]), num_scheduled_tokens=np.array([1, 2]), num_reqs=2, num_tokens_after_padding=4
    )
    inputs = state.prepare_inputs(batch, None)
    assert inputs["depths"][:3].tolist() == [4, 2, 2] and len(inputs["depths"]) == 4 and inputs["steps"] == 4
    assert state.prepare_dummy_inputs(2, 5)["depths"].shape == (5,) and state.last == 3
