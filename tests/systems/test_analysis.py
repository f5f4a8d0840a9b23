"""What "A Mechanistic Analysis of Looped Language Models" measures and trains, written again from its text."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.analysis.study import SETS
from loopwright.analysis.summary import PUBLISHED, LimitOptions, summarise
from loopwright.analysis.trace.single_prompt import neuron_shares
from loopwright.cli.analysis import PromptOptions, opening_of, rows_of
from loopwright.cli.runs import analyze
from loopwright.metrics import classify_limit, col_sum_concentration, mixing_score, residual_entropy, sink_rate, sink_score
from loopwright.recipes import recipe
from tests.cases import noisy
from tests.systems.items import differs, same

SYSTEM = "A mechanistic analysis"


def maps(heads: int = 3, length: int = 7) -> Tensor:
    """Causal attention maps in float64."""
    scores = torch.randn(2, heads, length, length, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf).softmax(-1)


@same(SYSTEM, "ColSum concentration (2.2)")
def test_col_sum_concentration() -> None:
    a = maps()
    share = a.sum(-2) / a.shape[-1]
    wanted = 1 + (share * share.log()).sum(-1) / math.log(a.shape[-1])
    assert torch.allclose(col_sum_concentration(a), wanted, atol=1e-14, rtol=0)


@same(SYSTEM, "mixing score, sink score and rate (eq. 16 to 18)")
def test_mixing_and_sinks() -> None:
    a = maps()
    entropy = torch.where(a > 0, -a * a.clamp(min=1e-300).log(), 0.0).sum(-1)
    assert torch.allclose(mixing_score(a), entropy.mean(-1), atol=1e-14, rtol=0)
    received = a.mean(-2)
    assert torch.allclose(sink_score(a), received, atol=1e-15, rtol=0)
    assert torch.allclose(sink_rate(a), (received > 0.3).double().mean(-2), atol=0, rtol=0)


@same(SYSTEM, "matrix-based entropy of the residual stream (E.2)")
def test_residual_entropy() -> None:
    x = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for row, found in zip(x, residual_entropy(x), strict=True):
        p = torch.linalg.eigvalsh(row @ row.T / (row @ row.T).trace()).clamp(min=1e-300)
        assert float(found) == pytest.approx(float(-(p * p.log()).sum()), abs=1e-12)


def algorithm(series: np.ndarray, tau: float, p: float, norm: bool) -> str:
    """Algorithm 1 as printed, for one token."""
    n, t = len(series), np.arange(len(series))
    slope, intercept = np.polyfit(t, series, 1)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * t / (n - 1))
    spectrum = np.abs(np.fft.rfft((series - slope * t - intercept) * window))[1:]
    peak = int(spectrum.argmax())
    near = (series <= tau) if norm else (series >= 1 - tau)
    if near.sum() >= p * n:
        return "fixed point"
    if 4 * spectrum[peak] / n > tau / 2 and (peak + 1) / n >= 2 / n:
        return "orbit"
    return "slider" if (-slope if norm else slope) > tau / n else "unknown"


@pytest.mark.parametrize("kind", ["similarity", "norm"])
@pytest.mark.parametrize(("tau", "p"), [(0.05, 0.9), (0.2, 0.5)])
@same(SYSTEM, "classification of limits with its thresholds (Algorithm 1)")
def test_algorithm_1(kind: str, tau: float, p: float) -> None:
    rng, t = np.random.default_rng(3), np.arange(127)
    decay, wave, slide = np.exp(-t[None] / rng.uniform(2, 40, (400, 1))), np.cos(t * rng.uniform(0.02, 3, (400, 1))), t / 127
    far = decay * rng.uniform(0, 1, (400, 1)) + wave * rng.uniform(0, 0.2, (400, 1)) + (1 - slide) * rng.choice([0, 0.3], (400, 1))
    series = far if kind == "norm" else 1 - far
    found = [lw.metrics.LIMITS[label] for label in classify_limit(torch.tensor(series), tau, p, kind=kind).label.tolist()]
    assert found == [algorithm(each, tau, p, kind == "norm") for each in series] and len(set(found)) >= 3


def test_limits_of_traces_follow_the_options() -> None:
    """A trace holds both kinds of series; the first tokens, those of a system prompt, are not counted."""
    model, ids = noisy("huginn-tiny", std=0.3), torch.randint(0, 96, (1, 9), generator=torch.Generator().manual_seed(4))
    traced = lw.trace(model, ids, 24)
    residual = torch.stack([each[0] for each in last_layer(model, ids, 24)]).double()
    for kind, wanted in (
        ("similarity", torch.cosine_similarity(residual, residual[-1:], dim=-1)),
        ("norm", (residual - residual[-1:]).norm(dim=-1) / residual[-1:].norm(dim=-1)),
    ):
        options = LimitOptions(tau=0.01, p=0.6, kind=kind, skip=4)
        series = options.series(traced)
        assert series.shape[1:] == (5, 23) and torch.allclose(series[-1], wanted[:-1, 4:].T, atol=2e-3)
        rates = summarise([traced], limits=options)["limits"]["tokens"]
        labels = classify_limit(series[-1], 0.01, 0.6, kind=kind).label
        assert rates == pytest.approx([(labels == i).double().mean().item() for i in range(4)], abs=1e-6)
    old = {name: x for name, x in traced.values.items() if name != "token_distance"}
    with pytest.raises(ValueError, match="limits: the traces were made without token_distance; give another --out"):
        LimitOptions(kind="norm").series(type(traced)(traced.places, traced.input_ids, traced.valid, old))
    for wrong, message in (({"kind": "cosine"}, "series"), ({"tau": 1.0}, "limits: tau 1.0"), ({"p": 0.0}, "p 0.0")):
        with pytest.raises(ValueError, match=message):
            LimitOptions(**wrong)


def last_layer(model: lw.LoopedForCausalLM, ids: Tensor, depth: int) -> list[Tensor]:
    """What the last layer of the core leaves after each step."""
    seen = []

    def tap(name: str, value: Tensor, *, stack: str, step: Any, layer: int) -> Tensor:
        if (name, stack, layer) == ("residual", "core", model.config.core_layers - 1):
            seen.append(value.detach())
        return value

    model.eval()(ids, depth=depth, tap=tap)
    return seen


@differs(SYSTEM, "norm series of the classification")
def test_norm_series_are_relative() -> None:
    model, ids = noisy("huginn-tiny", std=0.3), torch.arange(6)[None]
    traced = lw.trace(model, ids, 8)
    states = torch.stack(last_layer(model, ids, 8))[:, 0]
    apart = (states - states[-1:]).norm(dim=-1)
    assert torch.allclose(traced.core("token_distance")[0, :, -1].float(), apart / states[-1].norm(dim=-1), rtol=2e-3, atol=1e-3)
    assert LimitOptions(0.05, 0.9, "similarity", 0) == PUBLISHED


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "retrofit-olmo2-1b-tiny", "retrofit-llama-1b-tiny"])
@same(SYSTEM, "prediction and suppression neurons")
def test_neurons_pass_the_output_norm_of_their_block(name: str) -> None:
    model = noisy(name, std=0.5, intermediate_size=300)
    final = model.norm.weight if getattr(model.norm, "weight", None) is not None else model.end_norm.weight
    blocks, wanted = [*model.prelude, *model.core, *model.coda], []
    for block in blocks:
        gain = final.double() * getattr(block.mlp_norms.output, "weight", torch.ones(())).double()
        y = model.lm_head.weight.double() @ (gain[:, None] * block.mlp.down_proj.weight.double())
        y = y - y.mean(0)
        kurtosis, third = y.pow(4).mean(0) / y.pow(2).mean(0) ** 2, y.pow(3).mean(0)
        wanted.append(float(((kurtosis > 10) & (third > 0)).double().mean()))
    assert neuron_shares(model)["predict"] == pytest.approx(wanted, abs=1e-9) or max(wanted) == 0
    if name == "ouro-1.4b-tiny":  # a gain that the block's output norm alone has makes every neuron speak to one token
        model.lm_head.weight.data.copy_(torch.eye(*model.lm_head.weight.shape))
        for block in blocks:
            block.mlp_norms.output.weight.data.fill_(1e-3)[0] = 1e3
        shares = neuron_shares(model)
        assert np.add(shares["predict"], shares["suppress"]) == pytest.approx([1.0] * len(blocks))


@differs(SYSTEM, "prediction neurons")
def test_neurons_of_huginn_leave_out_the_norms_on_the_residual_stream() -> None:
    model = noisy("huginn-tiny", std=0.5, intermediate_size=200)
    before = neuron_shares(model)
    for block in model.core:
        block.mlp_norms.residual.weight.data[0] = 1e3
    assert neuron_shares(model) == before and before["kurtosis"] == 10


@differs(SYSTEM, "questions of an analysis")
def test_an_analysis_asks_32_questions() -> None:
    assert SETS["hellaswag"][0][0] == "hellaswag_val"
    assert inspect.signature(analyze).parameters["examples"].default == 32


@differs(SYSTEM, "system prompt and question")
@same(SYSTEM, "system prompts: only the question's tokens are classified, and the padded control (Tables 3, 4)")
def test_a_system_prompt_stands_before_each_question(tmp_path: Path) -> None:
    from loopwright.checkpoints.source import Source
    from tests.data.words import save_words

    save_words(tmp_path, bos=True)
    model = lw.build("huginn-tiny", vocab_size=270)
    lw.save(model, tmp_path / "model")
    source, words = Source(tmp_path / "model"), lw.tokenizer(tmp_path)
    asked = PromptOptions("the a", tokenizer=str(tmp_path), system="be the one")
    opening = opening_of(source, asked)
    assert words.decode(opening) == "<s>be the one\n\n"
    rows = rows_of(source, ["the a", "a"], tokenizer=str(tmp_path), opening=opening)
    assert [words.decode(row) for row in rows] == ["<s>be the one\n\nthe a", "<s>be the one\n\na"]
    padded = opening_of(source, PromptOptions("x", tokenizer=str(tmp_path), system="be the one", padded=True))
    assert len(padded) == len(opening) and padded[0] == opening[0] and set(padded[1:]) == {words.eos_token_id}
    (tmp_path / "s.txt").write_text("be the one\n")
    assert opening_of(source, PromptOptions("x", tokenizer=str(tmp_path), system=str(tmp_path / "s.txt"))) == opening
    with pytest.raises(ValueError, match="system: the prompts are token ids"):
        rows_of(source, [[1, 2]], tokenizer=str(tmp_path), opening=opening)
    with pytest.raises(ValueError, match="pad-system: there is no system prompt"):
        opening_of(source, PromptOptions("x", padded=True))


@same(SYSTEM, "the training of 5.1: sizes, norms, steps, loss, tokens")
def test_the_recipe_of_5_1() -> None:
    found = recipe("stages-pretrain", [])
    changes = found.model["changes"]
    assert (changes["prelude_layers"], changes["core_layers"], changes["depth"], changes["coda_layers"]) == (2, 4, 4, 2)
    assert (
        changes["hidden_size"] == 512 == 4 * 128 and changes["num_attention_heads"] == 4 and changes["norm_placement"] == ["input"]
    )
    assert dict(found.depth) == {"kind": "fixed", "depth": 4} and dict(found.objective) == {"kind": "final"}
    assert found.updates * found.batch * found.data["length"] == pytest.approx(3.7e9, rel=1e-3)


@differs(SYSTEM, "training of 5.1")
def test_what_the_paper_does_not_print_of_5_1_is_ours() -> None:
    found = recipe("stages-pretrain", [])
    assert (found.optim["kind"], found.optim["lr"], found.batch, found.model["changes"]["vocab_size"]) == (
        "adamw",
        1e-3,
        256,
        49152,
    )
    config = lw.LoopedConfig(**found.model["changes"])
    assert config.tie_word_embeddings and config.mlp == "swiglu" and not config.embedding_norm and found.data.get("apart", True)


@differs(SYSTEM, "path in two directions (Figures 5, 26 to 28)")
def test_the_path_is_that_of_the_core_alone() -> None:
    from loopwright.analysis.trace.single_prompt import state_paths

    model = noisy("huginn-tiny")
    found = state_paths(model.eval(), torch.arange(5)[None], 6)
    assert len(found["points"]) == 6 * model.config.core_layers or np.shape(found["points"])[:2] == (6, model.config.core_layers)
