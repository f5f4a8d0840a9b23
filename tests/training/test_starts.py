"""Sampling, policy and reference of GRPO begin each prompt at the same noise. What TRL brings is stood in for: it runs without."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from loopwright.generation.readings import left_padded
from loopwright.training.grpo import Grpo, prompt_seeds
from loopwright.training.rollout import Plan
from loopwright.training.run import TrainingModule
from tests.cases import noisy

PROMPTS = [[3, 4, 5], [6, 7, 8, 9], [3, 4, 5], [5, 4, 3]]
OURS, NEW = "loopwright.training.trl_trainer", 4


@pytest.fixture
def grpo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A trainer of ours that was not built, in the middle of update 2: a looped model with noise, and its copy from the start."""
    if OURS in sys.modules:
        pytest.skip("TRL itself is loaded")
    theirs = ModuleType("trl")
    theirs.GRPOConfig = theirs.GRPOTrainer = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trl", theirs)
    trainer = object.__new__(importlib.import_module(OURS).LoopedGRPO)
    model, objective = noisy("huginn-tiny", std=0.3).train(), Grpo("exact", beta=0.1, credit="linear")
    objective.prepare(model, "cpu")
    trainer.objective, trainer.at, trainer.ref_model = objective, Plan(3, 3), objective.reference
    trainer.accelerator = SimpleNamespace(unwrap_model=lambda module: module)
    trainer.updates = SimpleNamespace(progress=SimpleNamespace(update=2))
    trainer.job = SimpleNamespace(
        model=model, module=TrainingModule(model, objective), recipe=SimpleNamespace(seed=0), autocast=nullcontext
    )
    yield trainer
    del sys.modules[OURS]


def padded(width: int, rows: list[list[int]] = PROMPTS) -> tuple[Tensor, Tensor]:
    return left_padded([torch.tensor(row) for row in rows], width, 0)


def scores(trainer: Any, model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    return trainer._get_per_token_logps_and_entropies(model, ids, mask, NEW)[0].detach()


def test_a_prompt_has_one_seed_in_an_update() -> None:
    """Whatever its padding, its place and the completion; another one in another update, run or prompt."""
    seeds = prompt_seeds(0, 2, *padded(4))
    assert seeds[0] == seeds[2] and len(seeds.unique()) == 3
    assert torch.equal(prompt_seeds(0, 2, *padded(9)), seeds)
    assert torch.equal(prompt_seeds(0, 2, *padded(4, PROMPTS[::-1])), seeds.flip(0))
    others = torch.cat([prompt_seeds(1, 2, *padded(4)), prompt_seeds(0, 3, *padded(4)), seeds])
    assert len(others.unique()) == 9


def written(trainer: Any, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Completions as the trainer samples them, with the log p of their tokens there, padded to another width as TRL does."""
    ids, mask = padded(4)
    model = trainer.job.model.eval()
    options = {"depth": 3, "state_seed": trainer._starts(ids, mask), "max_new_tokens": NEW, "do_sample": False}
    made = model.generate(
        ids, attention_mask=mask, eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True, **options
    )
    model.train()
    new = made.sequences[:, 4:]
    log_p = torch.stack(made.logits, 1).log_softmax(-1).gather(-1, new[..., None])[..., 0]
    ids, mask = padded(width)
    return torch.cat([ids, new], 1), torch.cat([mask, torch.ones_like(new)], 1), log_p


@pytest.mark.parametrize("width", [4, 7])
def test_what_is_scored_is_what_was_sampled(grpo: Any, width: int) -> None:
    ids, mask, sampled = written(grpo, width)
    grpo.objective = Grpo("exact", credit="last")
    assert torch.allclose(scores(grpo, grpo.job.model, ids, mask), sampled, atol=1e-4)
    grpo.updates.progress.update = 3  # planted: another start than that of the sampling
    assert not torch.allclose(scores(grpo, grpo.job.model, ids, mask), sampled, atol=1e-2)


def test_before_the_first_step_every_ratio_is_one(grpo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the policy to itself in a second pass, bit for bit, and to the model at the start: no divergence."""
    ids, mask, _ = written(grpo, 4)
    model = grpo.job.model
    new, old = (scores(grpo, model, ids, mask) for _ in range(2))
    assert torch.equal((new - old).exp(), torch.ones_like(new))
    grpo.objective = Grpo("exact", credit="last")  # the divergence is that of the last step, whatever earns credit
    new, reference = (scores(grpo, each, ids, mask) for each in (model, grpo.ref_model))
    assert torch.equal(new, reference)
    assert torch.allclose(scores(grpo, model, ids.flip(0), mask.flip(0)).flip(0), new, atol=1e-5)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        moved.core[0].mlp.up_proj.weight.mul_(1.1)
    assert not torch.equal(scores(grpo, moved, ids, mask), reference)
    monkeypatch.setattr(type(grpo), "_starts", lambda *_: None)  # planted: each pass draws for itself
    new, old = (scores(grpo, model, ids, mask) for _ in range(2))
    assert ((new - old).exp() - 1).abs().max() > 1e-3
