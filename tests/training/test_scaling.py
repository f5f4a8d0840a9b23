"""Training on several GPUs, on paper, beside what one GPU measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loopwright.training.recipe import Recipe, make_recipe
from loopwright.training.scaling import GIB, Cluster, Way, Workload, ways

MEASURED = Path(__file__).parents[2] / "experiments" / "results" / "training" / "train-text-h200.jsonl"
WITHIN = 1.1  # how far, as a factor, the estimate may be from what was measured
SHAPE = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 49152}
OURO = {"name": "ouro-1.4b", "changes": {**SHAPE, "core_layers": 12, "max_position_embeddings": 1024}}
HUGINN = {"name": "huginn", "changes": {**SHAPE, "prelude_layers": 2, "core_layers": 4, "coda_layers": 2}}


def text_recipe(model: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    data = {"kind": "text", "files": "x", "tokenizer": "gpt2", "length": 1024}
    spec = {"kind": "preset", **(model or OURO)}
    base = {"about": "text", "model": spec, "data": data, "updates": 10, "batch": 32, "depth": {"kind": "fixed", "depth": 4}}
    return make_recipe({**base, "precision": "bf16", **changes})


def tiny(steps: int | None = None, where: dict[str, Any] | None = None, **changes: Any) -> list[Way]:
    recipe = text_recipe({"name": "huginn-tiny"}, **changes)
    return ways(Workload(recipe, Cluster(2, **(where or {})), depth=steps))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("as recipes ship it", {}),
        *(
            pytest.param(name, changes, marks=pytest.mark.slow)
            for name, changes in (
                ("compile: false", {"compile": False}),
                ("remat: step", {"remat": "step"}),
                ("every step's loss", {"objective": {"kind": "every-step"}}),
                ("Huginn-like", {"model": HUGINN}),
            )
        ),
    ],
)
def test_one_gpu_is_as_measured(name: str, changes: dict[str, Any]) -> None:
    rows = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    rows = [row for row in rows if row["benchmark"] == f"P15 training on text: {name}"]
    (found,) = ways(Workload(text_recipe(**changes), Cluster(1)))
    assert rows and found.seconds is not None
    for row in rows:
        assert 1 / WITHIN < found.seconds * 1e3 / row["ms"] < WITHIN
        assert 1 / WITHIN < found.total / GIB / row["peak_gib"] < WITHIN


def test_collectives_move_what_a_ring_moves() -> None:
    node, two = Cluster(8, link=100), Cluster(16, link=100, network=50)
    assert node.all_reduce(8e9) == pytest.approx(2 * 8e9 * 7 / 8 / 80e9) == 2 * node.gather(8e9)
    assert (two.nodes, two.bus) == (2, 40e9)
    assert Cluster(16, link=100).bus == 80e9  # the network is the faster
    assert Cluster(1).all_reduce(8e9) == 0


def test_what_each_way_holds_and_moves() -> None:
    alone, ddp, kept, each = tiny()
    gathered = Cluster(2).gather
    assert alone.weights == alone.gradients == ddp.weights
    assert 0 < alone.optimiser - 2 * alone.weights < 1000  # AdamW counts its steps for each tensor
    assert (kept.weights, kept.optimiser) == (1.5 * ddp.weights, ddp.optimiser / 2)
    assert kept.exposed == kept.communication == pytest.approx(2 * gathered(ddp.weights))
    assert ddp.communication == pytest.approx(2 * gathered(ddp.gradients)) and 0 < ddp.exposed < ddp.communication
    assert each.communication > kept.communication and each.weights < kept.weights
    assert alone.compute is not None and ddp.compute is not None
    assert alone.seconds == alone.compute > ddp.compute
    assert ddp.tokens_per_second == pytest.approx(32 * 1024 / (ddp.compute + ddp.exposed))


@pytest.mark.slow
def test_the_core_is_reduced_behind_its_first_step_alone() -> None:
    """Twice the depth hides no more: the core's gradient is whole only when its first step has been differentiated."""
    model = {"kind": "preset", "name": "huginn-tiny", "changes": {"coda_layers": 0}}
    shallow, deep = (ways(Workload(text_recipe(model), Cluster(2, link=1), depth=depth))[1] for depth in (4, 8))
    assert shallow.compute < deep.compute and shallow.exposed == pytest.approx(deep.exposed) != shallow.communication


@pytest.mark.slow
def test_batches_of_an_update_gather_again_and_reduce_once() -> None:
    once, often = (tiny(batch=32, accumulate=n) for n in (1, 4))
    assert often[1].communication == once[1].communication
    assert often[2].communication == pytest.approx(2.5 * once[2].communication)  # 4 gathers and a reduction; 1 and 1
    assert often[1].activations < once[1].activations


@pytest.mark.slow
def test_what_is_frozen_has_no_gradient_and_averages_are_held() -> None:
    all_of_it, gate, averaged = (
        tiny(),
        tiny(optim={"kind": "adamw", "lr": 1, "train": ["norm.*"]}),
        tiny(average={"kind": "ema"}),
    )
    assert gate[1].weights == all_of_it[1].weights and gate[1].gradients == 4 * 32 == gate[1].optimiser / 2 - 2
    assert averaged[1].optimiser == all_of_it[1].optimiser + all_of_it[1].weights


@pytest.mark.slow
def test_depths_that_are_drawn() -> None:
    fixed, drawn = tiny(), tiny(depth={"kind": "uniform", "least": 2, "most": 6})
    assert drawn[1].compute == pytest.approx(fixed[1].compute)  # 4 on average
    assert drawn[1].activations > fixed[1].activations  # 6 at most


@pytest.mark.slow
def test_no_time_where_no_peak_is_known() -> None:
    assert tiny(precision="fp32")[1].seconds is None and tiny(precision="fp32")[1].tokens_per_second is None


@pytest.mark.parametrize(
    ("where", "changes", "words"),
    [
        ({"gpus": 3}, {}, r"gpus must divide batch / accumulate = 32 \(got 3\)"),
        ({"gpus": 0}, {}, "gpus"),
        ({"gpu": "H300"}, {}, r"gpu: 'H300' is not known; did you mean 'H200'"),
        ({"link": 0}, {}, "link"),
        ({}, {"data": {"kind": "addition", "digits": 2}}, "'addition' does not say how long its rows are; give --context"),
        ({}, {"objective": {"kind": "grpo", "reward": "exact"}}, "objective 'grpo' samples completions"),
    ],
)
def test_wrong_questions_are_refused(where: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Workload(text_recipe({"name": "huginn-tiny"}, **changes), Cluster(**{"gpus": 2, **where}))
