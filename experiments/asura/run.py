"""Trains and measures the rows of the ASURA study.

    python -m experiments.asura.run OUT.jsonl --corpus corpus --tokenizer runs/bpe --workers 3

CORPUS holds train-*.jsonl.gz and valid, test and heldout_ood.jsonl.gz. TOKENIZER is a folder; where it is not there yet, a
byte-pair tokenizer of 8,192 tokens is trained on the first training file and put there.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.asura.plan import STEPS, Row, rows
from experiments.corpus import (
    OPTIONS,
    PASSAGES,
    VOCABULARY,
    held_out_files,
    make_tokenizer,
    prepare,
    prepare_passages,
    texts,
    training_files,
)
from experiments.corpus import passages as corpus_passages
from experiments.side_by_side import folded, made_by
from experiments.study import Study
from experiments.trained import train_once
from loopwright.training.report import spikes

TEXTS = ("test", "ood")
SETTINGS = (
    f"model.changes.vocab_size={VOCABULARY}", "model.changes.init={kind: normal}",  # as the rows started
    "model.changes.tie_word_embeddings=true", "model.changes.head_bias=false",
    "objective={kind: final}", "average=null", "remat=none", "data.length=256", "batch=64", "accumulate=1", "updates=1200",
    "schedule.warmup=100", "optim.lr=1e-3", "save={every: 0, best: false}", "validate={every: 0}",
)  # fmt: skip


def carry_out(
    row: Row, *, corpus: str, tokenizer: str, shards: str, context: int, passages: int, extra: tuple[str, ...],
    kept: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Trains one row, measures it on both texts, and returns all numbers."""
    import torch

    from experiments.asura.parts import register_parts
    from loopwright.evaluation.text import held_out
    from loopwright.model.cost import pass_flops
    from loopwright.recipes import recipe

    register_parts()
    chosen = recipe("asura-every-step", [*SETTINGS, *texts(corpus, tokenizer), *laid_over(row, extra)])
    trained = train_once(chosen, shards, kept=kept)
    model = trained.outcome.model
    torch.set_float32_matmul_precision("highest")
    found = {name: held_out(model, each) for name, each in corpus_passages(shards, passages).items()}
    norms = trained.taken("grad_norm")
    return {
        "name": row.name, "size": row.size, "label": row.label, "seed": row.seed, "changes": list(row.changes),
        "laid_over": [*extra, *row.schedule], "files": len(training_files(corpus)),
        "parameters": sum(p.numel() for p in model.parameters()),
        "flops": pass_flops(model.config, batch=1, length=context)["total"] / context,
        "tokens": sum(entry["tokens"] for entry in trained.log), "train_seconds": trained.seconds,
        "losses": trained.losses(),
        "gradient_norms": [round(max(norms[i : i + 20]), 4) for i in range(0, len(norms), 20)],
        "spikes": len(spikes(trained.taken("loss"))), "skipped": trained.outcome.progress.skipped,
        "valid": found["valid"].loss[-1], "texts": {name: folded(found[name]) for name in TEXTS}, "origin": made_by(kept),
    }  # fmt: skip


def laid_over(row: Row, extra: Sequence[str]) -> tuple[str, ...]:
    """Returns what a row changes in the recipe: a schedule of its own is laid over what the command gives to all rows."""
    depth = f"depth={{kind: fixed, depth: {STEPS if row.looped else 1}}}"
    return *row.changes, depth, f"seed={row.seed}", *extra, *row.schedule


def tokenise(asked: Namespace, left: Sequence[Row]) -> None:
    """Tokenises the texts once for all rows."""
    from loopwright.recipes import recipe

    chosen = recipe("asura-every-step", [*SETTINGS, *texts(asked.corpus, asked.tokenizer), *asked.change])
    make_tokenizer(asked.corpus, Path(asked.tokenizer))
    prepare(chosen.data, asked.shards)
    prepare_passages(held_out_files(asked.corpus), asked.tokenizer, asked.context, Path(asked.shards) / PASSAGES)


STUDY = Study(
    __doc__, carry_out, {"all": rows},
    options={
        **OPTIONS, "--shards": {"default": "runs/asura-shards", "help": "where token shards are kept"},
        "--context": {"type": int, "default": 256}, "--passages": {"type": int, "default": 600, "help": "of each held-out text"},
    },
    prepare=tokenise, goes_on=True,
)  # fmt: skip


if __name__ == "__main__":
    STUDY.main()
