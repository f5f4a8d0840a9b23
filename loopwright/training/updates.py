"""What a run does after each update, whoever computed it: counts, logs, reports, validates, saves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.data.batch import Batch
from loopwright.storage.run import RunFolder
from loopwright.training.recipe import Recipe
from loopwright.training.report import Log, Progress, ProgressReporter, StopRequest
from loopwright.training.rollout import Plan
from loopwright.training.run import Job, save_job
from loopwright.training.tracking import Tracking
from loopwright.training.validation import validate_when_due


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
