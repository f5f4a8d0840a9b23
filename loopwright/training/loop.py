"""Training, from the recipe to the last checkpoint: `train` reads from top to bottom.

`run.Job` holds the live objects, `Updates` does what follows each update, a `ProgressReporter` shows it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopwright.data.batch import Batch
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.storage.run import RunFolder
from loopwright.training.checkpoint import as_started, resume_job, save_job
from loopwright.training.distributed import Processes, join
from loopwright.training.recipe import Recipe
from loopwright.training.report import Log, Objects, Progress, ProgressReporter, Run, Silent, StopRequest, spikes_in_words
from loopwright.training.rollout import Plan
from loopwright.training.run import Job, Share, start_job
from loopwright.training.tracking import Tracking, begin_tracking, find_tracker
from loopwright.training.validation import check_first, validate_when_due


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    resume: bool = False,
    reporter: ProgressReporter | None = None,
    given: Objects | None = None,
    on_update: Callable[[dict[str, Any]], object] | None = None,
    within: Callable[[LoopedForCausalLM], AbstractContextManager] = nullcontext,
) -> Run:
    """Trains as the recipe says, into a run folder, and returns how it ended. Ctrl-C ends it after the update in hand, saved.

    `given` holds objects in the place of the recipe's kinds. `on_update` is called with each update's row of the log; where it
    returns True the run ends there, saved.
    `within` gives a context that the updates run in, made for the model: the command line chooses the number of threads there.
    """
    processes = join()
    processes.check_same(as_started(recipe, resume=resume, spread=type(processes).__name__))
    reporter = reporter if reporter is not None and processes.main else Silent()
    tracker = find_tracker(recipe) if processes.main else None
    with ExitStack() as held:
        held.enter_context(closing(reporter))
        held.enter_context(random_state_kept(processes.device))
        held.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())  # a run may ask for less
        run = held.enter_context(own_folder(folder, processes, resume=resume))
        job = start_job(recipe, run, processes, resume=resume, reporter=reporter, given=given)
        held.callback(job.release)
        held.enter_context(within(job.model))
        progress, mark = resume_job(job, run, reporter) if resume else (Progress(), None)
        check_first(job, reporter)
        tracking = held.enter_context(closing(begin_tracking(tracker, recipe, run, reporter.note, resume=resume)))
        log = Log(run.log, mark) if processes.main else None
        reporter.start(recipe, run, progress)
        stop = held.enter_context(StopRequest(told=processes.main))

        updates = Updates(job, run, progress, log, reporter, stop, tracking, on_update)
        if job.objective.sampled:  # the model's own completions, judged: TRL has the loop
            from loopwright.training.trl_trainer import train_by_reward

            train_by_reward(updates)

        while updates.left and not processes.anywhere(bool(stop)):
            update, began = progress.update, time.perf_counter()
            job.begin_update(update)
            drawn = job.draw(progress)
            pairs = drawn.pairs
            targets, tokens = processes.totals(sum(drawn.targets), drawn.tokens)

            # forward and backward, batch by batch: shares that add up to the update's loss over all processes
            losses, notes = [], []
            for place, (batch, plan) in enumerate(pairs):
                share = Share(targets=drawn.targets[place] / max(targets, 1), rows=1 / (len(pairs) * processes.world))
                with processes.syncing(last=place == len(pairs) - 1):
                    loss, metrics = job.backward(batch, plan, share, progress.solved_at)
                losses.append(loss)
                notes.append(metrics)
            norm = job.clip()
            job.draw_ahead(progress)  # here nobody waits for it: the device is busy
            loss_value, norm_value, values = collect(processes, losses, norm, notes)

            # a loss or gradient that is not finite never reaches the parameters
            finite = math.isfinite(loss_value) and math.isfinite(norm_value)
            if finite:
                job.step(update)
            job.zero_grad()
            row = {
                "update": update, "loss": loss_value, "depth": [plan.depth for _, plan in pairs], "grad_norm": norm_value,
                "lr": job.optimiser.lr, "targets": targets, "tokens": tokens, **values,
            }  # fmt: skip
            updates.end(row, finite=finite, began=began, pairs=pairs)

        saved = updates.save()
        if log is not None:
            log.close()
        reporter.end(progress, saved, stopped=bool(stop))
        warn_of_skips(progress, reporter)
        ended = Run(job.whole_model(), job.splits, run, progress, saved, finished=progress.update >= recipe.updates)
        if log is not None and (spiked := ended.spikes()):
            reporter.note(spikes_in_words(spiked))
        return ended


@dataclass(frozen=True)
class Updates:
    """A run between its updates. `log` is None in processes that write none."""

    job: Job
    run: RunFolder
    progress: Progress
    log: Log | None
    reporter: ProgressReporter
    stop: StopRequest
    tracking: Tracking
    on_update: Callable[[dict[str, Any]], object] | None = None

    @property
    def left(self) -> int:
        """The updates that are still to come."""
        return self.job.recipe.updates - self.progress.update

    def end(self, row: dict[str, Any], *, finite: bool, began: float, pairs: Sequence[tuple[Batch, Plan]] = ()) -> None:
        """Ends an update that began at a time of `perf_counter`; `row` is its line of the log, `pairs` are its batches, from which
        its speed is counted (completions are sampled too, so that grpo gives none)."""
        job, progress, recipe = self.job, self.progress, self.job.recipe
        update, first_row = progress.update, progress.rows
        progress.count(finite, rows=recipe.batch, tokens=row["tokens"], targets=row["targets"])
        if not finite:
            row |= {"skipped": True, "rows": [first_row, progress.rows], "in_a_row": progress.skipped_in_a_row}
        seconds = time.perf_counter() - began
        speed = job.speed.row(pairs, seconds, job.processes.world) if pairs else {}
        timed = {**row, "seconds": seconds, "tokens_per_second": row["tokens"] / seconds, **speed}
        if self.log is not None:
            self.log.write(timed)
        self.tracking.write(timed)
        self.reporter.update({**row, **speed}, progress, seconds)
        if self.on_update is not None and self.on_update(row) is True:
            self.stop.asked = True
        if progress.skipped_in_a_row > recipe.patience:
            raise ValueError(hopeless(row, progress, recipe, self.save()))

        # once in a while: validate, save
        seen, better = validate_when_due(job, recipe, progress)
        if seen:
            self.reporter.validation(seen, progress)
            if self.log is not None:
                self.log.write({"update": update, **seen})
            self.tracking.write({"update": update, **seen})
        due = recipe.save.every and progress.update % recipe.save.every == 0
        if (due or (better and recipe.save.best)) and self.left:
            self.save()

    def save(self) -> Path:
        """Saves the run as it stands and returns the checkpoint's folder."""
        return save_job(self.job, self.run, self.progress, self.log)


def hopeless(row: dict[str, Any], progress: Progress, recipe: Recipe, saved: Path) -> str:
    """Returns why a run gave up, in one line."""
    return (
        f"update {row['update']}: loss {row['loss']}, gradient norm {row['grad_norm']} at depth {row['depth']}: not finite "
        f"{progress.skipped_in_a_row} times in a row (patience {recipe.patience}); the parameters have not changed since update "
        f"{progress.update - progress.skipped_in_a_row} and are saved in {saved}; lower optim.lr or lengthen schedule.warmup"
    )


def own_folder(folder: str | Path, processes: Processes, *, resume: bool) -> AbstractContextManager[RunFolder]:
    """Returns the run folder, held by the main process for all of them; a folder that is not a run's to write is refused first."""
    run = RunFolder(folder)
    if resume and not run.recipe.is_file():
        raise ValueError(f"resume: {run.path} holds no run (no recipe.yaml); leave --resume out to start one")
    if not resume and processes.main:
        run.check_free()  # and once more when it is held: another start may come first
        run.check_out("train")
    return run.locked() if processes.main else nullcontext(run)


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Puts every generator of the process back as it was: updates seed them, and what the caller draws after a run must not be the
    same after each."""
    numbers, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(numbers)
        np.random.set_state(arrays)


def collect(
    processes: Processes, losses: Sequence[Tensor], norm: Tensor, notes: Sequence[Mapping[str, Tensor]]
) -> tuple[float, float, dict[str, float]]:
    """Returns loss, gradient norm and metrics as numbers, summed over batches and processes: one wait for the device."""
    names = list(notes[0])
    sums = [torch.stack([note[name].float() for note in notes]).sum() for name in names]
    total = processes.sum(torch.stack([torch.stack(list(losses)).sum().float(), *sums]))
    numbers = torch.cat([total, norm.detach().float().reshape(1).to(total.device)]).tolist()
    return numbers[0], numbers[-1], dict(zip(names, numbers[1:-1], strict=True))


def warn_of_skips(progress: Progress, reporter: ProgressReporter) -> None:
    """Says so where a run ended on updates that were skipped."""
    if progress.skipped_in_a_row:
        reporter.note(
            f"warning: the last {progress.skipped_in_a_row} updates were skipped, since loss or gradient was not finite; "
            "the model is likely of no use: lower optim.lr"
        )
