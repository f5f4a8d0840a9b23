"""The suite as a product: it passes what is sound, leaves the model as it was, and reports in rows."""

from __future__ import annotations

import copy
import random
import warnings
from pathlib import Path

import numpy
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import loopwright as lw
from loopwright.checking.conformance import CHECKS
from loopwright.model.presets import PRESETS
from tests.cases import UNLIKE, noisy, some
from tests.evaluation.foreign import Bare, Foreign

STORIES = Path(__file__).parents[3] / "shared" / "data" / "models" / "stories260K"


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=61, max_position_embeddings=64, **sizes)).eval()


def passed(report: lw.CheckReport) -> dict[str, bool | None]:
    return {row.name: row.passed for row in report.rows}


@pytest.mark.long
@pytest.mark.parametrize("name", some(PRESETS, UNLIKE | {"universal"}))
def test_every_preset_passes_every_check(name: str) -> None:
    torch.manual_seed(0)
    report = lw.check(lw.build(f"{name}-tiny"))
    found = passed(report)
    if name == "universal":  # whose halting values are of states before their step: no rule reads these of a token that leaves
        assert found.pop("early exits") is None
    assert set(found.values()) == {True}, str(report)


@pytest.mark.long
@pytest.mark.parametrize("name", some(["asura", "ouroboros-qwen2.5-3b", "huginn"], {"ouroboros-qwen2.5-3b"}))
def test_presets_pass_when_every_part_has_an_effect(name: str) -> None:
    report = lw.check(noisy(f"{name}-tiny"))
    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relaxed", "ouro-1.4b"])
def test_presets_pass_in_bfloat16(name: str) -> None:
    torch.manual_seed(0)
    report = lw.check(lw.build(f"{name}-tiny").bfloat16())
    assert report.ok and "(bfloat16)" in str(report), str(report)


@pytest.mark.long
@pytest.mark.parametrize("adapter", some(["low-rank", "abba", "diagonal", "controller"], {"low-rank", "controller"}))
def test_every_adapter_passes(adapter: str) -> None:
    options = {"low-rank": {"rank": 2}, "controller": {"rank": 2, "style": 4, "pooling": "chunk", "chunk": 3}}
    torch.manual_seed(0)
    spec = {"kind": adapter, **options.get(adapter, {})}
    parts = {"gate": {"kind": "learned"}, "state": {"kind": "learned"}, "injection": {"kind": "diagonal"}}
    report = lw.check(lw.build("ouro-1.4b-tiny", adapters=[spec], core_layers=1, depth=2, max_steps=3, **parts))
    assert report.ok, str(report)


@pytest.mark.parametrize(
    "build", [llama, lambda: GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4)).eval()]
)
def test_transformers_models_pass(build: type) -> None:
    report = lw.check(build())
    assert report.ok, str(report)
    offered = {name for name, value in passed(report).items() if value}
    looped = {
        "steps on a cache",
        "depth on a cache",
        "early exits",
        "depth honesty",
        "last step answers",
        "one sweep",
        "tap on = tap off",
    }
    assert offered == set(CHECKS) - looped


@pytest.mark.long
def test_a_trained_model_passes() -> None:
    if not STORIES.is_dir():
        pytest.skip("stories260K is not here")
    report = lw.check(AutoModelForCausalLM.from_pretrained(STORIES))
    assert report.ok, str(report)


def test_a_bare_module_passes_what_it_offers() -> None:
    report = lw.check(Bare())
    assert report.ok
    offered = {name for name, value in passed(report).items() if value}
    assert offered == {"finite logits", "state between calls", "initial state", "batch invariance", "causality", "gradients"}
    absent = [row for row in report.rows if row.passed is None]
    assert all(row.detail.startswith("not offered: ") for row in absent)
    assert {row.name: row.detail for row in absent}["left padding"] == "not offered: forward has no attention_mask"


@pytest.mark.long
@pytest.mark.parametrize(
    ("build", "training"),
    [(lambda: lw.build("ouroboros-qwen2.5-3b-tiny", max_steps=4), True), (llama, False), (Foreign, True), (Bare, False)],
)
def test_the_model_comes_back_as_it_was(build: type, training: bool) -> None:
    model = build().train(training)
    next(model.children()).eval()
    next(model.parameters()).requires_grad_(False)
    some = list(model.parameters())[-1]
    some.grad = torch.ones_like(some)
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    learns = [parameter.requires_grad for parameter in model.parameters()]
    config = copy.deepcopy(vars(model.config)) if not isinstance(model, Bare) else None
    generator, python, arrays = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()

    lw.check(model)

    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].view(torch.uint8), after[name].view(torch.uint8)) for name in before)
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == learns
    assert torch.equal(some.grad, torch.ones_like(some))
    assert all(parameter.grad is None for parameter in model.parameters() if parameter is not some)
    assert config is None or vars(model.config) == config
    assert torch.equal(torch.get_rng_state(), generator)
    assert random.getstate() == python and (numpy.random.get_state()[1] == arrays).all()
    assert torch.is_grad_enabled()


def test_the_model_comes_back_as_it_was_after_an_error() -> None:
    class Failing(Foreign):
        def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
            raise KeyboardInterrupt

    model = Failing()
    nn.init.zeros_(model.out.weight)
    with pytest.raises(KeyboardInterrupt):
        lw.check(model.train())
    assert not model.out.weight.any() and model.training


def test_an_exception_in_a_check_is_a_failed_row() -> None:
    class Raising(Foreign):
        def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
            raise RuntimeError("no loss today\nand a long trace")

    report = lw.check(Raising())
    rows = {row.name: row for row in report.rows}
    assert report.failed == ("label alignment", "gradients")
    assert rows["label alignment"].detail == "raised RuntimeError: no loss today"


def test_the_report_renders() -> None:
    class Deaf(Foreign):
        def steps(self, depth: int) -> int:
            return 2

    report = lw.check(Deaf())
    console = Console(width=160)
    with console.capture() as capture:
        console.print(report.table())
    text = capture.get()
    assert "depth honesty" in text and "FAILED" in text and "passed" in text and "not offered" in text
    assert "not offered: " not in text
    assert len(str(report).splitlines()) == len(CHECKS)


def test_progress_is_told_every_name_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    names: list[str] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        report = lw.check(llama(), progress=names.append)
    assert names == list(CHECKS) == [row.name for row in report.rows]
    out, err = capfd.readouterr()
    assert not out and not err and not said


def test_checks_can_be_asked_for_by_name() -> None:
    report = lw.check(lw.build("asura-tiny"), names=("causality", "finite logits"))
    assert [row.name for row in report.rows] == ["causality", "finite logits"] and report.ok
    with pytest.raises(ValueError, match=r"check: unknown.*causalty.*causality"):
        lw.check(lw.build("asura-tiny"), names=("causalty",))


class Chaotic(torch.nn.Module):
    """Causal, but it magnifies the rounding of a sum until float32 is lost; `leak` lets it see the future."""

    def __init__(self, leak: float) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(20, 8)
        self.leak = leak

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        # a sum in another order for another length: equal in exact arithmetic
        total = torch.stack([x[:, : t + 1].roll(x.shape[1], 1).sum(1) for t in range(x.shape[1])], dim=1)
        noise = (total - x.cumsum(1)) * 1e6
        return (
            torch.nn.functional.one_hot(input_ids, 20).to(x) + noise.sum(-1, keepdim=True) + self.leak * x.sum((1, 2), keepdim=True)
        )


def test_float32_products_are_whole_while_checking() -> None:
    model, seen = noisy("universal-tiny"), set()
    model.register_forward_pre_hook(lambda *given: seen.add(torch.get_float32_matmul_precision()))
    torch.set_float32_matmul_precision("high")
    try:
        assert lw.check(model, names=["causality"]).ok
        assert seen == {"highest"} and torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_rounding_is_told_from_a_leak_in_double_precision() -> None:
    torch.manual_seed(0)
    row = lw.check(Chaotic(0.0), vocab_size=20, names=["causality"]).rows[0]
    assert row.passed and "in float32 rounding grows to" in row.detail
    assert lw.check(Chaotic(1.0), vocab_size=20, names=["causality"]).failed == ("causality",)
