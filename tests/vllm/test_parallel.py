"""vLLM's linear maps in the place of ours: all of the blocks and no other."""

from __future__ import annotations

from importlib import import_module

from torch import nn

import loopwright as lw
from tests.vllm.paged import Attention, SplitLinear, vllm

__all__ = ["vllm"]


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
