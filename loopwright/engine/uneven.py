"""What happens to a token that leaves early, and to tokens that were drafted at a lower depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from loopwright.engine.passes import Passes
from loopwright.engine.running import Running
from loopwright.engine.scores import ranked
from loopwright.engine.speculation import AUTO, DraftChoice
from loopwright.engine.trail import read_trails
from loopwright.generate.exit_rules import ExitRule
from loopwright.generate.sampling import Draw, sample
from loopwright.model.cache.pool import KeyPool
from loopwright.model.looped import LoopedForCausalLM


def leaving(passes: Passes, moved: Sequence[tuple[Running, Tensor, Tensor]]) -> Iterator[tuple[Running, Tensor]]:
    """Yields the rows whose token leaves the loop now, by its rule or because it has run all steps, and its logits [V]."""
    through: list[Running] = []
    rules = [(run, run.request.wish.exit) for run, _, _ in moved]
    looking = [run for run, rule in rules if rule is not None and (rule.reads_out or run.request.wish.step_tokens)]
    asked = {id(run): logits[-1] for run, logits in read_trails(passes, looking, lambda run: 1)}
    leave = _decided(passes.model, [entry for entry in moved if entry[0].t < entry[0].steps], asked)
    for run, _, _ in moved:
        logits = asked.get(id(run))
        if logits is not None and run.request.wish.step_tokens:
            run.said.append(ranked(logits, run.request.wish.step_tokens))
        if run.t < run.steps and not leave[id(run)]:
            continue
        if logits is None:
            through.append(run)
        else:
            yield run, logits
    for run, read in read_trails(passes, through, lambda run: 1):
        yield run, read[-1]


def _decided(
    model: LoopedForCausalLM, moved: Sequence[tuple[Running, Tensor, Tensor]], logits: Mapping[int, Tensor]
) -> dict[int, bool]:
    """Returns whose rule lets the token leave. Equal rules at one step are asked together, and the device is waited for once."""
    groups: dict[tuple[ExitRule | None, int], list[tuple[Running, Tensor, Tensor]]] = {}
    for entry in moved:
        groups.setdefault((entry[0].request.wish.exit, entry[0].t), []).append(entry)
    asked: list[int] = []
    answers: list[Tensor] = []
    for (rule, _), group in groups.items():
        assert rule is not None
        runs, before, after = zip(*group, strict=True)
        read = torch.stack([logits[id(run)] for run in runs]) if rule.reads_out else None
        memory = _together([run.memory for run in runs])
        answers.append(rule.leaves(model, torch.stack(before), torch.stack(after), read, memory))
        asked += map(id, runs)
        for i, run in enumerate(runs):
            run.memory = _row(memory, i)
    return dict(zip(asked, torch.cat(answers).tolist() if answers else [], strict=True))


def _together(each: Sequence[Any]) -> Any:
    """Returns the rows' memories as one of them all: tensors get the rows as their first dimension."""
    if isinstance(each[0], Tensor):
        return torch.stack(list(each))
    if isinstance(each[0], Mapping):
        return {name: _together([memory[name] for memory in each]) for name in each[0]}
    return [_together(entries) for entries in zip(*each, strict=True)]


def _row(memory: Any, i: int) -> Any:
    """Returns the memory of one row."""
    if isinstance(memory, Tensor):
        return memory[i]
    return {name: _row(kept, i) for name, kept in memory.items()} if isinstance(memory, Mapping) else [_row(x, i) for x in memory]


def keep_even(pool: KeyPool, run: Running) -> None:
    """Copies the keys of the token that has just left to every step and reading it did not run, where that was asked for."""
    if run.request.wish.exit_keys != "copy":
        return
    index = run.base - 1  # the token whose successor was drawn
    pool.copy_token(run.row, "core", index, run.t - 1, range(run.t, run.steps))
    pool.copy_token(run.row, "coda", index, run.t - 1, (group for group in range(run.steps) if group != run.t - 1))


def begin_round(model: LoopedForCausalLM, run: Running, choices: dict[int, DraftChoice]) -> None:
    """Says how deep and how far a row drafts until the next verification; `choices` are those made for each full depth."""
    wish = run.request.wish
    if wish.draft_depth == AUTO:
        if run.steps not in choices:
            choices[run.steps] = DraftChoice(model, run.steps)
        run.draft_depth, run.draft_tokens = choices[run.steps].choose(wish.draft_tokens)
    else:
        run.draft_depth, run.draft_tokens = wish.draft_depth, wish.draft_tokens  # type: ignore[assignment]


def draft(run: Running, logits: Tensor, tokens: Tensor) -> None:
    """Draws the next draft from logits [1, V] and lets the row go on with it, as if it were verified."""
    wish = run.request.wish
    seen = None if run.counts is None else run.counts.after(run.drafts)
    grammar = None if run.grammar is None else run.grammar.after(run.drafts)
    drawn = sample(logits, [Draw(wish.sampling, wish.seed, run.offset + 1)], [seen], [grammar])
    tokens[run.slot] = drawn
    run.drafts.append(int(drawn))
    run.phase = "embed"


def verified(run: Running, logits: Tensor) -> tuple[Tensor, int]:
    """Returns the tokens that full depth draws after the last verified token and each draft [k], and how many of them hold.

    The drafts up to the first that differs are what plain decoding draws: a draw depends on seed and position alone. Keys of the
    others are dropped.
    """
    wish, base = run.request.wish, run.base
    draws = [Draw(wish.sampling, wish.seed, base + 1 + i) for i in range(len(logits))]
    seen = [None if run.counts is None else run.counts.after(run.drafts[:i]) for i in range(len(logits))]
    grammars = [None if run.grammar is None else run.grammar.after(run.drafts[:i]) for i in range(len(logits))]
    tokens = sample(logits, draws, seen, grammars)
    count = 1
    for drafted, drawn in zip(run.drafts, tokens.tolist(), strict=False):
        if drafted != drawn:
            break
        count += 1
    run.row.crop(base + count)
    return tokens, count
