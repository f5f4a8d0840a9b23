"""What `inspect` prints is true."""

from __future__ import annotations

from pathlib import Path

import pytest

import loopwright as lw
import loopwright.checkpoints.load as load_module
from loopwright.checkpoints import weights
from loopwright.checkpoints.save import describe, stacks
from loopwright.cli.inspection import readable
from loopwright.cli.models import inspect
from tests.generation.tiny import save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), chat=True)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("ouro-1.4b", ["1,434,652,673", "786,432"]),
        pytest.param("ouro-2.6b", ["2,667,974,657"], marks=pytest.mark.slow),
        ("huginn", ["3,564,976,800"]),
        pytest.param("retrofit-tinyllama", ["844,171,264"], marks=pytest.mark.slow),
        pytest.param("retrofit-olmo2-1b", ["1,359,071,232"], marks=pytest.mark.slow),
        pytest.param("retrofit-llama-1b", ["1,385,228,288"], marks=pytest.mark.slow),
        ("ouroboros-qwen2.5-3b", ["692,864", "8,390,656", "131,072", "9,214,592"]),  # what trains, as printed
    ],
)
def test_inspect_prints_the_known_numbers(name: str, numbers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    inspect(name, dtype="bf16")
    printed = capsys.readouterr().out
    for number in numbers:
        assert f" {number} " in printed


def test_inspect_returns_what_the_tables_say() -> None:
    facts = inspect("ouroboros-qwen2.5-3b-tiny", depth=5, context=64, batch=2, dtype="fp16", policy="share(2)", tensors=True)
    assert facts["model"] == "ouroboros-qwen2.5-3b-tiny"
    assert (facts["depth"], facts["context"], facts["batch"], facts["dtype"]) == (5, 64, 2, "float16")
    assert facts["parameters"]["bases"]["trainable"] == 0
    model = lw.build("ouroboros-qwen2.5-3b-tiny")
    assert facts["parameters"]["total"]["unique"] == sum(p.numel() for p in model.parameters())
    assert facts["bytes"]["weights"] == 2 * facts["parameters"]["total"]["unique"]
    # 2 prelude, 2 coda and 1 core layer × 2 shared steps; 2 key heads of 8 numbers
    assert facts["bytes"]["cache"]["keys and values"] == 6 * 2 * 16 * 2 * (2 * 64)
    assert facts["bytes"]["cache"]["running sums"] == 2 * 16 * 4 * (2 * 64)
    assert facts["flops"]["training_pass"] == 3 * facts["flops"]["pass"]["total"] == 3 * 128 * facts["flops"]["token"]["total"]
    assert [row.name for row in facts["tensors"]] == list(model.state_dict())


def test_inspect_of_a_folder_and_of_changes(folder: Path) -> None:
    same = inspect(str(folder))
    assert {**same, "model": ""} == {**inspect("huginn-tiny"), "model": ""}
    for source in (str(folder), "huginn-tiny"):
        changed = inspect(source, ["core_layers=3", "injection.kind=add"])
        assert changed["parameters"]["core"]["unique"] == 1.5 * same["parameters"]["core"]["unique"]
        assert changed["parameters"]["injection"]["unique"] == 0


def test_inspect_prints_every_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    inspect("huginn-tiny", tensors=True)
    printed = capsys.readouterr().out
    for name in lw.build("huginn-tiny").state_dict():
        assert name in printed
    assert "lm_head.weight = embed_tokens.weight" in printed


def test_words_for_a_model() -> None:
    assert describe(lw.preset("huginn"), 32) == (
        "2 prelude + 4 core × 32 + 2 coda layers; width 5280, 55 heads, 65536 tokens; state noise; injection concat; end norm last"
    )
    assert "up to 3 steps" in describe(lw.preset("asura"), 3)
    assert stacks(lw.LoopedConfig(prelude_layers=5, core_layers=0, depth=1), 1) == "dense, 5 layers"
    assert [readable(n) for n in (12, 2048, 3 << 29, 5 << 40)] == ["12 B", "2.0 KiB", "1.5 GiB", "5.0 TiB"]


def test_inspect_reads_no_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "fill", lambda *args, **kwargs: pytest.fail("it loaded the model"))
    monkeypatch.setattr(load_module, "fill", lambda *args, **kwargs: pytest.fail("it loaded the model"))
    inspect(str(folder))


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "asura-tiny"])
def test_inspect_builds_a_model_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What else is built has no core."""
    built: list[int | None] = []

    def build(model: lw.LoopedForCausalLM, config: lw.LoopedConfig) -> None:
        built.extend([config.max_steps] * bool(config.core_layers))
        init(model, config)

    init = lw.LoopedForCausalLM.__init__
    monkeypatch.setattr(lw.LoopedForCausalLM, "__init__", build)
    inspect(name, tensors=True)
    assert built == [lw.preset(name).max_steps]
