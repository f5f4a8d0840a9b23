"""A run's way to disk and back: what a checkpoint says of how the run was made, and how a run goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopwright.convert.card import put_card
from loopwright.imports import file_digests
from loopwright.run import ANEW, MADE, RunFolder, saved
from loopwright.storage.files import read_json, write_json
from loopwright.storage.manifest import MANIFEST
from loopwright.train.checkpoint import latest_good, save_checkpoint
from loopwright.train.job import Job
from loopwright.train.made_of import check_same_config, check_same_objects, check_same_parts, digest_of_files
from loopwright.train.recipe import read_recipe
from loopwright.train.reporting.card import run_card
from loopwright.train.reporting.log import Log
from loopwright.train.reporting.progress import ProgressReporter
from loopwright.train.state import Progress

OTHERWISE = "not made as before"  # how the note on a run begins that does not go on bit for bit


def resume_job(job: Job, run: RunFolder, reporter: ProgressReporter) -> tuple[Progress, dict[str, Any] | None]:
    """Puts the newest good checkpoint into a run's objects; returns how far it was, and its mark of the log (None: no log yet)."""
    try:
        checkpoint, damaged = latest_good(run.checkpoints)
    except FileNotFoundError:
        job.processes.check_same({"the checkpoint": "none"})
        reporter.note("no checkpoint yet: the run starts again from its first update")
        return Progress(), None
    job.processes.check_same({"the checkpoint": f"{checkpoint.update} ({digest_of_files([checkpoint.folder / MANIFEST])})"})
    for line in damaged:
        reporter.note(f"skipped a damaged checkpoint: {line}")
    if not (checkpoint.folder / MADE).is_file():
        raise ValueError(
            f"{checkpoint.folder}: has no {MADE}, so an older version saved it; train with that version, or start a new run"
        )
    facts, rows = read_json(checkpoint.folder / MADE), len(job.splits.train)
    if facts.get("rows", rows) != rows:  # an older version did not say
        raise ValueError(
            f"resume: train has {rows:,} rows now and had {facts['rows']:,} when {checkpoint.folder} was saved; "
            "give the run its own data again, or start a new one"
        )
    if "rows" not in facts:
        _refuse_older(job, checkpoint.folder)
    check_same_parts(checkpoint.folder, facts.get("parts", {}))
    check_same_config(checkpoint.folder, job.model.config)
    if "of" in facts:
        check_same_objects(checkpoint.folder, facts["of"], job.made_of)
    else:
        reporter.note("an older version saved this checkpoint without a digest of its data: that they are the same is not checked")
    job.load(checkpoint.folder)
    reporter.note(f"resumed from {checkpoint.folder} ({checkpoint.update} updates done)")
    before, now = {"compiled": False, **facts["with"]}, made_with(job)
    if "replayed" not in before:  # an older version, which replayed where it was asked to
        before["replayed"] = read_recipe(run.recipe).graph is True
    differs = [name for name in now if before.get(name) != now[name]]
    if set(differs) <= {"compiled", "replayed"} and now["compiled"] and not before["compiled"] and job.recipe.compile is not True:
        reporter.note("compile: auto leaves the model as it is written: it ran so until here (compile: true compiles it)")
        job.leave_compiled()
        now = made_with(job)
        differs = [name for name in now if before.get(name) != now[name]]
    if differs == ["replayed"] and job.replayed is not None and not job.replayed.asked:
        job.replayed.give_up("so they ran until here, and so the run goes on bit for bit (graph: true replays them)")
    elif differs:
        told = "; ".join(f"{name}: {before.get(name)} then, {now[name]} now" for name in differs)
        reporter.note(f"{OTHERWISE} ({told}): sums are rounded otherwise, so the run goes on alike, but not bit for bit")
    job.start = facts.get("start", f"{ANEW} from update {checkpoint.update}")
    if job.model.state.seeded and "start" not in facts:
        reporter.note("until here every row began at one and the same noise; from here on each row of each update has its own")
    if not run.log.is_file():
        reporter.note(f"{run.log} is not there: it begins anew at update {checkpoint.update}")
    return Progress(**checkpoint.state), facts["log"]


def _refuse_older(job: Job, folder: Path) -> None:
    """Raises where a run of version 0.2.0 or before would go on as another: with other windows of text or trained weights."""
    again = "train with that version, or start a new run"
    if getattr(job.splits.train, "documents", None) is not None:  # windows of text know theirs
        raise ValueError(f"resume: {folder} is of a version whose windows of text did not overlap by a token; {again}")
    model = job.recipe.model
    if isinstance(model, Mapping) and model.get("system") == "relaxed" and "trains" not in model:
        raise ValueError(f"resume: {folder} is of a version that trained the low-rank parts alone; give model.trains=parts")


def made_with(job: Job) -> dict[str, Any]:
    """Returns what decides how sums are rounded, beside the recipe: a run that goes on with the same goes on bit for bit."""
    device = torch.cuda.get_device_name(job.device) if job.device.type == "cuda" else job.device.type
    threads = torch.get_num_threads() if job.device.type == "cpu" else None
    facts: dict[str, Any] = {"threads": threads, "processes": job.processes.world, "device": device, "compiled": job.compiled}
    facts["replayed"] = job.replays
    facts["torch"] = str(torch.__version__)
    return facts


def check_finite(weights: Mapping[str, Tensor], run: RunFolder, update: int, lr: float) -> None:
    """Raises a ValueError where a parameter is not finite: it is not worth saving, and must not take a good checkpoint's place."""
    odd = next((name for name, x in weights.items() if x.is_floating_point() and not bool(x.isfinite().all())), None)
    if odd is None:
        return
    good = next(iter(saved(run.checkpoints)), None)
    kept = "there is no checkpoint yet" if good is None else f"the newest checkpoint is {good}"
    raise ValueError(f"update {update}: {odd} is not finite, so nothing is saved; {kept}; lower optim.lr (it is {lr:g}) or clip")


def _saved_best(run: RunFolder, progress: Progress) -> int | None:
    """The best update so far where it is, or is being, saved: validation goes on judging where a recipe does not save the best."""
    best = progress.best_update
    return best if best == progress.update or (run.checkpoints / f"{best or 0:08d}").is_dir() else None


def save_job(job: Job, run: RunFolder, progress: Progress, log: Log | None) -> Path:
    """Saves a run as it stands, its log first, and returns the checkpoint's folder. Parameters must be finite."""
    weights, tensors = job.weights(), job.tensors()
    check_finite(weights, run, progress.update, job.optimiser.lr)
    if log is not None:  # in the main process
        facts = {"log": log.mark(), "with": made_with(job), "rows": len(job.splits.train)}
        facts |= {"of": job.made_of, "parts": file_digests()}
        facts |= {"start": job.start} if job.model.state.seeded else {}
        card = run_card(job.model.config, job.recipe, run, progress)

        def beside(folder: Path) -> None:
            write_json(folder / MADE, facts)
            put_card(folder, card, before=run.checkpoints / f"{progress.update:08d}")
            if job.splits.tokenizer is not None:
                job.splits.tokenizer.save_pretrained(folder)

        save_checkpoint(
            run.checkpoints, progress.update,
            model=job.model, weights=weights, tensors=tensors, state=asdict(progress),
            best=_saved_best(run, progress), keep=job.recipe.save.keep, references=job.references,
            beside=beside,
        )  # fmt: skip
    job.processes.wait()
    return run.checkpoints / f"{progress.update:08d}"
