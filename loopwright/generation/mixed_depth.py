"""What happens to a token that leaves early, and to tokens that were drafted at a lower depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loopwright.generation.passes import Passes
from loopwright.generation.rows import Arrived, EngineStats, Running, pinned
from loopwright.generation.sampling import no_choice, sample
from loopwright.generation.scores import ranked
from loopwright.generation.speculation import AUTO, DraftChoice
from loopwright.generation.trail import read_trails
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.keys.pool import KeyPool
from loopwright.model.passes import choosable

if TYPE_CHECKING:
    from loopwright.generation.graphs import TickGraphs


def leaving(
    passes: Passes, moved: Sequence[Running], read: Mapping[Running, Tensor]
) -> tuple[dict[Running, Tensor], list[Running]]:
    """Returns the rows whose token leaves the loop now, by its rule or because it has run all steps: with its logits [V] if they
    were asked for, and those that are still to be read out. `read` holds the logits that are there already."""
    looking = [run for run in moved if run.request.wish.looks and run not in read]
    asked = {**read, **{run: logits[-1] for run, logits in read_trails(passes, looking, lambda run: 1)}}
    leave = _decided(passes, [run for run in moved if run.t < run.steps], asked)
    for run in moved:
        if run.request.wish.step_tokens:
            run.said.append(ranked(asked[run], run.request.wish.step_tokens))
    through = [run for run in moved if run.t == run.steps or leave[run]]
    return {run: asked[run] for run in through if run in asked}, [run for run in through if run not in asked]


def _decided(passes: Passes, moved: Sequence[Running], logits: Mapping[Running, Tensor]) -> dict[Running, bool]:
    """Returns whose rule lets the token leave. Equal rules are asked together, and the device is waited for once.

    Logits that were read and say nothing end their request: no rule can decide by them.
    """
    groups: dict[Any, list[Running]] = {}
    for run in moved:  # a rule may remember something else of each step
        groups.setdefault((run.request.wish.exit, _form(run.memory)), []).append(run)
    asked: list[Running] = []
    answers: list[Tensor] = []
    for (rule, _), runs in groups.items():
        before, after = _states(passes, runs)
        read = torch.stack([logits[run] for run in runs]) if rule.reads_out else None
        memory = _together([run.memory for run in runs])
        answers.append(rule.leaves(passes.model, before, after, read, memory))
        asked += runs
        for i, run in enumerate(runs):
            run.memory = _row(memory, i)
    looked = [run for run in moved if run in logits]
    if looked:
        answers.append(choosable(torch.stack([logits[run] for run in looked])))
    said = torch.cat(answers).tolist() if answers else []
    for run, usable in zip(looked, said[len(asked) :], strict=True):
        if not usable:
            run.request.fail(no_choice(run.base + 1, run.t))
    return dict(zip(asked, said[: len(asked)], strict=True))


def _states(passes: Passes, runs: Sequence[Running]) -> tuple[Tensor, Tensor]:
    """Returns the states [R, D] of the rows' present tokens before and after the last step."""
    trails = [(run.trail, run.t, run.offset) for run in runs if run.trail is not None]
    table = [[trail.cell(t - 1 + i) + offset for trail, t, offset in trails] for i in range(2)]
    states = passes.pool.states[1]
    before, after = states[pinned(table, states.device).to(states.device, non_blocking=True)]
    return before, after


def _form(memory: Any) -> Any:
    """Returns what a rule remembers, by its names and numbers of values alone."""
    if isinstance(memory, Tensor):
        return None
    return tuple((name, _form(kept)) for name, kept in memory.items()) if isinstance(memory, Mapping) else tuple(map(_form, memory))


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


def read_drafts(passes: Passes, graphs: TickGraphs | None, runs: Sequence[Running], read: set[Running], tokens: Tensor) -> None:
    """Draws the next draft of each row, with which it goes on as if it were verified; `read` are those that a captured tick read.

    Drafts stay on the device, as drawn tokens do, until they are verified.
    """
    for run, logits in read_trails(passes, [run for run in runs if run not in read], lambda run: 1):
        _draft([run], logits, tokens)
    inside = [run for run in runs if run in read]
    if not inside or graphs is None:
        return
    plain = [run for run in inside if run.draws_largest]
    if plain:  # their tokens are where the next prelude takes them from
        drawn = graphs.greedy.clone()
        _go_on(plain, [drawn[run.slot] for run in plain])
    others = [run for run in inside if not run.draws_largest]
    if others:
        _draft(others, graphs.logits[[run.slot for run in others]], tokens)


def _draft(runs: Sequence[Running], logits: Tensor, tokens: Tensor) -> None:
    """Draws drafts from logits [R, V]."""
    draws = [run.request.wish.draw(run.drawn + len(run.drafts)) for run in runs]
    before = [_ids(run) for run in runs]
    seen = [None if run.counts is None else run.counts.after(ids) for run, ids in zip(runs, before, strict=True)]
    grammars = [None if run.grammar is None else run.grammar.after(ids) for run, ids in zip(runs, before, strict=True)]
    drawn = sample(logits, draws, seen, grammars)
    tokens[[run.slot for run in runs]] = drawn[:, None]
    _go_on(runs, drawn.unbind(0))


def _go_on(runs: Sequence[Running], drawn: Sequence[Tensor]) -> None:
    for run, token in zip(runs, drawn, strict=True):
        run.drafts.append(token)
        run.phase = "embed"


def _ids(run: Running) -> list[int]:
    """Returns the drafts of a row where its draws depend on them; for this the device is waited for."""
    return torch.stack(run.drafts).tolist() if run.drafts and (run.counts is not None or run.grammar is not None) else []


def verified(runs: Sequence[Running], logits: Sequence[Tensor]) -> Iterator[tuple[Running, Tensor, Tensor, Arrived]]:
    """Yields each row with the tokens that full depth draws after its last verified token and after the drafts that hold, their
    logits, and both tokens and whether these could be chosen as they are on the host.

    The drafts up to the first that differs are what plain decoding draws: a draw depends on seed and position alone. Keys of the
    others are dropped. The device is waited for once.
    """
    every, draws, seen, grammars = torch.cat(list(logits)), [], [], []
    for run, own in zip(runs, logits, strict=True):
        ids = _ids(run)
        draws += [run.request.wish.draw(run.drawn + i) for i in range(len(own))]
        seen += [None if run.counts is None else run.counts.after(ids[:i]) for i in range(len(own))]
        grammars += [None if run.grammar is None else run.grammar.after(ids[:i]) for i in range(len(own))]
    tokens = sample(every, draws, seen, grammars)
    drafts = torch.stack([token for run in runs for token in run.drafts])
    said = torch.cat([tokens, choosable(every), drafts]).tolist()
    drawn, usable, drafted = said[: len(every)], said[len(every) : 2 * len(every)], iter(said[2 * len(every) :])
    a = 0
    for run, own in zip(runs, logits, strict=True):
        count = 1 + _agreeing(list(islice(drafted, len(run.drafts))), drawn[a:])
        run.row.crop(run.base + count)
        yield run, tokens[a : a + count], own[:count], Arrived(drawn[a : a + count], usable[a : a + count])
        a += len(own)


def _agreeing(drafted: Sequence[int], drawn: Sequence[int]) -> int:
    """Returns how many drafts hold: those before the first that is not what was drawn."""
    return next((i for i, token in enumerate(drafted) if token != drawn[i]), len(drafted))


def count_round(run: Running, accepted: int, ran: EngineStats, choices: Mapping[int, DraftChoice]) -> None:
    """Counts a verification, and learns from it how to draft."""
    drafted = len(run.drafts)
    ran.verified += 1
    ran.drafted += drafted
    ran.accepted += accepted
    ran.tried += min(accepted + 1, drafted)
    if drafted and run.draft_depth is not None:
        key = (run.draft_depth, run.draft_tokens)
        ran.rounds[key] = ran.rounds.get(key, 0) + 1
    if run.request.wish.draft_depth == AUTO:
        choices[run.steps].learn(run.draft_depth if drafted else None, drafted, accepted)
