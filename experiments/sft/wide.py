"""The wide-core retrofit at its own rates: the looped model and the same 14 layers run once, a grid, the choice, then fresh seeds.

    python -m experiments.sft.wide OUT.jsonl --packed PACKED --data DATA --workers 4 --seconds 560

PACKED is what `python -m experiments.sft pack` writes, DATA holds train-*.jsonl.gz (35 million tokens, so that no arm reads one
twice), valid, test and heldout_ood.jsonl.gz. Seed 0 chooses: an arm's rate is the one with the least loss on `valid` at the best of
its depths up to the trained one. Only the seeds behind it are measured on `test` and `ood`; of the looped ones also what exit rules
give. The grid runs as long as heal.yaml says (11.8 million tokens), the seeds on 20 million; the layers of equal FLOPs on 1.7 times
as many. A call goes on where the last one was stopped; --unfinished FOLDER: also in the middle of a training.
"""

from __future__ import annotations

import gc
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.corpus import PASSAGES, held_out_files, prepare, prepare_passages
from experiments.corpus import passages as held_passages
from experiments.ouroboros.rates import GRID, SEEDS, TUNED, chosen
from experiments.pages import Result
from experiments.sft.blocks import BLOCKS, unpack_once
from experiments.sft.plan import TRAINED, Places, Run, text_flops
from experiments.side_by_side import compared, folded, made_by
from experiments.study import Named, Rows, Study

if TYPE_CHECKING:
    from loopwright.training.recipe import Recipe

LOOPED, EQUAL, LONGER = "looped, trained at depth 4", "run once, equal tokens", "run once, equal FLOPs"
ARMS = {LONGER: "unlooped-flops", LOOPED: "heal", EQUAL: "unlooped"}  # what takes longest begins first
RATES = (2.5e-4, 5e-4, 1e-3, 2e-3)  # that of heal.yaml, half, twice and four times of it
UPDATES = {GRID: 720, TUNED: 1220}
TEXTS = ("test", "ood")
DEPTHS = (1, 2, 4, 8, 16)
CONTEXT, AT_ONCE = 512, 16  # tokens of a passage; passages of a pass: trainings side by side want the memory


@dataclass(frozen=True)
class Row(Named):
    """One arm at one rate with one seed."""

    group: str
    arm: str
    rate: float
    seed: int

    @property
    def label(self) -> str:
        """The arm and its rate."""
        return f"{self.arm}, rate {self.rate:g}"

    @property
    def kind(self) -> str:
        """What decides how long it takes."""
        return f"{self.group}/{self.arm}"

    def recipe(self, places: Places, changes: tuple[str, ...] = ()) -> Recipe:
        """Returns the recipe: the arm's own, longer for the seeds, with its depth grown over the first half in both."""
        updates = UPDATES[self.group]
        length = (f"updates={updates}", f"schedule.warmup={updates // 20}", f"looped.depth.updates={updates // 2}")
        return Run(ARMS[self.arm], self.seed).recipe(places, (*length, f"optim.lr={self.rate:g}", *changes))


def grid() -> Iterator[Row]:
    """Every arm at every rate, seed 0."""
    return (Row(GRID, arm, rate, 0) for arm in ARMS for rate in RATES)


def tuned(best: Mapping[str, float]) -> Iterator[Row]:
    """Every arm that has a rate, at it."""
    return (Row(TUNED, arm, best[arm], seed) for seed in SEEDS for arm in ARMS if arm in best)


def carry_out(
    row: Row, *, data: str, runs: str, passages: int, choosing: int, extra: tuple[str, ...], kept: Path | None = None
) -> Result:  # fmt: skip
    """Trains one row and measures it: the grid on `valid` alone; of a run that diverged it says why."""
    import torch

    from experiments.leaving.reading import exits
    from experiments.sft.run import numbers_of
    from experiments.trained import train_once
    from loopwright.evaluation.likelihood import need_likelihood
    from loopwright.evaluation.text import held_out

    places = Places(data, runs)
    recipe = row.recipe(places, extra)
    about = {"name": row.name, "group": row.group, "label": row.label, "seed": row.seed, "rate": row.rate}
    try:
        trained = train_once(recipe, places.shards, kept=kept)
        model = trained.outcome.model.float().eval()
        torch.set_float32_matmul_precision("highest")
        causal = need_likelihood(model)
    except ValueError as error:
        if row.group != GRID or "not finite" not in str(error):
            raise
        return {**about, "diverged": str(error), "texts": {}, "origin": made_by(kept)}
    numbers, looped = numbers_of(trained, recipe, text_flops(recipe)), model.config.is_looped
    del trained
    gc.collect()  # what training captured goes before its memory is asked for again
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    began, given = time.perf_counter(), {"causality": causal, "batch_size": AT_ONCE}
    texts, left = {}, {}
    if row.group == GRID:
        depths = [depth for depth in DEPTHS if depth <= TRAINED] if looped else None
        valid = held_out(model, held_passages(places.shards, choosing)["valid"], depths=depths, **given)
        texts["valid"] = compared(asdict(valid), ())
    else:
        for name, text in held_passages(places.shards, passages).items():
            if name in TEXTS:
                texts[name] = folded(held_out(model, text, depths=DEPTHS if looped else None, **given))
                left |= {name: exits(model, text, batch=AT_ONCE)} if looped else {}
    measured = {"texts": texts, "exits": left, "measure_seconds": time.perf_counter() - began}
    return {**about, **numbers, "laid_over": list(extra), **measured, "origin": made_by(kept)}


def open_base(packed: Path, places: Places) -> None:
    """Opens the packed layers, where that was not done before."""
    if not (packed / BLOCKS).is_file():
        sys.exit(f"packed: {packed} holds no {BLOCKS}; give the folder that `python -m experiments.sft pack` wrote")
    unpack_once(packed, places.base)


def tokenise(asked: Namespace, left: Sequence[Row]) -> None:
    """Opens the base and tokenises, once for all rows."""
    places = Places(asked.data, asked.runs)
    open_base(asked.packed, places)
    prepare(Row(GRID, LOOPED, RATES[0], 0).recipe(places, tuple(asked.change)).data, places.shards)
    prepare_passages(held_out_files(asked.data), str(places.base), CONTEXT, Path(places.shards) / PASSAGES)


def stages(rows: Rows) -> Iterator[Iterable[Row]]:
    """Yields the grid, then the seeds."""
    yield grid()
    yield tuned(chosen(rows(), RATES))


STUDY = Study(
    __doc__, carry_out, stages=stages, prepare=tokenise, goes_on=True, usual={"seeds": ",".join(map(str, (0, *SEEDS)))},
    options={
        "--packed": {"type": Path, "required": True, "help": "the 14 layers, as `python -m experiments.sft pack` writes them"},
        "--data": {"required": True, "help": "the folder of the texts"},
        "--runs": {"default": "runs/wide", "help": "where the base and the tokens are kept"},
        "--passages": {"type": int, "default": 256, "help": "of each held-out text"},
        "--choosing": {"type": int, "default": 128, "help": "passages of valid, on which rates are chosen"},
    },
)  # fmt: skip


if __name__ == "__main__":
    STUDY.main()
