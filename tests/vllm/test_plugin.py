"""The entry point: registered once, and requests of our models are salted by their depth."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import loopwright as lw
from loopwright.vllm.plugin import TRIED, register
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
