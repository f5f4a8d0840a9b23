"""Every verb, `lw.load` and a recipe's `kind: load` open the same weights: of an averaged run, one of parts alone, a checkpoint
inside each, and a plain folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright import measuring
from loopwright.checkpoints.source import Source
from loopwright.cli import analysis, checks, continuation, conversation, conversion, results, service
from loopwright.cli.opening import find_config
from loopwright.cli.runs import bench, compare
from loopwright.evaluation import throughput
from loopwright.recipes import recipe
from loopwright.serving import models as served
from loopwright.training.loop import train
from loopwright.training.model import FromWeights
from loopwright.training.report import Run
from tests.cases import some
from tests.generation.tiny import DENSE, WORDS, save_model

IDS = torch.arange(9)[None]
SOURCES = ["whole", "whole checkpoint", "parts", "parts checkpoint", "folder"]


class Taken(Exception):  # noqa: N818  (the work of a verb ends where its model is known)
    """Carries the model that a verb works with."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Tensor]]:
    """Each source with the logits of its averaged weights as the run itself had them."""
    place = tmp_path_factory.mktemp("runs")
    source = save_model(place / "source", "ouroboros-qwen2.5-3b-tiny", **DENSE)
    (place / "text.jsonl").write_text("".join(f'{{"text": "{" ".join(WORDS[:12])}"}}\n' for _ in range(30)))
    data = f"data={{kind: text, files: {place}/text.jsonl, tokenizer: {source}, length: 8, valid: 5}}"
    changes = ["adapters={rank: 4, style: 8}", "depth=2", "max_steps=4"]
    found: dict[str, tuple[Path, Tensor]] = {}
    for parts in ("true", "false"):
        chosen = recipe("controller-fixed", [
            data, f"model.source={source}", *[f"model.changes.{change}" for change in changes],
            "depth={kind: fixed, depth: 2}", "average={kind: ema, decay: 0.5}", "optim.lr=0.1",
            "updates=3", "batch=4", "accumulate=1", "precision=fp32", "validate.every=0", "schedule.warmup=0",
            f"save={{every: 0, parts: {parts}}}",
        ])  # fmt: skip
        outcome = train(chosen, place / parts)
        name = "parts" if parts == "true" else "whole"
        expected = averaged(outcome)
        assert not torch.equal(logits(outcome.model), expected)  # or nothing would be tested
        found[name], found[f"{name} checkpoint"] = (outcome.folder.path, expected), (outcome.checkpoint, expected)
    folder = place / "folder"
    lw.save(lw.load(found["whole"][0]), folder, lw.tokenizer(source))
    found["folder"] = (folder, found["whole"][1])
    return found


@torch.no_grad()
def logits(model: lw.LoopedForCausalLM) -> Tensor:
    return model(IDS, depth=2).logits


def averaged(outcome: Run) -> Tensor:
    """From the file alone: the averages laid over the model that was trained."""
    from safetensors.torch import load_file

    values = load_file(outcome.checkpoint / "average.safetensors")
    model = type(outcome.model)(outcome.model.config).eval()
    model.load_state_dict(outcome.model.state_dict())
    assert not model.load_state_dict(values, strict=False).unexpected_keys
    return logits(model)


def take(*arguments: Any, **options: Any) -> Any:
    """Stands for the work of a verb; `serve` gives a name before the model, `analyze` what holds it."""
    given = next(each for each in arguments if not isinstance(each, str))
    raise Taken(given if isinstance(given, lw.LoopedForCausalLM) else given.model)


VERBS: dict[str, tuple[Any, str, Callable[[str, Path], Any]]] = {
    "generate": (continuation, "stream", lambda source, out: continuation.generate(source, WORDS[0])),
    "check": (checks.conformance, "check", lambda source, out: checks.check_model(source)),
    "analyze": (analysis, "study", lambda source, out: analysis.analyze(source, analysis.PromptOptions(WORDS[0]), out=f"{out}/a")),
    "evaluate": (
        measuring, "need_likelihood", lambda source, out: results.evaluate(source, data=str(out / "r.yaml"), out=str(out / "e")),
    ),
    "evaluate --text": (
        measuring, "need_likelihood",
        lambda source, out: results.evaluate(source, texts=[str(out / "t.txt")], context=8, out=str(out / "e")),
    ),
    "evaluate --exit": (
        measuring, "exits_of",
        lambda source, out: results.evaluate(source, exit=["change"], data=str(out / "r.yaml"), out=str(out / "e")),
    ),
    "compare": (measuring, "held_out", lambda source, out: compare(source, source, text=[str(out / "t.txt")], context=8)),
    "bench": (throughput, "throughput", lambda source, out: bench(source)),
    "chat": (conversation, "ChatSession", lambda source, out: conversation.chat(source, [])),
    "serve": (served, "ServedModel", lambda source, out: service.serve([source], port=0)),
    "retrofit": (conversion, "convert", lambda source, out: conversion.retrofit(source, str(out / "r"))),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", some(SOURCES, {"whole", "parts checkpoint"}))
def test_every_verb_opens_the_same_weights(
    runs: dict[str, tuple[Path, Tensor]], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, expected = str(runs[name][0]), runs[name][1]
    shutil.copy(runs["whole"][0] / "recipe.yaml", tmp_path / "r.yaml")
    (tmp_path / "t.txt").write_text(" ".join(WORDS * 3))
    found = {"lw.load": lw.load(source), "kind: load": FromWeights(source).build(0)}
    for verb, (module, place, call) in VERBS.items():
        with monkeypatch.context() as patch:
            patch.setattr(module, place, take)
            with pytest.raises(Taken) as caught:
                call(source, tmp_path)
        found[verb] = caught.value.args[0]
    for verb, model in found.items():
        assert torch.equal(logits(model), expected), verb
    config = find_config(Source(source)).to_dict()
    assert config == {**found["lw.load"].config.to_dict(), "dtype": config["dtype"]}
    assert lw.tokenizer(source).get_vocab() == lw.tokenizer(runs["folder"][0]).get_vocab()


@pytest.mark.parametrize("name", ["whole", "parts", "whole checkpoint"])
def test_the_weights_of_the_last_update_are_had_by_asking(runs: dict[str, tuple[Path, Tensor]], name: str) -> None:
    source, expected = runs[name]
    raw = lw.load(source, weights="raw")
    assert not torch.equal(logits(raw), expected)
    with pytest.raises(ValueError, match=r"weights: 'rawest'; did you mean 'raw'"):
        lw.load(source, weights="rawest")


def test_parts_are_put_on_their_base_with_the_averaged_values(runs: dict[str, tuple[Path, Tensor]]) -> None:
    source, expected = runs["parts"]
    base = (Source(source).recipe or {})["model"]["source"]
    for parts in (source, runs["parts checkpoint"][0]):
        assert torch.equal(logits(lw.load_adapters(base, parts)), expected)
