"""What the V2 model runner keeps: depths come in with requests and go out with batches."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import numpy as np
import torch

import loopwright as lw
from tests.vllm.paged import Attention, vllm

__all__ = ["vllm"]


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
