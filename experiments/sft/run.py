"""Trains the models of the study, many side by side on one GPU, measures each and lets it answer: a row for each, as it ends.

Runs that are in the file already are left out, so that the same command goes on where it was stopped. What is measured of a run
before it answers is kept beside it, in measured/, in case the time ends with the answers: `tables` takes both, the rows last.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.sft.plan import TEXT, Places, Run, later_runs, text_flops, text_runs
from experiments.side_by_side import as_line, made_by, run_all

if TYPE_CHECKING:
    from experiments.trained import Trained
    from loopwright.model.causal_lm import LoopedForCausalLM
    from loopwright.training.recipe import Recipe

TIMED = Run("random")  # the exits and drafts of this model are measured by `experiments.exits`
GENERATED = (1, 2, 4, 8, 16)
QUESTIONS_AT_ONCE = 256


@dataclass(frozen=True)
class Sizes:
    """How much is measured: held-out chats, passages of text, questions that are answered, tokens of an answer."""

    rows: int
    passages: int
    questions: int
    most: int


def begin(run: Run, *, places: Places, changes: tuple[str, ...]) -> dict[str, Any]:
    """Trains a model that others begin from; they need not wait until it is measured."""
    trained_once(run, places, changes)
    return {"name": run.name}


def trained_once(run: Run, places: Places, changes: tuple[str, ...]) -> tuple[LoopedForCausalLM, dict[str, Any]]:
    """Returns a run's model and the numbers of its training. A model that is needed later is saved, and not trained again; one that
    other settings made is refused."""
    import torch

    import loopwright as lw
    from experiments.trained import train_once

    folder, chosen = places.model(run), run.recipe(places, changes)
    about, settings = folder / "training.json", json.loads(json.dumps(asdict(chosen), default=str))
    if about.is_file():
        numbers = json.loads(about.read_text())
        if numbers.pop("recipe", None) != settings:
            raise ValueError(f"{folder} was trained by another recipe; remove it, or give another --runs")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return lw.load(folder, dtype="float32", device=device), numbers
    trained = train_once(chosen, places.shards)
    model, numbers = trained.outcome.model, numbers_of(trained, chosen, text_flops(chosen) if run.label in TEXT else None)
    if run in (*text_runs(), TIMED):
        lw.save(model, folder, trained.outcome.splits.tokenizer)
        about.write_text(json.dumps({**numbers, "recipe": settings}) + "\n")
    return model, numbers


def numbers_of(trained: Trained, chosen: Recipe, flops: int | None) -> dict[str, Any]:
    """Returns the numbers of a training."""
    model, progress = trained.outcome.model, trained.outcome.progress
    return {
        "updates": progress.update, "tokens": progress.tokens, "skipped": progress.skipped,
        "parameters": sum(p.numel() for p in model.parameters()), "lr": chosen.optim["lr"],
        "flops": flops, "train_seconds": trained.seconds, "losses": trained.losses(),
    }  # fmt: skip


def carry_out(run: Run, *, places: Places, sizes: Sizes, changes: tuple[str, ...]) -> dict[str, Any]:
    """Trains one model on its tokens, measures it at every depth, and returns all numbers."""
    from experiments.sft.measure import read_model

    model, numbers = trained_once(run, places, changes)
    began, chats = time.perf_counter(), Run("fixed").recipe(places, changes)
    found = {
        "name": run.name, "label": run.label, "seed": run.seed, **numbers,
        **read_model(model, chats, places, rows=sizes.rows, passages=sizes.passages), "origin": made_by(),
    }  # fmt: skip
    found["measure_seconds"] = time.perf_counter() - began
    if run.label not in TEXT:
        keep(found, places)
        try:
            found["answers"] = let_answer(model, chats, places, sizes)
        except Exception as error:  # what was trained and measured is not lost with it
            print(f"no answers of {run.name}: {type(error).__name__}: {error}", flush=True)
    return found


def keep(found: dict[str, Any], places: Places) -> None:
    """Writes what is known of a run into a file of its own."""
    folder = Path(places.runs) / "measured"
    folder.mkdir(exist_ok=True)
    (folder / f"{found['name'].replace('/', '-')}.jsonl").write_text(as_line(found) + "\n")


def let_answer(model: LoopedForCausalLM, chosen: Any, places: Places, sizes: Sizes) -> dict[str, Any]:
    """Returns how many questions a model answers rightly by itself at several depths, in bfloat16 on a GPU."""
    import torch

    from experiments.sft.measure import answers, chat_passages, result
    from loopwright.data.tokenizer import Tokenizer

    if model.device.type == "cuda":
        model.to(torch.bfloat16)  # type: ignore[call-arg]  # how transformers wraps `to`
    chats, tokenizer, began = chat_passages(chosen, places, sizes.questions), Tokenizer(str(places.base)), time.perf_counter()
    depths = GENERATED if model.config.is_looped else (1,)
    right, with_result, first = [], [], []
    for depth in depths:
        own = depth if model.config.is_looped else None
        said = list(answers(model, chats, tokenizer, own, batch=QUESTIONS_AT_ONCE, most=sizes.most))
        right.append(sum(result(answer) == result(wanted) for answer, wanted in said))
        with_result.append(sum(result(answer) is not None for answer, _ in said))
        first.append(said[0][0][:200])
    return {
        "questions": len(chats), "depth": list(depths), "right": right, "with_result": with_result, "first": first,
        "seconds": time.perf_counter() - began,
    }  # fmt: skip


def study(places: Places, seeds: list[int], sizes: Sizes, *, workers: int, seconds: float, changes: tuple[str, ...] = ()) -> None:
    """Trains on text first, then the arms from there; ends within so many seconds."""
    from experiments.corpus import prepare

    deadline = time.time() + seconds
    for run in (Run("heal"), Run("fixed")):
        prepare(run.recipe(places, changes).data, places.shards)
    first = partial(begin, places=places, changes=changes)
    work = partial(carry_out, places=places, sizes=sizes, changes=changes)
    for name, runs, each in (("begun", text_runs(), first), ("rows", later_runs(seeds), work)):
        out = str(Path(places.runs) / f"{name}.jsonl")
        run_all(list(runs), each, out, workers=workers, seconds=max(deadline - time.time(), 1.0))
        print(f"{deadline - time.time():.0f} s left", flush=True)
