"""Trains and measures the rows of the retrofit study on one model and one corpus.

    python -m experiments.ouroboros.run OUT.jsonl --source smollm2 --corpus corpus --groups references,main

SOURCE is a dense model's folder with its tokenizer, CORPUS holds train-*.jsonl.gz and valid, test and heldout_ood.jsonl.gz.
Every row is measured on the same passages, in-domain (test) and out-of-domain (ood), at every depth of DEPTHS, in float32.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.corpus import prepare, texts
from experiments.ouroboros.plan import GROUPS, Row
from experiments.side_by_side import made_by
from experiments.study import Study
from experiments.trained import Trained, train_once

DEPTHS = (1, 2, 4, 8, 16)
KIND_DEPTH, KIND_PASSAGES = 8, 64
TEXTBOOKS = "openstax/"
TEXTS = {"test": "test.jsonl.gz", "ood": "heldout_ood.jsonl.gz"}
# what a system trains is for the system to say; batches of 16,384 tokens
SETTINGS = (
    "model.dtype=bfloat16", "optim.train=null", "updates=240", "batch=32", "schedule.warmup=24", "optim.lr=4e-3",
    "depth={kind: choice, values: [1, 2, 4, 8]}", "save={every: 0, best: false, parts: false}", "validate={every: 0, depths: []}",
)  # fmt: skip


def carry_out(
    row: Row, *, source: str, corpus: str, shards: str, context: int, passages: int, kinds: list[str], extra: tuple[str, ...]
) -> dict[str, Any]:
    """Makes one model, trains it where the row says so, measures it on both texts, and returns all numbers."""
    import torch

    from loopwright.data.tokenizer import Tokenizer
    from loopwright.evaluation.text import held_out, read_passages

    began = time.perf_counter()
    model, run = made(row, source, corpus, shards, extra)
    trained = time.perf_counter() - began
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device=device, dtype=torch.float32).eval()
    tokenizer, found = Tokenizer(source), {}
    for name, file in TEXTS.items():
        text = read_passages(name, Path(corpus) / file, tokenizer, context).drawn(passages)
        report = held_out(model, text, depths=depths_of(model), marked=row.leaks, honest=1000 if row.leaks else 0)
        found[name] = asdict(report)
    said = diagonals(model, kinds, tokenizer, context)
    return about(row, model, run, trained, extra) | {"texts": found, "diagonals": said, "origin": made_by()}


def about(row: Row, model: Any, run: Trained | None, seconds: float, extra: tuple[str, ...]) -> dict[str, Any]:
    """Returns what a row is, what it trains, and how its training went."""
    parameters = list(model.parameters())
    bases = sum(p.numel() for name, p in model.named_parameters() if ".bases." in name)
    return {
        "name": row.name, "group": row.group, "label": row.label, "seed": row.seed, "system": row.system,
        "changes": [*row.changes, *row.overrides], "laid_over": list(extra), "objective": row.objective,
        "trainable": sum(p.numel() for p in parameters if p.requires_grad) if row.objective else 0,
        "kept": sum(p.numel() for p in model.without_adapters().parameters()), "bases": bases,
        "tokens": sum(entry["tokens"] for entry in run.log) if run else 0, "train_seconds": seconds,
        "losses": run.losses(10) if run else [], "skipped": run.outcome.progress.skipped if run else 0,
        "skipped_at": run.skipped() if run else [],  # update and depths
    }  # fmt: skip


def made(row: Row, source: str, corpus: str, shards: str, extra: tuple[str, ...]) -> tuple[Any, Trained | None]:
    """Returns the row's model, and how it was trained where it was."""
    import loopwright as lw
    from loopwright.schema import parse_overrides

    if row.system is None:
        return lw.load(source), None
    if row.objective is None:
        return lw.retrofit(source, row.system, **parse_overrides(row.changes)), None
    trained = train_once(recipe_of(row, source, corpus, extra), f"{shards}/{row.text}")
    return trained.outcome.model, trained


def recipe_of(row: Row, source: str, corpus: str, extra: tuple[str, ...] = ()) -> Any:
    """Returns the recipe a row is trained by: heal-smollm2's, with a model that has nothing of that recipe's own."""
    from loopwright.recipes import recipe
    from loopwright.schema import parse_overrides
    from loopwright.training.recipe import make_recipe

    assert row.objective is not None
    data = recipe("heal-smollm2").data_of()
    data["model"] = {"kind": "retrofit", "source": source, "system": row.system}
    overrides = [
        *SETTINGS, *[f"model.changes.{change}" for change in row.changes], *texts(corpus, source, row.text),
        row.objective % {"source": source}, f"seed={row.seed}", *row.overrides, *extra,
    ]  # fmt: skip
    return make_recipe(data, changes=parse_overrides(overrides))


def diagonals(model: Any, kinds: list[str], tokenizer: Any, context: int) -> dict[str, Any] | None:
    """Returns what the model's controller says on each kind of text (NAME:FIELD=FILE); None where there is none to ask."""
    from experiments.ouroboros.diagonals import parted, spoken
    from loopwright.evaluation.text import read_passages
    from loopwright.model.parts.adapters.diagonal import Controller

    if not kinds or not any(isinstance(adapter, Controller) for adapter in model.adapters):
        return None
    said = {}
    for kind in kinds:
        about, file = kind.split("=", 1)
        name, field = about.split(":")
        said[name] = spoken(model, read_passages(name, file, tokenizer, context, field=field, most=KIND_PASSAGES), KIND_DEPTH)
    return parted(said)


def depths_of(model: Any) -> list[int] | None:
    """Returns the depths a model is measured at: those it has tables for, where it refuses to go beyond."""
    if not model.config.is_looped:
        return None
    ends = model.config.max_steps if model.config.beyond_max_steps == "refuse" else None
    return [depth for depth in DEPTHS if ends is None or depth <= ends]


def begin(asked: Namespace, left: Sequence[Row]) -> None:
    """Tokenises once for all rows."""
    if not (Path(asked.source) / "config.json").is_file():
        sys.exit(f"source: {asked.source} holds no config.json; allowed: the folder of a dense model with its tokenizer")
    for text in sorted({row.text for row in left if row.objective is not None}):
        tokenise(text, asked.source, asked.corpus, asked.shards, tuple(asked.change))


def tokenise(text: str, source: str, corpus: str, shards: str, extra: tuple[str, ...]) -> None:
    """Tokenises a training text before the rows share it; the textbooks are first taken out of the mixture."""
    from loopwright.recipes import recipe

    own = Path(corpus) / f"{text}-00.jsonl.gz"
    if text == "textbooks" and not own.exists():
        take_textbooks(Path(corpus), own)
    prepare(recipe("heal-smollm2", [*texts(corpus, source, text), *extra]).data, f"{shards}/{text}")


def take_textbooks(corpus: Path, target: Path) -> None:
    """Writes the textbooks of the training files to a file of their own, whole or not at all."""
    part = target.with_suffix(".part")
    with gzip.open(part, "wt", compresslevel=3) as out:
        for path in sorted(corpus.glob("train-*.jsonl.gz")):
            with gzip.open(path, "rt") as lines:
                out.writelines(line for line in lines if json.loads(line)["source"].startswith(TEXTBOOKS))
    part.rename(target)


STUDY = Study(
    __doc__, carry_out, GROUPS,
    options={
        "--source": {"required": True}, "--corpus": {"required": True},
        "--shards": {"default": "runs/shards", "help": "where token shards are kept"}, "--context": {"type": int, "default": 512},
        "--passages": {"type": int, "default": 400, "help": "of each held-out text"},
        "--kinds": {"action": "append", "default": [], "help": "NAME:FIELD=FILE, texts to ask controllers about"},
    },
    prepare=begin,
)  # fmt: skip


if __name__ == "__main__":
    STUDY.main()
