"""Training chosen parts alone: what is not named does not move by a bit and costs no gradient and no optimiser state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loopwright as lw
from loopwright.schema import build_kind
from loopwright.storage.run import RunFolder
from loopwright.training import trainable as module
from loopwright.training.depth import RULES
from loopwright.training.distributed import join
from loopwright.training.loop import train
from loopwright.training.objectives.losses import OBJECTIVES, Final
from loopwright.training.optim import AdamW, Muon
from loopwright.training.report import Progress, Silent
from loopwright.training.rollout import Plan
from loopwright.training.run import Job, Share
from loopwright.training.trainable import check_trainable, choose, counted, drawn_plans, shallowest
from tests.training.runs import RICH, rows_of, small

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


# Whether what is trained acts at the depths of a run: told before the first update, of the depths that the run will draw


MODEL = lw.build("stars-addition-tiny", gate={"kind": "grown"}, state={"kind": "learned"}, injection={"kind": "none"})
PLANS = st.integers(1, 6).flatmap(lambda depth: st.builds(Plan, st.just(depth), st.integers(1, depth)))


def gated(folder: Path, depth: dict[str, Any], **changes: Any) -> Any:
    """A run that trains a gate alone, which does nothing at the first step."""
    lw.save(lw.build("stars-addition-tiny", gate={"kind": "grown"}), folder / "model")
    model = {"kind": "load", "source": str(folder / "model")}
    return small({"model": model, "optim": {"train": ["gate.*"]}, "depth": depth, **changes})


@pytest.mark.parametrize("changes", [{}, {"penalties": [{"kind": "jacobian"}]}, {"objective": {"kind": "every-step"}}])
def test_a_depth_that_comes_later_is_refused_before_the_first_update(tmp_path: Path, changes: dict[str, Any]) -> None:
    recipe = gated(tmp_path, {"kind": "uniform", "least": 1, "most": 4}, updates=20, **changes)
    depths = [plan.depth for plan in drawn_plans(build_kind(recipe.depth, RULES), recipe)]
    assert depths[0] > 1 and 1 in depths
    with pytest.raises(ValueError, match=r"^depth: at 1 the loss depends on no trained parameter \(gate\..*from 2 on\)$"):
        train(recipe, tmp_path / "run")
    assert not RunFolder(tmp_path / "run").recipe.exists() and not RunFolder(tmp_path / "run").log.exists()


def test_a_depth_that_could_come_and_does_not_is_no_reason(tmp_path: Path) -> None:
    outcome = train(gated(tmp_path, {"kind": "choice", "values": [1, 2], "weights": [1e-9, 1.0]}), tmp_path / "run")
    assert outcome.finished and {depth for row in rows_of(outcome) if "loss" in row for depth in row["depth"]} == {2}


@pytest.mark.slow
def test_the_plans_told_are_those_drawn(tmp_path: Path) -> None:
    recipe = small(RICH)
    told = [plan.depth for plan in drawn_plans(build_kind(recipe.depth, RULES), recipe)]
    rows = [row for row in rows_of(train(recipe, tmp_path / "run")) if "loss" in row]
    assert told == [depth for row in rows for depth in row["depth"]] and len(set(told)) > 2


def test_nothing_is_tried_where_all_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "rollout", lambda *args, **options: pytest.fail("tried"))
    check_trainable(lw.build("stars-addition-tiny"), Final(), [Plan(1, 1)])


@pytest.mark.parametrize(("pattern", "least"), [("gate.*", 2), ("core.*", 1), ("lm_head.*", 1), ("norm.*", 1)])
def test_what_is_trained_acts_from_its_depth_on(pattern: str, least: int) -> None:
    model = lw.build("stars-addition-tiny", gate={"kind": "grown"}, tie_word_embeddings=False)
    choose(model, [pattern])
    for depth in (1, 2, 3):
        if depth < least:
            with pytest.raises(ValueError, match=f"^depth: at {depth} the loss"):
                check_trainable(model, Final(), [Plan(depth, depth)])
        else:
            check_trainable(model, Final(), [Plan(depth, 1)])


def test_what_acts_before_the_loop_is_out_of_a_cut_gradients_reach() -> None:
    """A learned state in a loop without injection: all steps must have a gradient for it to have one."""
    choose(MODEL, ["state.*"])
    check_trainable(MODEL, Final(), [Plan(1, 1), Plan(3, 3)])
    with pytest.raises(ValueError, match=r"^depth: at 3 the loss"):
        check_trainable(MODEL, Final(), [Plan(1, 1), Plan(5, 2), Plan(3, 2)])


@pytest.mark.long
@settings(max_examples=40)
@given(st.lists(PLANS, min_size=1, max_size=6), st.sampled_from(["gate.*", "state.*", "core.*"]))
def test_two_plans_stand_for_all(plans: list[Plan], pattern: str) -> None:
    def refused(some: list[Plan]) -> bool:
        try:
            check_trainable(MODEL, Final(), some)
        except ValueError:
            return True
        return False

    choose(MODEL, [pattern])
    assert len(shallowest(plans)) <= 2
    assert refused(plans) == any(refused([plan]) for plan in plans)


@pytest.mark.parametrize(
    "kind", sorted(set(OBJECTIVES) - {"distil", "given", "grpo"})
)  # test_distil has a teacher, tests/test_api.py one given, tests/training/objectives/test_grpo.py a reward
def test_every_objective_can_be_tried(kind: str) -> None:
    model = lw.build("universal-tiny" if kind == "ponder" else "ouro-1.4b-tiny")
    choose(model, ["halting.*"] if kind in ("ponder", "exit-gate") else ["core.*"])
    check_trainable(model, OBJECTIVES[kind](), [Plan(2, 2)])
