"""What a run sees of itself: right numbers, no traces left, and what is noted before the first update."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.evaluation.likelihood import NOT_A_LIKELIHOOD
from loopwright.metrics.spectrum import causal_radius
from loopwright.metrics.states import contraction
from loopwright.model.causal_lm import plain_config
from loopwright.model.taps import Recorder
from loopwright.storage.run import RunFolder
from loopwright.training import validation as module
from loopwright.training.distributed import Single, join
from loopwright.training.loop import train
from loopwright.training.report import Progress, Silent, Terminal
from loopwright.training.rollout import evaluating
from loopwright.training.run import Job
from loopwright.training.validation import (
    check_first,
    judge,
    measure,
    parts_by_step,
    state_map,
    truncates,
    truncation,
    validate,
    validate_when_due,
)
from tests.cases import noisy
from tests.leaks import looking
from tests.metrics.test_dual import NAMES
from tests.training.objectives.test_jacobian import SMALL, batch_of
from tests.training.runs import rows_of, small


def make_job(folder: Path, *changes: dict[str, Any]) -> Job:
    return Job(small(*changes), RunFolder(folder), join(), Silent())


@pytest.mark.parametrize("at_once", [512, 7])
def test_validation_at_several_depths_is_the_model_run_at_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(module, "ROWS_AT_ONCE", at_once)
    job = make_job(tmp_path)
    with job.evaluating():
        found = validate(job, 20)
        batch = job.splits.valid.batch(range(20))
        assert list(found) == [1, 2, 3, 5]
        for depth, numbers in found.items():
            out = job.model(batch.input_ids, labels=batch.labels, depth=depth, attention_mask=batch.attention_mask)
            assert numbers["loss"] == pytest.approx(out.loss.item(), rel=1e-5)
            wrong = (out.logits[:, :-1].argmax(-1) != batch.labels[:, 1:]) & (batch.labels[:, 1:] != -100)
            assert numbers["exact"] == 1 - wrong.any(1).float().mean().item()


@pytest.mark.parametrize("rows", [20, 1])
def test_processes_share_the_rows_of_a_look(tmp_path: Path, rows: int) -> None:
    """Each takes its own; their sums are those of one process. One may have none."""
    job, found = make_job(tmp_path), {}

    class Seen(Single):
        def sum(self, values: torch.Tensor) -> torch.Tensor:
            found[self.rank, self.world] = values
            return values

    for rank, world in ((0, 1), (0, 2), (1, 2)):
        job.processes = Seen(job.processes.state)
        job.processes.rank, job.processes.world = rank, world
        with job.evaluating():
            validate(job, rows)
    torch.testing.assert_close(found[0, 2] + found[1, 2], found[0, 1], rtol=1e-6, atol=0)
    assert torch.equal((found[0, 2] + found[1, 2])[:, 1:], found[0, 1][:, 1:]) and found[0, 1][:, 1].min() > 0


def test_looking_leaves_no_trace_and_sees_the_average(tmp_path: Path) -> None:
    job = make_job(tmp_path, {"average": {"kind": "ema", "decay": 0.5}, "model": {"changes": {"dropout": 0.2}}})
    assert job.average is not None
    for value in job.average.values.values():
        value.zero_()
    before = {name: p.detach().clone() for name, p in job.model.named_parameters()}
    with job.evaluating():
        assert not job.model.training and not torch.is_grad_enabled()
        assert all(not p.any() for p in job.model.parameters())
    assert job.model.training and all(module.training for module in job.model.modules())
    assert all(torch.equal(before[name], p) for name, p in job.model.named_parameters())


@pytest.mark.long
def test_looks_do_not_change_what_is_trained(tmp_path: Path) -> None:
    changes = {"model": {"changes": {"dropout": 0.2}}, "penalties": [{"kind": "jacobian", "weight": 0.1}], "updates": 4}
    seeing = train(small(changes, {"validate": {"every": 1, "radius": 2, "radius_rows": 1}}), tmp_path / "seeing")
    blind = train(small(changes, {"validate": {"every": 0}}), tmp_path / "blind")
    assert [row for row in rows_of(seeing) if "loss" in row] == rows_of(blind)
    assert [list(row) for row in rows_of(seeing) if "loss" not in row] == [["update", "valid"], ["update", "valid", "radius"]] * 2


def test_the_best_is_the_lowest_finite_loss_and_solved_is_noted_once() -> None:
    progress = Progress(update=1)
    assert judge(progress, {"loss": 2.0, "exact": 0.1}, [0.5, None])
    progress.update = 2
    assert not judge(progress, {"loss": float("nan"), "exact": 0.0}, [0.5])
    assert not judge(progress, {"loss": 2.0, "exact": 0.4}, [0.5])
    assert (progress.best_update, progress.solved_at) == (1, None)
    progress.update = 3
    assert judge(progress, {"loss": 1.0, "exact": 0.6}, [0.5]) and not judge(
        Progress(best_loss=0.5), {"loss": 1.0, "exact": None}, []
    )
    progress.update = 4
    assert not judge(progress, {"loss": 1.5, "exact": 0.9}, [0.5])
    assert (progress.best_update, progress.best_loss, progress.solved_at) == (3, 1.0, 3)


def test_running_text_has_no_exact_match(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    job.splits = type(job.splits)(job.splits.train, job.splits.valid, exact=False)
    with job.evaluating():
        assert {numbers["exact"] for numbers in validate(job, 4).values()} == {None}


def test_the_finite_difference_is_checked_before_the_first_update(tmp_path: Path) -> None:
    notes = {}
    for eps in (None, 3.0):
        reporter = Silent()
        job = make_job(tmp_path, {"penalties": [{"kind": "jacobian", "eps": eps, "start": 5}]})
        state = torch.get_rng_state(), job.depth_generator.get_state()
        check_first(job, reporter)
        assert torch.equal(torch.get_rng_state(), state[0]) and torch.equal(job.depth_generator.get_state(), state[1])
        (notes[eps],) = reporter.notes
    assert re.fullmatch(r"jacobian: the finite difference is 0\.\d\d% off the exact product", notes[None])
    assert "warning: above 5%" in notes[3.0], "a step three times as long as the state"
    for quiet in ({"penalties": [{"kind": "jacobian", "mode": "exact"}]}, {}):
        reporter = Silent()
        check_first(make_job(tmp_path, quiet), reporter)
        assert reporter.notes == []


def test_truncation_is_noted_with_the_contraction_that_was_measured(tmp_path: Path) -> None:
    job = make_job(tmp_path, {"depth": {"kind": "fixed", "depth": 6, "grad_steps": 2}, "validate": {"every": 1, "depths": []}})
    reporter = Silent()
    check_first(job, reporter)
    with job.evaluating():
        found = truncation(job)
        batch = job.splits.valid.batch(range(4))
        e, p = job.model.embed(batch.input_ids, attention_mask=batch.attention_mask)
        states = list(job.model.unroll(e, 6, p))[-3:]
        expected = contraction(states, batch.valid).log().mean().exp().item()
    assert found == {"grad_steps": 2, "depth": 6, "contraction": pytest.approx(expected)}
    assert reporter.notes[0].startswith("the gradient flows through the last 2 steps; at depth 6")
    seen, _ = validate_when_due(job, job.recipe, Progress(update=1))
    assert seen["truncation"] == found
    whole = {"kind": "uniform", "least": 1, "most": 4, "grad_steps": 4}
    assert not truncates(make_job(tmp_path, {"depth": whole})) and not truncates(make_job(tmp_path))
    assert truncates(make_job(tmp_path, {"depth": {"kind": "poisson", "mean": 1.0, "grad_steps": 40}}))


@pytest.mark.filterwarnings("ignore:controller. pooling")
def test_a_model_that_sees_the_future_is_told_before_the_first_update(tmp_path: Path) -> None:
    spec = {"kind": "controller", "rank": 4, "style": 8, "pooling": "sequence", "leak_future": True}
    notes: list[str] = []

    class Told(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    changes = {"adapters": [spec], "vocab_size": 15}
    leaking = {"model": {"kind": "preset", "name": "ouroboros-qwen2.5-3b-tiny", "changes": changes}}
    check_first(make_job(tmp_path / "a", leaking), Told())
    assert len(notes) == 1 and "sees future tokens" in notes[0]
    check_first(make_job(tmp_path / "b"), Told())
    assert len(notes) == 1


def test_what_sees_the_future_unsaid_is_noted_and_its_validations_are_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with looking():
        found = train(
            small({"model": {"changes": {"state": {"kind": "looking"}}}, "updates": 4}), tmp_path / "a", reporter=Terminal("a")
        )
    told = " ".join(capsys.readouterr().err.split())
    assert "the model sees future tokens: no loss of this run is a likelihood" in told
    assert f"({NOT_A_LIKELIHOOD})" in told[told.index("by depth") :]
    assert f"({NOT_A_LIKELIHOOD})" in (found.checkpoint / "README.md").read_text()
    assert [row["likelihood"] for row in found.log() if "valid" in row] == [False]
    sound = train(small({"updates": 4}), tmp_path / "b")
    assert all("likelihood" not in row for row in sound.log())
    assert NOT_A_LIKELIHOOD not in (sound.checkpoint / "README.md").read_text()


def test_what_was_best_by_another_read_out_is_forgotten() -> None:
    progress = Progress(update=1, best_loss=1.0)
    assert not judge(progress, {"loss": 2.0, "exact": None}, [])
    assert judge(progress, {"loss": 2.0, "exact": None}, [], read_out="expected") and progress.best_loss == 2.0
    assert not judge(progress, {"loss": 2.5, "exact": None}, [], read_out="expected")


# The monitor: right, and without a trace in the run it watches


KEYS = ["radius_mean", "radius_least", "radius_largest", "reading", "drift_mean", "drift_largest", "contraction"]


@pytest.mark.long
def test_measure_says_what_the_map_does():
    model, batch = noisy("stars-addition-tiny", std=0.5, **SMALL).double(), batch_of(6, 4)
    found = measure(model, batch, 4, rows=3, krylov=32)
    with torch.no_grad():
        e, p = model.embed(batch.input_ids)
        states = [model.start_state(e, p), *model.unroll(e, 4, p)]
    steps = [(b - a).flatten(1).norm(dim=1) for a, b in pairwise(states)]
    drift = steps[-1] / states[-2].flatten(1).norm(dim=1)
    radius = causal_radius(state_map(model, e, p, 3), states[-1])[[0, 2, 5]]  # spread over the batch
    assert list(found) == KEYS
    assert found["radius_mean"] == pytest.approx(radius.mean().item(), rel=1e-2)
    assert found["radius_least"] == pytest.approx(radius.min().item(), rel=1e-2)
    assert found["radius_largest"] == pytest.approx(radius.max().item(), rel=1e-2)
    assert found["drift_mean"] == pytest.approx(drift.mean().item(), rel=1e-6)
    assert found["drift_largest"] == pytest.approx(drift.max().item(), rel=1e-6)
    assert found["contraction"] == pytest.approx((steps[-1] / steps[-2]).log().mean().exp().item(), rel=1e-6)
    assert 0 < found["reading"] < 10


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_measured(name):
    model = noisy(f"{name}-tiny", std=0.2)
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    assert all(x >= 0 and x == x for x in measure(model, batch_of(2, 6, attention_mask=mask), 2, krylov=6).values())


@pytest.mark.long
def test_padding_changes_nothing():
    model, batch = noisy("stars-addition-tiny", std=0.5, **SMALL).double(), batch_of(2, 3)
    right = torch.nn.functional.pad(batch.input_ids, (0, 3), value=13)
    padded = Batch(right, right, lengths=torch.tensor([3, 3]))
    a, b = measure(model, batch, 3, krylov=48, rows=2), measure(model, padded, 3, krylov=48, rows=2)
    for key in ("radius_mean", "drift_mean", "contraction"):
        assert a[key] == pytest.approx(b[key], rel=1e-5)


def test_a_run_is_not_touched():
    model, batch = noisy("stars-addition-tiny", std=0.3, dropout=0.2).train(), batch_of(4, 5)
    model.core[0].eval()  # a part that its owner has frozen
    model(batch.input_ids, labels=batch.labels).loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = measure(model, batch, 3, krylov=8)
    assert measure(model, batch, 3, krylov=8) == mixed  # in the precision of the weights, and the same each time
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(p.grad, grads[name]) for name, p in model.named_parameters() if name in grads)
    assert torch.is_grad_enabled()


def test_evaluating_gives_the_modes_back_after_an_error():
    model = noisy("stars-addition-tiny").train()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert all(module.training for module in model.modules())
    with pytest.raises(ValueError, match="input"), evaluating(model):
        model(None)
    assert all(module.training for module in model.modules())


def test_depth_one_has_no_contraction_and_no_loop_is_refused():
    model = noisy("stars-addition-tiny", std=0.3)
    assert list(measure(model, batch_of(2, 4), 1, krylov=4)) == KEYS[:-1]
    with pytest.raises(ValueError, match="no core"):
        measure(lw.LoopedForCausalLM(plain_config(model.config)), batch_of(2, 4), 1)


def test_parts_by_step_are_the_gate_and_the_diagonals_of_a_pass() -> None:
    model = noisy("ouroboros-qwen2.5-3b-tiny", std=0.3, vocab_size=15).train()
    ids = torch.randint(0, 15, (3, 6), generator=torch.Generator().manual_seed(2))
    batch, seen = Batch(ids, ids), Recorder(("gate", "diagonal"))
    found = parts_by_step(model, batch, 3)
    assert model.training and {name: list(steps) for name, steps in found.items()} == {"diagonal": [1, 2, 3], "gate": [1, 2, 3]}
    with torch.no_grad():
        model.eval()(ids, depth=3, tap=seen)
    for t in range(3):
        assert found["gate"][t + 1] == pytest.approx(seen.seen["gate", "core", t, 1].mean().item(), rel=1e-5)
        size = seen.seen["diagonal", "core", t, 0].square().mean().sqrt().item()
        assert found["diagonal"][t + 1] == pytest.approx(size, rel=1e-5)
    assert parts_by_step(noisy("huginn-tiny"), batch, 2) == {}
