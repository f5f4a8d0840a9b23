"""The depth of a request: what is allowed, its salt, and the depths of a batch's tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import loopwright as lw
from loopwright.vllm.plugin import DepthTable, check_runner, salted, wanted_depth

CONFIG = lw.preset("huginn-tiny")


def test_a_request_without_a_depth_has_that_of_the_start() -> None:
    assert [wanted_depth(extra, CONFIG) for extra in (None, {}, {"other": 1}, {"depth": 2})] == [4, 4, 4, 2]


@pytest.mark.parametrize("value", [0, 5, -1, 2.5, "2", True, [1], None])
def test_other_depths_are_refused(value: Any) -> None:
    if value is None:
        dense = lw.LoopedConfig(prelude_layers=1, core_layers=0)
        with pytest.raises(ValueError, match="dense model"):
            wanted_depth({"depth": 1}, dense)
        return
    with pytest.raises(ValueError, match="from 1 to 4, the depth that vLLM was started with"):
        wanted_depth({"depth": value}, CONFIG)


def test_the_first_runner_has_one_depth() -> None:
    check_runner(4, CONFIG, second=False)
    check_runner(2, CONFIG, second=True)
    with pytest.raises(ValueError, match="V1 model runner has depth 4 for all"):
        check_runner(2, CONFIG, second=False)


def test_salts_tell_depths_apart() -> None:
    salts = [salted(salt, depth) for salt in (None, "a", "b") for depth in (1, 2, 12)]
    assert len(set(salts)) == len(salts)


def test_tokens_of_a_batch_have_the_depth_of_their_request() -> None:
    table = DepthTable(CONFIG, requests=4, tokens=16, device=torch.device("cpu"))
    table.add(2, {"depth": 1})
    table.add(0, {"depth": 3})
    inputs = table.of_batch(np.array([2, 0]), np.array([2, 3]), padded=8)
    assert inputs["depths"][:5].tolist() == [1, 1, 3, 3, 3] and len(inputs["depths"]) == 8 and inputs["steps"] == 3
    assert inputs["depths"].data_ptr() == table.tokens.data_ptr()  # what a captured graph reads
    assert table.of_dummies(4)["steps"] == 4
    table.add(2, None)  # the next request at this index
    assert table.of_batch(np.array([2]), np.array([1]), padded=1)["depths"].tolist() == [4]
