"""The rows of the retrofit study once more, each at a learning rate of its own: a grid, the choice, then fresh seeds.

    python -m experiments.ouroboros.rates OUT.jsonl --source BASE --corpus CORPUS --change graph=true --workers 7 --seconds 400

Seed 0 chooses: an arm's rate is the one whose loss on `valid`, at the best of the depths trained, is the least. Only the seeds
behind it are measured on `test` and `ood`. What matters most comes first, and a call goes on where the last one was stopped.

CORPUS holds train-00, -03, -06 and -09.jsonl.gz, valid, test and heldout_ood.jsonl.gz, BASE SmolLM2-135M-Instruct. All rows were
made, in two sets under experiments/results/ouroboros: 66 in rates.jsonl, with `--change model.changes.core=7` on a BASE whose
looped layer is its eighth, and of which nothing else is known; 19 in again.jsonl, on all 30 layers. Two rows of seed 1 are in both
and differ, so the sets are not put together. twice.jsonl has the means of four rows that were run twice on all 30 layers.
"""

from __future__ import annotations

import gc
import pickle
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from experiments.corpus import prepare_passages
from experiments.ouroboros.answers import TRAINED
from experiments.ouroboros.plan import (
    BLIND,
    CONTROLLER,
    DIAGONAL,
    GATE,
    LEAKING,
    NORMED,
    ONCE,
    PUBLISHED,
    STATIC,
    TOKEN,
    Row,
    cores,
    others,
)
from experiments.ouroboros.plan import main as main_rows
from experiments.ouroboros.run import TEXTS, about, depths_of, made, tokenise
from experiments.pages import Result
from experiments.side_by_side import compared, folded, made_by
from experiments.study import Rows, Study

GRID, TUNED = "rates", "tuned"  # the groups of the rows
RATES = (1e-3, 4e-3, 1.6e-2, 4e-2)
# beyond the grid for arms that were best at its end: what a table or a gate learns moves by one rate an update at most
WIDER = {DIAGONAL: (1e-1, 2.5e-1), GATE: (1e-1,)}
ARMS = (BLIND, CONTROLLER, TOKEN, DIAGONAL, STATIC, GATE)
CLOSE = (TOKEN, BLIND, DIAGONAL)  # what three seeds did not tell apart: more seeds
MORE = (NORMED, PUBLISHED, ONCE, LEAKING)
SEEDS, FURTHER = (1, 2, 3), (4, 5, 6)
LAID = ("data.apart=false", "compile=false")  # passes can then be replayed as graphs; compiling takes longer than a run
PASSAGES = "held-out.pickle"  # of our own making, beside the shards: tokenised once for all rows
HELD = {"valid": "valid.jsonl.gz", **TEXTS}
CONTEXT = 512  # tokens of a passage
AT_ONCE = 16  # passages of a pass: many runs share the device
HONEST = 1000  # tokens that a model which sees the future is scored on from their prefixes alone


def rated(arm: str, rate: float, group: str, seed: int) -> Row:
    """Returns the row of this label in the study's plan at another rate."""
    found = next(row for row in (*main_rows(), *others(), *cores()) if row.label == arm)
    overrides = (*found.overrides, f"optim.lr={rate:g}")
    return replace(found, group=group, label=f"{arm}, rate {rate:g}", overrides=overrides, seed=seed)


def arm_of(run: Result) -> str:
    """Returns the label in the study's plan of a row made here."""
    return run["label"].rsplit(", rate ", 1)[0]


def grid(arms: Sequence[str], rates: Sequence[float] = RATES) -> Iterator[Row]:
    """Every arm at every rate, seed 0."""
    for arm in arms:
        for rate in (*rates, *WIDER.get(arm, ())):
            yield rated(arm, rate, GRID, 0)


def tuned(arms: Sequence[str], seeds: Sequence[int], best: Mapping[str, float]) -> Iterator[Row]:
    """Every arm that has a rate, at it."""
    for seed in seeds:
        for arm in arms:
            if arm in best:
                yield rated(arm, best[arm], TUNED, seed)


def valid_loss(run: Result) -> float:
    """Returns the loss of a row of the grid on `valid` at the best depth; infinite where it diverged."""
    found = run["texts"].get("valid")
    losses = found["loss"] if found else []
    return min((loss for loss in losses if loss is not None), default=float("inf"))


def rates_of(found: Iterable[Result]) -> dict[str, dict[float, float]]:
    """Returns the loss on `valid` of every arm of the grid by rate."""
    losses: dict[str, dict[float, float]] = {}
    for run in found:
        if run["group"] == GRID:
            losses.setdefault(arm_of(run), {})[run["rate"]] = valid_loss(run)
    return losses


def best_rates(found: Iterable[Result], rates: Sequence[float] = RATES) -> dict[str, float]:
    """Returns the rate of each arm with the least loss on `valid`; none for an arm that lacks one of the grid."""
    whole = {arm: losses for arm, losses in rates_of(found).items() if set(losses) >= set(rates)}
    return {arm: min(losses, key=losses.__getitem__) for arm, losses in whole.items()}


def carry_out(row: Row, *, source: str, corpus: str, shards: str, passages: int, choosing: int, extra: tuple[str, ...]) -> Result:
    """Trains one row and measures it: the grid on `valid` alone; of a run that diverged it says why."""
    import torch

    from loopwright.evaluation.likelihood import need_likelihood
    from loopwright.evaluation.text import held_out
    from loopwright.model.cost import pass_flops

    extra = (*LAID, *extra)
    rate = float(row.overrides[-1].removeprefix("optim.lr="))
    began = time.perf_counter()
    try:
        model, run = made(row, source, corpus, shards, extra)
        seconds = time.perf_counter() - began
        gc.collect()  # what training captured goes before its memory is asked for again
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        model = model.to(device="cuda" if torch.cuda.is_available() else "cpu", dtype=torch.float32).eval()
        torch.set_float32_matmul_precision("highest")
        causal = need_likelihood(model, marked=row.leaks)
    except ValueError as error:
        if row.group != GRID or "not finite" not in str(error):
            raise
        told = {"name": row.name, "group": row.group, "label": row.label, "seed": row.seed, "diverged": str(error)}
        return {**told, "rate": rate, "texts": {}, "origin": made_by()}
    held = pickle.loads((Path(shards) / PASSAGES).read_bytes())
    depths, texts = [row.depth] if row.depth else depths_of(model), {}
    for name in ("valid",) if row.group == GRID else TEXTS:
        text = held[name].drawn(choosing if row.group == GRID else passages)
        honest = HONEST if row.leaks and row.group != GRID else 0
        asked = [depth for depth in depths if depth in (*TRAINED, row.depth)] if depths and row.group == GRID else depths
        report = held_out(model, text, depths=asked, causality=causal, marked=row.leaks, honest=honest, batch_size=AT_ONCE)
        texts[name] = compared(asdict(report), ()) if row.group == GRID else folded(report)
    found = about(row, model, run, seconds, extra) | {"rate": rate, "texts": texts, "diagonals": None, "origin": made_by()}
    if row.depth:
        found["flops"] = pass_flops(model.config, depth=row.depth, length=CONTEXT)["total"] / CONTEXT  # of a token, forward
    return found


def chosen(found: Iterable[Result], rates: Sequence[float] = RATES) -> dict[str, float]:
    """Returns the rates by the rows there are, and says them."""
    best = best_rates(found, rates)
    print(f"rates, by the loss on valid: {best}", flush=True)
    return best


def tokenised(asked: Namespace, left: Sequence[Row]) -> None:
    """Tokenises once for all rows."""
    tokenise("train", asked.source, asked.corpus, asked.shards, (*LAID, *asked.change))
    files = {name: Path(asked.corpus) / file for name, file in HELD.items()}
    prepare_passages(files, asked.source, CONTEXT, Path(asked.shards) / PASSAGES)


def at_own_rates(about: str | None, stages: Callable[[Rows], Iterator[Iterable[Row]]]) -> Study:
    """Returns a study of this kind: a grid, and what follows from it."""
    return Study(
        about, carry_out, stages=stages, prepare=tokenised, usual={"seeds": ",".join(map(str, (0, *SEEDS, *FURTHER)))},
        options={
            "--source": {"required": True}, "--corpus": {"required": True},
            "--shards": {"default": "runs/ouroboros-shards", "help": "where token shards are kept"},
            "--passages": {"type": int, "default": 256, "help": "of each held-out text"},
            "--choosing": {"type": int, "default": 128, "help": "passages of valid, on which rates are chosen"},
        },
    )  # fmt: skip


def stages(rows: Rows) -> Iterator[Iterable[Row]]:
    """Yields grid and seeds in the order of what they are worth."""
    yield grid(ARMS)
    yield [*tuned(ARMS, SEEDS, chosen(rows())), *grid(MORE)]
    best = chosen(rows())
    yield [*tuned(CLOSE, FURTHER, best), *tuned(MORE, SEEDS, best)]


STUDY = at_own_rates(__doc__, stages)


if __name__ == "__main__":
    STUDY.main()
