"""The entry point: registered once; depths of requests, their salts, and what vLLM cannot run, refused by its name in one line."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import loopwright as lw
from loopwright.model.presets import PRESETS
from loopwright.vllm.plugin import TRIED, DepthTable, check_expressible, check_runner, register, salted, wanted_depth
from tests.vllm.paged import Attention, ClientError, vllm

__all__ = ["vllm"]


def test_the_entry_point_names_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, function = project["entry-points"]["vllm.general_plugins"]["loopwright"].split(":")
    assert getattr(import_module(module), function) is register


def test_registers_once_and_salts(vllm: type[Attention]) -> None:
    register()
    register()
    assert sys.modules["vllm"].ModelRegistry.classes == {"LoopedForCausalLM": "loopwright.vllm.model:LoopedForVllm"}
    processor = sys.modules["vllm.v1.engine.input_processor"].InputProcessor
    ours, first = processor(lw.preset("huginn-tiny"), second=True), processor(lw.preset("huginn-tiny"), second=False)
    assert [ours.process_inputs(extra).cache_salt for extra in (None, {"depth": 2})] == ["depth=4", "depth=2"]
    assert ours.process_inputs({"depth": 2}, "mine").cache_salt == "depth=2;mine"
    assert first.process_inputs(None).cache_salt == "depth=4"
    with pytest.raises(ClientError, match="V1 model runner"):
        first.process_inputs({"depth": 2})
    other = processor(SimpleNamespace(model_type="llama"), second=True)
    assert other.process_inputs({"depth": 2}).cache_salt is None  # a model of somebody else


def test_a_vllm_without_our_place_serves_its_own_models(vllm: type[Attention], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.input_processor", None)  # an import of it fails
    with pytest.warns(UserWarning, match=r"vLLM 0\.32\.0 does not take our plug-in, which was tried with vLLM 0\.25 and 0\.32"):
        register()
    assert sys.modules["vllm"].ModelRegistry.classes == {}


@pytest.mark.parametrize(
    ("version", "said"), [("0.25.1", False), ("0.32.0", False), ("0.33.0", True), ("0.3.2", True), ("1.0", True)]
)
def test_an_untested_version_is_said_and_served(
    vllm: type[Attention], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, version: str, said: bool
) -> None:
    monkeypatch.setattr(sys.modules["vllm"], "__version__", version)
    register()
    register()
    told = [str(w.message) for w in recwarn]
    tried = "loopwright: our plug-in, which was tried with vLLM 0.25 and 0.32, is untested with"
    assert told == ([f"{tried} {version}"] if said else []) and sys.modules["vllm"].ModelRegistry.classes


def test_the_page_says_what_was_run_with_each_version() -> None:
    page = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text()
    assert all(f"vLLM {version}." in page for version in TRIED)


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


CONTROLLER = {"kind": "controller", "rank": 4, "style": 8}


def test_every_preset_can_be_run() -> None:
    for name in PRESETS:
        check_expressible(lw.preset(name, read_out="last"))


@pytest.mark.parametrize(
    ("name", "changes", "devices", "complaint"),
    [
        ("ouroboros-qwen2.5-3b", {"adapters": [{**CONTROLLER, "pooling": "chunk"}]}, {}, "adapters[0] (controller) has pooling"),
        ("ouroboros-qwen2.5-3b", {"sliding_window": 8}, {}, "beside sliding_window 8"),
        ("asura", {}, {"ranks": 2}, "adapters (abba) are not split"),
        ("retrofit-olmo2-1b", {}, {"ranks": 2}, "qk_norm 'full' reads all heads"),
        ("huginn", {}, {"ranks": 2}, "num_attention_heads is 55, not a multiple of tensor_parallel_size 2"),
        ("universal", {}, {}, "read_out is 'expected', and it reads the last step alone; allowed: last"),
        ("relaxed", {}, {"quantised": "fp8"}, "adapters (low-rank) read plain weights"),
    ],
)  # fmt: skip
def test_refusals(name: str, changes: dict[str, Any], devices: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match="vLLM cannot run this model") as error:
        check_expressible(lw.preset(name, **changes), **devices)
    assert complaint in str(error.value) and "\n" not in str(error.value)


def test_what_is_left_when_a_layer_is_split() -> None:
    check_expressible(lw.preset("ouro-1.4b"), ranks=8, quantised="fp8")
    check_expressible(lw.preset("retrofit-llama-1b"), ranks=8)
