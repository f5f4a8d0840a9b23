"""What a trained model answers after every step, by how hard a row is, and what the engine's exit rules make of it.

All from one pass over the rows: a token that leaves early changes nothing for the tokens after it (`exit_keys="backfill"`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from experiments.hops.plan import HARDNESS
from loopwright.data.batch import BatchSource, FirstRows, Splits
from loopwright.data.tasks.task import Table
from loopwright.evaluation.exits import exit_depths, read_steps
from loopwright.generation.exit_rules import ExitRule, build_exit, exit_family, parse_exit

if TYPE_CHECKING:
    from loopwright.model.causal_lm import LoopedForCausalLM

ROWS = 500  # of each number of hops, and of chains
LENGTHS = (*range(1, 17), 24, 32, 48, 64)  # of chains: a row of the longest holds the answers of all shorter ones
DEPTHS = {"hops": (*range(1, 17), 20, 24, 28, 32), "chain": (*range(1, 17), 20, 24, 28, 32, 40, 48, 64, 80)}
# the engine's rules at its own limits, and entropy at a stricter one, the best of those that were tried
RULES = ("change:0.03", "divergence:0.01", "entropy:0.5", "entropy:0.1", "stable:2")


@dataclass(frozen=True)
class Answers:
    """Answers of one hardness: whether each is right after every step, and what each family of rules measured [S, N]."""

    right: Tensor
    measured: Mapping[str, Tensor]


def measure(model: LoopedForCausalLM, splits: Splits, task: str, limits: Sequence[int]) -> dict[str, Any]:
    """Returns exact match by hardness and depth, and at most so many steps the mean steps and exact match of every exit rule by
    group. A model that runs once (no limit) has one depth and no exits."""
    depths = DEPTHS[task] if limits else (1,)
    rules = {rule: build_exit(parse_exit(rule), model) for rule in RULES} if limits else {}
    families = {exit_family(parse_exit(word)): rule for word, rule in rules.items()}
    answers = dict(READERS[task](model, splits, families, depths[-1]))
    tests = {
        str(hard): {"rows": each.right.shape[1], "depth": depths, "exact": [share(each.right[depth - 1]) for depth in depths]}
        for hard, each in answers.items()
    }
    exits = {str(limit): exits_of(model, answers, rules, limit) for limit in limits}
    return {"tests": tests, "exits": exits}


def hop_answers(
    model: LoopedForCausalLM, splits: Splits, families: Mapping[str, ExitRule], depth: int
) -> Iterator[tuple[int, Answers]]:
    """Yields every number of hops with its answers at the last letter."""
    for name, source in splits.tests.items():
        if name != "test":
            rows = FirstRows(last_answers(source), ROWS)
            yield int(name.removeprefix("hops-")), read(model, rows, families, depth)


def chain_answers(
    model: LoopedForCausalLM, splits: Splits, families: Mapping[str, ExitRule], depth: int
) -> Iterator[tuple[int, Answers]]:
    """Yields numbers of swaps with the answers after so many, all read from rows of the longest chains."""
    source = list(splits.tests.values())[-1]
    read_all = read(model, FirstRows(source, ROWS), families, depth)
    places = read_all.right.shape[1] // min(ROWS, len(source))  # the start value, then one for each swap
    for length in (length for length in LENGTHS if length < places):
        yield length, Answers(*(
            read_all.right[:, length::places], {name: each[:, length::places] for name, each in read_all.measured.items()}
        ))  # fmt: skip


def read(model: LoopedForCausalLM, source: BatchSource, families: Mapping[str, ExitRule], depth: int) -> Answers:
    """Returns all answers asked for in some rows."""
    table = read_steps(model, [(range(len(source)), source.batch(range(len(source))))], families, depth)
    return Answers(table.right, table.measured)


def exits_of(
    model: LoopedForCausalLM, answers: Mapping[int, Answers], rules: Mapping[str, ExitRule], limit: int
) -> dict[str, dict[str, list[float]]]:
    """Returns mean steps and exact match of every rule in each group, where no answer takes more than `limit` steps."""
    found: dict[str, dict[str, list[float]]] = {}
    for word, rule in rules.items():
        family, found[word] = exit_family(parse_exit(word)), {}
        for group, members in HARDNESS.items():
            chosen = [each for hard, each in answers.items() if hard in members]
            if chosen:
                steps = torch.cat([exit_depths(model, rule, each.measured[family][:limit]) for each in chosen])
                right = torch.cat([each.right for each in chosen], 1)
                kept = right.gather(0, steps[None] - 1)[0]
                found[word][group] = [float(steps.double().mean()), share(kept)]
    return found


def share(right: Tensor) -> float:
    """Returns how many of some answers are right, as a share."""
    return float(right.double().mean())


def last_answers(source: Any) -> Table:
    """Returns the same rows, asked for the answer at their last letter alone: the one whose trail surely has all hops."""
    table: Table = source
    return replace(table, starts=table.lengths - 1)


READERS = {"hops": hop_answers, "chain": chain_answers}
