"""Trains and measures the runs of the study: first the rates, then every arm at its own.

    python -m experiments.repeats.run OUT.jsonl --corpus CORPUS --tokenizer CORPUS/bpe --workers 14 --seconds 260

CORPUS holds train-*.jsonl.gz and valid, test and heldout_ood.jsonl.gz; TOKENIZER as in experiments.asura.run.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.asura.run import SETTINGS, TEXTS
from experiments.corpus import OPTIONS, PASSAGES, held_out_files, make_tokenizer, prepare, prepare_passages, texts
from experiments.corpus import passages as corpus_passages
from experiments.repeats.plan import (
    BATCH,
    COMPARED_RATES,
    DEPTH_RATES,
    DEPTHS,
    DOCUMENTS,
    LENGTH,
    STOPPED,
    TUNED,
    Row,
    calm,
    compared,
    depths,
    longer,
    rates,
    whole_text,
)
from experiments.side_by_side import compared as compared_at
from experiments.side_by_side import folded, made_by
from experiments.study import Rows, Study
from experiments.trained import train_once

if TYPE_CHECKING:
    from loopwright.checking.probes import Verdict
    from loopwright.evaluation.text import Passages
    from loopwright.model.causal_lm import LoopedForCausalLM

AT_ONCE = 16  # passages of a pass that reads every step out: trainings side by side want the memory
LAID = (f"data.length={LENGTH}", f"batch={BATCH}", "data.apart=false", "compile=false")  # compiling takes longer than a run


def carry_out(
    row: Row, *, corpus: str, tokenizer: str, shards: str, passages: int, extra: tuple[str, ...], kept: Path | None = None
) -> dict[str, Any]:
    """Trains one row, measures it on the held-out texts, and returns all numbers."""
    import torch

    from loopwright.evaluation.likelihood import need_likelihood
    from loopwright.evaluation.text import held_out
    from loopwright.model.cost import pass_flops
    from loopwright.recipes import recipe

    chosen = recipe("asura-every-step", [*SETTINGS, *texts(corpus, tokenizer), *LAID, *row.changes, *extra])
    trained = train_once(chosen, shards, best=row.times == STOPPED, kept=kept)
    model = trained.outcome.model
    torch.set_float32_matmul_precision("highest")
    held = corpus_passages(shards, passages)
    causal = need_likelihood(model)

    def measured(model: LoopedForCausalLM) -> dict[str, Any]:
        depths = [model.config.depth]
        found = {name: held_out(model, each, depths=depths, causality=causal) for name, each in held.items()}
        return {"loss": {name: each.loss[-1] for name, each in found.items()}, "texts": {"test": folded(found["test"])}}

    early = {} if trained.best is None else {"stopped": measured(trained.best) | {"update": trained.outcome.progress.best_update}}
    deep = {"deep": test_time(model, held, row.tested, causal)} if row.tested else {}
    tokens = sum(entry["tokens"] for entry in trained.log)
    return {
        "name": row.name, "label": row.label, "times": row.times, "rate": row.rate, "seed": row.seed,
        "changes": [*LAID, *row.changes], "laid_over": list(extra),
        "parameters": sum(p.numel() for p in model.parameters()),
        "flops": pass_flops(model.config, batch=1, length=LENGTH)["total"] / LENGTH,
        "tokens": tokens, "epochs": tokens / trained.outcome.splits.notes["train"]["tokens"],
        "train_seconds": trained.seconds, "losses": trained.losses(40), "skipped": trained.outcome.progress.skipped,
        **measured(model), **early, **deep, "origin": made_by(kept),
    }  # fmt: skip


def test_time(model: LoopedForCausalLM, held: Mapping[str, Passages], depths: Sequence[int], causality: Verdict) -> dict[str, Any]:
    """Returns the losses of documents at depths other than the trained one, and by exit rules where as many steps as they may take
    are among these depths."""
    from experiments.leaving.reading import MOST, exits
    from loopwright.evaluation.text import held_out

    found = {name: folded(held_out(model, held[name], depths=depths, causality=causality)) for name in TEXTS}
    texts = {name: compared_at(each, DOCUMENTS) for name, each in found.items()}
    left = {name: exits(model, held[name], batch=AT_ONCE) for name in TEXTS} if max(depths) >= MOST else {}
    return {"texts": texts, "exits": left}


def best_rates(found: Iterable[dict[str, Any]]) -> dict[tuple[str, int], float]:
    """Returns the rate of each arm with the least loss on `valid`, of seed 0, by how often the text is read; where it is read so
    often that runs are validated on the way, it is that of the best validation. A depth has one once both rates were tried."""
    tried: dict[tuple[str, int], dict[float, float]] = {}
    for run in found:
        end = run.get("stopped") if run["times"] == STOPPED else run
        tuned = run["label"] in DEPTHS or (run["label"] in TUNED and run["times"] in COMPARED_RATES)
        if end is not None and tuned and run["seed"] == 0:
            valid = end["loss"]["valid"]
            tried.setdefault((run["label"], run["times"]), {})[run["rate"]] = math.inf if valid is None else valid
    best = {}
    for key, losses in tried.items():
        rate = min(losses, key=lambda each: (losses[each], each))
        if math.isfinite(losses[rate]) and (key[0] not in DEPTHS or {*DEPTH_RATES} <= {*losses}):
            best[key] = rate
    return best


def counts(row: dict[str, Any]) -> bool:
    """Returns whether a row is a result of this plan, and need not be made again: of text that is read so often that runs are
    stopped early, rows of an earlier plan have the end of training alone."""
    return row["times"] != STOPPED or "stopped" in row


def stages(rows: Rows) -> Iterator[Iterable[Row]]:
    """Yields the rates, then every arm at its own."""
    yield rates()
    best = best_rates(rows())
    print(f"rates, by the loss on valid: {best}", flush=True)
    yield [*compared(best), *longer(best), *depths(best), *calm(), *whole_text(best)]


def tokenise(asked: Namespace, left: Sequence[Row]) -> None:
    """Tokenises the texts once for all rows, as much of each as they read."""
    from loopwright.recipes import recipe

    make_tokenizer(asked.corpus, Path(asked.tokenizer))
    prepare_passages(held_out_files(asked.corpus), asked.tokenizer, LENGTH, Path(asked.shards) / PASSAGES)
    for documents in {row.documents for row in left}:
        given = (*SETTINGS, *texts(asked.corpus, asked.tokenizer), *LAID, f"data.limit={documents or 'null'}", *asked.change)
        prepare(recipe("asura-every-step", given).data, asked.shards)


STUDY = Study(
    __doc__, carry_out, stages=stages,
    options={
        **OPTIONS, "--shards": {"default": "runs/repeats-shards", "help": "where token shards are kept"},
        "--passages": {"type": int, "default": 600, "help": "of each held-out text"},
    },
    prepare=tokenise, counts=counts, goes_on=True,
)  # fmt: skip


if __name__ == "__main__":
    STUDY.main()
