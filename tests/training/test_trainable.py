"""Training chosen parts alone: what is not named does not move by a bit and costs no gradient and no optimiser state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.storage.run import RunFolder
from loopwright.training.distributed import join
from loopwright.training.loop import train
from loopwright.training.optim import AdamW, Muon
from loopwright.training.report import Progress, Silent
from loopwright.training.run import Job, Share
from loopwright.training.trainable import choose, counted
from tests.training.runs import small

OUROBOROS = {"kind": "preset", "name": "ouroboros-qwen2.5-3b-tiny", "changes": {"vocab_size": 15}}


def names(model: torch.nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def learn_once(job: Job) -> None:
    for batch, plan in job.draw(Progress()).pairs:
        job.backward(batch, plan, Share(), None)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_only_what_is_named_moves_and_costs(tmp_path: Path, kind: str) -> None:
    patterns = ["gate.*", "adapters.*", "coda.-1.*"]
    rates = {"lr": 1e-2, **({"adam_lr": 1e-2} if kind == "muon" else {})}
    recipe = small(
        {"model": OUROBOROS, "updates": 3, "optim": {"kind": kind, **rates, "train": patterns}, "validate": {"every": 0}}
    )
    job = Job(recipe, RunFolder(tmp_path / "a"), join(), Silent())
    wanted = {n for n, _ in job.model.named_parameters() if n.startswith(("gate.", "adapters.", "coda.1."))}
    wanted = {n for n in wanted if ".bases." not in n}
    learn_once(job)
    job.step(0)
    assert names(job.model) == wanted == set(job.optimiser.parameters)
    assert {n for n, p in job.model.named_parameters() if p.grad is not None} == wanted
    assert {key.split("/")[0] for key in job.optimiser.state_tensors()} == wanted

    trained = train(recipe, tmp_path / "b").model
    fresh = lw.build("ouroboros-qwen2.5-3b-tiny", vocab_size=15)
    fresh.load_state_dict(Job(recipe, RunFolder(tmp_path / "c"), join(), Silent()).model.state_dict())
    moved = {n for n, p in trained.named_parameters() if not torch.equal(p, fresh.get_parameter(n))}
    assert moved == wanted


def test_what_was_frozen_before_is_trained_where_it_is_named() -> None:
    model = lw.build("ouroboros-qwen2.5-3b-tiny").requires_grad_(False)
    choose(model, ["coda.-2.mlp.*"])
    assert names(model) == {f"coda.0.mlp.{one}_proj.weight" for one in ("gate", "up", "down")}


def test_frozen_parameters_keep_their_dtype_and_the_others_are_masters() -> None:
    model = lw.build("ouroboros-qwen2.5-3b-tiny").to(torch.bfloat16)
    AdamW(1e-3, train=["gate.*"]).prepare(model)
    assert {p.dtype for n, p in model.named_parameters() if n.startswith("gate.")} == {torch.float32}
    assert {p.dtype for n, p in model.named_parameters() if not n.startswith("gate.")} == {torch.bfloat16}


def test_parts_and_train_go_together() -> None:
    model = lw.build("ouroboros-qwen2.5-3b-tiny")
    optim = AdamW(1e-3, train=["gate.*", "coda.*"], parts={"coda.-1.*": {"lr": 1e-4}, "coda.-2.*": {"freeze": True}})
    optim.prepare(model)
    rates = {n: g["lr"] for g in optim(model).param_groups for n in g["param_names"]}
    assert {n.split(".")[0] for n in rates} == {"gate", "coda"} and not any(n.startswith("coda.0.") for n in rates)
    assert {rate for n, rate in rates.items() if n.startswith("coda.1.")} == {1e-4}


def test_layers_are_counted_from_the_end() -> None:
    model = lw.build("ouroboros-qwen2.5-3b-tiny", coda_layers=3)
    assert [counted(f"coda.-{i}.mlp.*", model) for i in (1, 3)] == ["coda.2.mlp.*", "coda.0.mlp.*"]
    assert counted("coda.-1", model) == "coda.2" and counted("adapters.-1.*", model) == "adapters.-1.*"
    for pattern in ("coda.-4.*", "coda.-0.*"):
        with pytest.raises(ValueError, match=r"counts from the end of 3 layers; allowed: coda.-1 to coda.-3"):
            counted(pattern, model)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([], "train is empty"),
        (["adapter.*"], r"train: 'adapter.\*' matches no parameter that can be trained; near: "),
        (["adapters.0.bases.*"], r"adapters.0.bases.a.\w+ is frozen by its part"),
        (["lm_head.*"], r"lm_head.weight is tied to embed_tokens.weight"),
        ("gate.*", "train is 'gate.*'; allowed: a list of patterns"),
        ([3], r"train is \[3\]"),
    ],
)
def test_patterns_that_make_no_sense_are_refused(train: Any, message: str) -> None:
    for kind in (lambda: AdamW(1e-3, train=train), lambda: Muon(1e-3, 1e-3, train=train)):
        with pytest.raises(ValueError, match=message):
            kind().prepare(lw.build("ouroboros-qwen2.5-3b-tiny", tie_word_embeddings=True))
