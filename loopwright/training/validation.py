"""What is measured of a run without touching it: the validation split at several depths from one pass, the spectral radius of a
step, how far the state still moves, what a truncated gradient leaves out; and, before the first update, whether its finite
differences can be trusted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loopwright.data.batch import Batch
from loopwright.generation.readings import readings, sees_future
from loopwright.metrics.spectrum import frobenius_reading, spectral_radius
from loopwright.metrics.states import contraction, relative_step
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import Pass
from loopwright.model.taps import OF_PARTS
from loopwright.training.report import ProgressReporter, truncation_in_words
from loopwright.training.rollout import Plan, Rollout, evaluating, rollout

if TYPE_CHECKING:
    from loopwright.training.recipe import Recipe
    from loopwright.training.report import Progress
    from loopwright.training.run import Job

ROWS_AT_ONCE = 512
ROWS_OF_A_CHECK = 4


def check_first(job: Job, reporter: ProgressReporter) -> None:
    """Notes, before the first update, whether the model sees the future, how good a finite difference is here and what a
    truncated gradient leaves out."""
    with job.evaluating():
        if sees_future(job.model, first_rows(job, ROWS_OF_A_CHECK).input_ids, job.median):
            reporter.note(
                "warning: the model sees future tokens: no loss of this run is a likelihood, and no row is right that is read "
                "with its answer; validations are marked"
            )
        for penalty in (weighted.penalty for weighted in job.penalties):
            for note in penalty.first_notes(job.model, lambda: _typical_rollout(job), job.processes.world):
                reporter.note(note)
        if truncates(job):
            reporter.note(truncation_in_words(truncation(job)))


def _typical_rollout(job: Job) -> Rollout:
    """A rollout of a few validation rows at the median depth."""
    return rollout(job.model, first_rows(job, ROWS_OF_A_CHECK), Plan(job.median, job.median), keeps="last")


def validate_when_due(job: Job, recipe: Recipe, progress: Progress) -> tuple[dict[str, Any], bool]:
    """Returns what is seen at this update (nothing mostly), and whether it is the best so far; the progress notes the best, and
    when a task was first solved."""
    wanted, last = recipe.validate, progress.update == recipe.updates
    due = bool(wanted.every) and (last or progress.update % wanted.every == 0)
    radius_due = bool(wanted.radius) and job.model.config.is_looped and (last or progress.update % wanted.radius == 0)
    if not due and not radius_due:
        return {}, False
    seen: dict[str, Any] = {}
    with job.evaluating():
        if due:
            seen["valid"] = validate(job, wanted.rows)
            if sees_future(job.model, first_rows(job, ROWS_OF_A_CHECK).input_ids, job.median):
                seen["likelihood"] = False
        if due and (parts := parts_by_step(job.model, first_rows(job, ROWS_OF_A_CHECK), job.median)):
            seen["parts"] = parts
        if due and truncates(job):
            seen["truncation"] = truncation(job)
        if radius_due:
            seen["radius"] = measure(job.model, first_rows(job, wanted.radius_rows), job.median)
    bars = [penalty.start_accuracy for penalty in job.penalties]
    by = "objective" if job.objective.validates else "loss"
    return seen, due and judge(progress, seen["valid"][job.median], bars, by=by, read_out=job.model.config.read_out)


def first_rows(job: Job, count: int) -> Batch:
    """Returns the first rows of the validation split, on the device."""
    return job.splits.valid.batch(torch.arange(min(count, len(job.splits.valid)))).to(job.device)


def validate(job: Job, rows: int) -> dict[int, dict[str, float | None]]:
    """Returns loss, exact-match rate and the recipe's metrics of the first rows of the validation split at each depth, by the
    model's own read-out, and the objective's own loss where that is judged by; processes share the rows."""
    source, count, processes = job.splits.valid, min(rows, len(job.splits.valid)), job.processes
    sums = {depth: [0.0] * (4 + len(job.metrics)) for depth in job.depths}
    mine = torch.arange(count)[processes.rank :: processes.world]
    for chunk in mine.split(ROWS_AT_ONCE) if len(mine) else ():
        batch = source.batch(chunk).to(job.device)
        for reading in readings(job.model, batch, job.depths, metrics=job.metrics):
            own = own_loss(job, batch, reading.depth) * reading.targets.sum() if job.objective.validates else torch.zeros(())
            columns = (reading.loss, reading.targets, reading.exact, own, *reading.measured.values())
            numbers = [float(column.sum()) for column in columns]
            sums[reading.depth] = [a + b for a, b in zip(sums[reading.depth], numbers, strict=True)]
    totals = processes.sum(torch.tensor(list(sums.values()), dtype=torch.float64)).tolist()
    return {
        depth: {
            **{name: total / count for name, total in zip(job.metrics, more, strict=True)},
            "loss": loss / max(targets, 1),
            "exact": right / count if job.splits.exact else None,
            **({"objective": own / max(targets, 1)} if job.objective.validates else {}),
        }
        for depth, (loss, targets, right, own, *more) in zip(sums, totals, strict=True)
    }


def own_loss(job: Job, batch: Batch, depth: int) -> Tensor:
    """Returns the objective's loss of a batch after so many steps, a mean over its targets."""
    return job.objective(job.model, rollout(job.model, batch, Plan(depth, depth), keeps=job.objective.reads))[0]


def truncates(job: Job) -> bool:
    """Returns whether the gradient of some depths leaves out steps."""
    k, most = job.rule.grad_steps, job.rule.most
    return job.model.config.is_looped and k is not None and (most is None or k < most)


def truncation(job: Job) -> dict[str, float]:
    """Returns how many steps have a gradient, and by which factor a step is shorter than the one before, at the median depth."""
    assert job.rule.grad_steps is not None
    batch, depth = first_rows(job, ROWS_OF_A_CHECK), max(job.median, 2)  # two steps at least, to compare them
    factor = contraction(last_states(job.model, batch, depth)[2], batch.valid).log().mean().exp()
    return {"grad_steps": job.rule.grad_steps, "depth": depth, "contraction": float(factor)}


def judge(
    progress: Progress, scores: dict[str, float | None], bars: list[float | None], *, by: str = "loss", read_out: str = "last"
) -> bool:
    """Returns whether this is the best so far, by one of the numbers found; notes it, and the update at which an accuracy bar was
    first reached. What was best by another number, or by another read-out of the model, is forgotten."""
    loss, exact = scores[by], scores["exact"]
    measure = by if read_out == "last" else f"{by}, read-out {read_out}"
    if measure != progress.best_by:
        progress.best_by, progress.best_loss = measure, None
    better = loss is not None and math.isfinite(loss) and (progress.best_loss is None or loss < progress.best_loss)
    if better:
        progress.best_loss, progress.best_update = loss, progress.update
    waiting = [bar for bar in bars if bar is not None]
    if progress.solved_at is None and waiting and exact is not None and exact >= max(waiting):
        progress.solved_at = progress.update
    return better


# measured without touching the run


def measure(
    model: LoopedForCausalLM, batch: Batch, depth: int, *, rows: int = 4, krylov: int = 32, seed: int = 0
) -> dict[str, float]:
    """Returns what one more step would do to the state after `depth` steps, and how it got there; changes nothing.

    Of the last step's map at that state, on `rows` rows spread over the batch: the spectral radius ρ (`radius_mean`,
    `radius_least`, `radius_largest`) and the mean of ‖Jv‖² for random v of norm 1 (`reading`: what JSRR trains on, not a radius).
    Of all rows: the relative size of the last step (`drift_mean`, `drift_largest`) and, from depth 2 on, the factor by which
    that step is shorter than the one before (`contraction`, geometric mean). Always in the precision of the weights.
    """
    if not model.config.is_looped:
        raise ValueError("monitor: this model has no core, so no step to measure; allowed: core_layers above 0")
    depth = model.config.check_depth(depth)
    with evaluating(model), torch.no_grad(), torch.autocast(batch.input_ids.device.type, enabled=False):
        e, p, states = last_states(model, batch, depth)
        s = states[-1]
        valid = batch.valid if batch.padded else None
        drift = relative_step(states[-2], states[-1], valid)
        chosen = torch.linspace(0, len(batch) - 1, min(rows, len(batch)), device=e.device).round().long()
        f = state_map(model, e[chosen], p.rows(chosen), depth - 1)
        mask = None if valid is None else valid[chosen]
        radius = spectral_radius(f, s[chosen], mask=mask, krylov=krylov, seed=seed)
        numbers = {
            "radius_mean": radius.mean(), "radius_least": radius.min(), "radius_largest": radius.max(),
            "reading": frobenius_reading(f, s[chosen], mask=mask, seed=seed).mean(),
            "drift_mean": drift.mean(), "drift_largest": drift.max(),
        }  # fmt: skip
        if depth > 1:
            numbers["contraction"] = contraction(states, valid).log().mean().exp()
    return dict(zip(numbers, torch.stack([x.double() for x in numbers.values()]).tolist(), strict=True))


def parts_by_step(model: LoopedForCausalLM, batch: Batch, depth: int) -> dict[str, dict[int, float]]:
    """Returns, by step from 1, how far the gate is open (`gate`, mean over tokens and channels) and how large the diagonals of the
    core's adapters are (`diagonal`, root mean square); nothing of what the model does not have. Changes nothing."""
    sums: dict[str, dict[int, list[Tensor]]] = {}
    if not (model.config.is_looped and (model.gate.opens or any(adapter.diagonal for adapter in model.adapters))):
        return {}

    def note(name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        if name in OF_PARTS and stack == "core" and isinstance(step, int):
            real = value.float() if not batch.padded else value.float()[batch.valid]
            size = real.mean() if name == "gate" else real.square().mean().sqrt()
            sums.setdefault(name, {}).setdefault(step + 1, []).append(size)
        return value

    with evaluating(model), torch.no_grad():
        e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask, segment_ids=batch.segment_ids, tap=note)
        for _ in model.unroll(e, depth, p):
            pass
    return {name: {step: float(torch.stack(each).mean()) for step, each in found.items()} for name, found in sorted(sums.items())}


def last_states(model: LoopedForCausalLM, batch: Batch, depth: int) -> tuple[Tensor, Pass, list[Tensor]]:
    """Returns the input, the pass, and the last three states of a batch at a depth (two at depth 1), the start state counted."""
    e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask, segment_ids=batch.segment_ids)
    states = [model.start_state(e, p)]
    for s in model.unroll(e, depth, p, state=states[0]):
        states = [*states[-2:], s]
    return e, p, states


def state_map(model: LoopedForCausalLM, e: Tensor, p: Pass, t: int) -> Callable[[Tensor], Tensor]:
    """Returns s ↦ the state after step `t` at the input e: the map whose derivative is J."""
    return lambda s: model.step(s, e, t, p)
