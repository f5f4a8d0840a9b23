"""lw.register in training: an objective, a depth rule, an optimiser, a schedule and a metric of the user's own in one run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loopwright.parts import AdamW, DepthRule, Metric, Objective, cross_entropies, find_targets, target_features
from loopwright.registry import register
from loopwright.schema import build_kind
from loopwright.training.loop import train
from loopwright.training.recipe import make_recipe
from tests.own_kinds import own_kinds, table_of
from tests.test_registry import SMALL


@pytest.fixture(autouse=True)
def _own() -> Iterator[None]:
    with own_kinds():
        yield


class LastTwo(Objective):
    def __call__(self, model: Any, rollout: Any) -> tuple[Tensor, dict[str, Tensor]]:
        targets = find_targets(rollout.batch)
        losses, _ = cross_entropies(model, target_features(model, rollout.states[-2:], rollout.p, targets), rollout.p, targets)
        return targets.mean(losses.mean(0)), {"loss_last": targets.mean(losses[-1]).detach()}


class Halves(DepthRule):
    most = 2

    def depth_at(self, u: float, v: float) -> int:
        return 1 + (u > 0.5)


class Sgd(AdamW):
    slots = {torch.optim.SGD: {"momentum_buffer": True}}  # noqa: RUF012

    def over(self, model: nn.Module, trained: Any) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.groups(model, trained), lr=self.lr, momentum=0.9)]


class Falling:
    def __call__(self, update: int, updates: int) -> float:
        return 1 - update / updates


class Sure(Metric):
    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.scale * logits.softmax(-1).amax(-1).mean(1)


def _recipe(**changes: Any) -> Any:
    for place, kind in {"objective": LastTwo, "depth": Halves, "optim": Sgd, "schedule": Falling, "metric": Sure}.items():
        register(place, "mine")(kind)
    data = {
        "about": "of the user's own", "model": {"kind": "preset", "changes": SMALL},
        "data": {"kind": "addition", "digits": 2, "longer": [], "train": 40, "valid": 8, "test": 8},
        "updates": 4, "batch": 4, "depth": {"kind": "mine"}, "objective": {"kind": "mine"}, "optim": {"kind": "mine", "lr": 0.1},
        "schedule": {"kind": "mine"}, "validate": {"every": 2, "metrics": [{"kind": "mine", "scale": 2.0}]}, "save": {"every": 2},
        **changes,
    }  # fmt: skip
    return make_recipe(data)


def test_a_run_of_the_users_own_kinds_resumes_bit_for_bit(tmp_path: Path) -> None:
    recipe = _recipe()
    whole = train(recipe, tmp_path / "whole")
    cut = train(recipe, tmp_path / "cut")
    rows = (tmp_path / "cut" / "log.jsonl").read_text()
    assert '"mine"' in rows and whole.progress.update == cut.progress.update == 4
    last = tmp_path / "cut" / "checkpoints" / "00000004"
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    again = train(recipe, tmp_path / "cut", resume=True)
    for (name, a), b in zip(whole.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_an_optimiser_whose_state_nobody_knows_is_refused(tmp_path: Path) -> None:
    recipe = _recipe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sgd, "slots", {})
        with pytest.raises(ValueError, match="optim: nothing says what SGD keeps of a parameter"):
            train(recipe, tmp_path / "run")


def test_a_rule_that_cannot_be_resized_is_not_grown() -> None:
    register("depth", "mine")(Halves)
    with pytest.raises(ValueError, match=r"depth \(curriculum\): rule 'mine' cannot be resized"):
        build_kind({"kind": "curriculum", "rule": {"kind": "mine"}, "updates": 3}, table_of("depth"))


def test_a_metric_stands_once() -> None:
    with pytest.raises(ValueError, match="validate: metrics: mine stands there twice"):
        _recipe(validate={"every": 2, "metrics": [{"kind": "mine"}, {"kind": "mine"}]})
