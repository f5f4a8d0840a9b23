"""`loopwright analyze`: look inside a model on some prompts; numbers, figures and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loopwright.analysis.closeup import PAIR_PROMPTS, PAIR_STEPS, pair_bytes, path_bytes
from loopwright.analysis.edit import ablate_massive
from loopwright.analysis.estimate import fitting_batch, free_bytes, trace_bytes
from loopwright.analysis.prompts import Prompt, read_prompts
from loopwright.analysis.report import count
from loopwright.analysis.report_analysis import write_analysis
from loopwright.analysis.study import Subject, check_lengths, study
from loopwright.analysis.trace import trace_depth
from loopwright.analysis.verdict import Finding, converges, safe, stages
from loopwright.commands.models import open_model, open_tokenizer, own_recipe
from loopwright.commands.words import console, find_config, find_device, find_dtype, fitting_threads, need_weights, progress
from loopwright.data.build import build_data
from loopwright.run import RunFolder, write_json

VALID = "valid"  # the prompts of a run folder that are its own validation rows


@dataclass(frozen=True)
class Asked:
    """What the prompts are, and how many of them."""

    prompts: str
    data: str | None = None
    examples: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Plan:
    """How much is done at once, and where: prompts of a pass, steps whose pairs are compared, the device."""

    batch: int
    pairs: int
    device: str


def analyze(
    source: str,
    asked: Asked,
    *,
    depth: int | None = None,
    compare: str | None = None,
    batch: int = 8,
    pairs: int = PAIR_STEPS,
    ablate: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    out: str | None = None,
) -> Path:
    """Traces a model (and a dense one to compare with) over prompts, saves numbers and figures, and returns the page."""
    where, kind = find_device(device), find_dtype(dtype)
    if batch < 1:
        raise ValueError(f"batch: {batch}; allowed: at least 1")
    if pairs < 0:
        raise ValueError(f"pairs: {pairs}; allowed: at least 1 step, or 0 for no comparison of pairs")
    # what can be wrong is found before weights are read
    need_weights("analyze", source)
    if compare is not None:
        need_weights("compare", compare)
    find_config(source).check_depth(depth)
    if compare is not None and find_config(compare).is_looped:
        raise ValueError(f"compare: {compare} is looped; allowed: a dense model, whose layers run once")
    prompts = read_own(source, asked) if asked.prompts == VALID else read_prompts(
        asked.prompts, data=asked.data, examples=asked.examples, seed=asked.seed
    )  # fmt: skip
    run = RunFolder(out or f"runs/analyze-{Path(source).name}")
    if compare is not None:
        rows_of(compare, prompts, "the compared model")  # hours before its turn
    subject = subject_of(source, prompts, where, kind)
    plan = Plan(batch, pairs, where)
    found = _study(subject, run.traces, plan, depth, ablate)
    dense = None
    if compare is not None:
        dense = _study(subject_of(compare, prompts, where, kind), run.path / "traces-dense", plan, None, False)
    run.metrics.mkdir(parents=True, exist_ok=True)
    write_json(run.metrics / "analysis.json", found)
    if dense is not None:
        write_json(run.metrics / "analysis-dense.json", dense)
    page = write_analysis(found, run.path, dense=dense, footer=f"Drawn from {run.metrics.name}/analysis.json.")
    _tell(found, dense, run, page)
    return page


def read_own(source: str, asked: Asked) -> list[Prompt]:
    """Returns the first validation rows of a run folder, without their padding, as token ids."""
    own = own_recipe(source)
    if own is None:
        raise ValueError(f"prompts: {source} holds no run (no recipe.yaml), so no validation rows; give a file, a set or a text")
    rows = build_data(own.data, RunFolder(source).path / "data").valid
    batch = rows.batch(range(min(asked.examples or 32, len(rows))))
    return [ids[real].tolist() for ids, real in zip(batch.input_ids, batch.valid, strict=True)]


def rows_of(source: str, prompts: Sequence[Prompt], whose: str = "the model") -> list[list[int]]:
    """Returns prompts in a model's own tokens; a run's are those its recipe names. What the model cannot take is refused."""
    words: Any = open_tokenizer(source) if any(isinstance(prompt, str) for prompt in prompts) else None
    rows = [words(prompt, verbose=False)["input_ids"] if isinstance(prompt, str) else prompt for prompt in prompts]
    check_lengths(find_config(source), rows, whose)
    return rows


def subject_of(source: str, prompts: Sequence[Prompt], device: str, dtype: torch.dtype) -> Subject:
    """Returns a model with its prompts in its own tokens, checked before its weights are read."""
    rows = rows_of(source, prompts)
    return Subject(Path(source).name, open_model(source, dtype, device), rows)


def _study(subject: Subject, folder: Path, plan: Plan, depth: int | None, ablate: bool) -> dict[str, Any]:
    model = subject.model
    _check_memory(subject, plan, trace_depth(model, depth))
    edit, edited = (ablate_massive(model.config), "MLP output of the second layer zeroed") if ablate else (None, "")
    with fitting_threads(model), progress() as bar:
        task = bar.add_task(subject.name)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=f"{subject.name}: {what}")

        asked = depth if model.config.is_looped else None
        return study(subject, folder, depth=asked, batch=plan.batch, pairs=plan.pairs, edit=edit, edited=edited, progress=tell)


def _check_memory(subject: Subject, plan: Plan, steps: int) -> None:
    """Says what the analysis will hold, and refuses what does not fit, with what would."""
    model, length = subject.model, max(map(len, subject.rows))
    config, rows = model.config, min(plan.batch, len(subject.rows))
    parts = trace_bytes(config, batch=rows, length=length, depth=steps, dtype=model.dtype)
    words = ", ".join(f"{name} {_mebi(size)}" for name, size in parts.items())
    what = f"{subject.name}: {count(len(subject.rows), 'prompt')} of up to {count(length, 'token')}, {count(steps, 'step')}"
    console().print(what, markup=False)
    console().print(f"memory at batch {rows}: about {_mebi(sum(parts.values()))} MiB ({words})", markup=False)
    longest = max(map(len, subject.rows[:PAIR_PROMPTS]))
    shown = min(plan.pairs, steps)

    def pairs(n: int) -> int:
        return pair_bytes(config, longest, steps=n, dtype=model.dtype) if n else 0

    path = path_bytes(config, len(subject.rows[0]), steps)
    close = {f"all pairs of layers over {count(shown, 'step')}": pairs(shown), "its path": path}
    said = ", ".join(f"{name} {_mebi(size)} MiB" for name, size in close.items() if size)
    if said:
        console().print(f"then, of one prompt at a time: {said}", markup=False)
    free = free_bytes(plan.device)
    if free is None:
        return
    fits = fitting_batch(config, batch=rows, length=length, depth=steps, dtype=model.dtype, free=free)
    if fits < rows:
        advice = f"--batch {fits} would fit" if fits else "not even --batch 1 would fit: take shorter prompts"
        raise ValueError(f"batch: {rows} needs about {_mebi(sum(parts.values()))} MiB, {_mebi(free)} are free; {advice}")
    if pairs(shown) > free:
        most = next(n for n in range(shown, -1, -1) if pairs(n) <= free)
        raise ValueError(
            f"pairs: {count(shown, 'step')} would need about {_mebi(pairs(shown))} MiB, {_mebi(free)} are free; "
            f"--pairs {most} would fit"
        )


def _mebi(size: int) -> str:
    return f"{size / 2**20:,.0f}"


def _tell(found: dict[str, Any], dense: dict[str, Any] | None, run: RunFolder, page: Path) -> None:
    def line(question: str, finding: Finding) -> None:
        console().print(f"{question} {finding.sentence}", markup=False)

    if found["places"]["core"]:
        line("Does it converge, and to what?", converges(found))
    line("Are its stages those of a feedforward model?" if found["places"]["core"] else "Its stages:", stages(found, dense))
    if found["places"]["core"]:
        line("Is more depth safe?", safe(found))
    console().print(f"numbers: {run.metrics}\nfigures: {run.figures}\nreport: {page}", markup=False)
