"""Rows of mixed depth, whose tokens are not all equally deep: early exits and drafts.

A token that left the loop after x steps has no keys at step x. The first later token that goes there brings it along: the tokens
that miss a step are always the last ones of the row, so both run as one chunk from the states that were kept. The result is
exactly that of a full pass, and nothing is run that nobody needs. The coda's readings are filled in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loopwright.generation.exit_rules import mean_state
from loopwright.generation.passes import Passes, mean_read
from loopwright.generation.rows import EngineStats, HostValues, Running, pinned
from loopwright.generation.sampling import no_choice, sample
from loopwright.generation.scores import ranked
from loopwright.generation.speculation import AUTO, DraftChoice
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.keys.pool import KeyPool, Row
from loopwright.model.passes import choosable

if TYPE_CHECKING:
    from loopwright.generation.graphs import TickGraphs


class StateHistory:
    """Inputs of a row's tokens, and their states after every step, in the pool's storage; captured ticks and passes write there.

    `averages_states` says that the mean of a token's states is read out, not the last one.
    """

    def __init__(self, pool: KeyPool, row: Row, *, averages_states: bool = False) -> None:
        inputs, states = pool.states
        self.row, self.averages_states = row, averages_states
        self.input_cell = row.cell(pool.input_stack, 0)
        self.inputs = inputs[self.input_cell : self.input_cell + row.capacity]
        self.after = states[row.cell("core", 0) : row.cell("core", row.steps)].unflatten(0, (row.steps, row.capacity))

    def begin(self, first: int, e: Tensor, s: Tensor) -> None:
        """Keeps inputs and start states [T, D] of the tokens from `first` on."""
        self.inputs[first : first + len(e)], self.after[-1, first : first + len(e)] = e, s

    def keep(self, t: int, first: int, s: Tensor) -> None:
        """Keeps the states [T, D] after step `t` of the tokens from `first` on."""
        self.after[t, first : first + len(s)] = s

    def states(self, t: int, first: int, end: int) -> Tensor:
        """Returns the states [T, D] before step `t` of the tokens from `first` to `end`.

        Those before the first step stand in the place of those after the last, which are made when nobody needs them any more.
        """
        return self.after[t - 1, first:end]

    def cell(self, depth: int) -> int:
        """Returns the cell of the first token's state after so many steps."""
        return self.row.cell("core", (depth - 1) % self.row.steps)


def check_mean_read(model: LoopedForCausalLM, what: str) -> None:
    """Raises a ValueError where the mean of states cannot be read of tokens that are not equally deep: `what` asks for such."""
    if not mean_read(model):
        return
    if model.config.coda_layers:
        why = "a coda, whose keys belong to the mean at full depth"
    elif model.halting.reads == "before":
        why = f"halting {model.config.halting['kind']!r}, which reads states before their step"
    else:
        return
    raise ValueError(f"{what}: the model answers by the mean of its states and has {why}; leave it out, or set read_out to 'last'")


def misses_none(run: Running) -> bool:
    """Returns whether all tokens before a row's present one have run its present step: then it can go alone."""
    return run.history is None or _first_missing(run) == run.offset


def step_histories(passes: Passes, runs: Sequence[Running]) -> None:
    """Runs the next step of each row's present token with all earlier ones that miss it."""
    if not runs:
        return
    first = [_first_missing(run) for run in runs]
    ends, steps = [run.offset + 1 for run in runs], [run.t for run in runs]
    passes.step_histories([_of(run) for run in runs], first, ends, steps)
    for run, a, end in zip(runs, first, ends, strict=True):
        run.t += 1
        run.work += end - a


def _first_missing(run: Running) -> int:
    """Returns the first of a row's tokens that has not run the present step."""
    return run.row.held("core", run.t)


def read_histories(passes: Passes, runs: Sequence[Running], keep: Callable[[Running], int]) -> list[tuple[Running, Tensor]]:
    """Returns the logits [keep, V] of each row's last tokens after `run.t` steps; the coda fills what earlier tokens miss there."""
    if not runs:
        return []
    model, coda = passes.model, bool(passes.pool.layers["coda"])

    def held(run: Running) -> int:
        return run.row.held("coda", run.row.readings.index(run.t)) if coda else run.offset + 1 - keep(run)

    first, ends = [held(run) for run in runs], [run.offset + 1 for run in runs]
    depths, histories = [run.t for run in runs], [_of(run) for run in runs]
    if any(history.averages_states for history in histories):
        rows = [run.row for run in runs]
        states = [_read(passes, history, *place) for history, *place in zip(histories, depths, first, ends, strict=True)]
        features = passes.features(rows, first, states, depths)
    else:
        features = passes.read_histories(histories, first, ends, depths)
    kept = [y[-keep(run) :] for run, y in zip(runs, features, strict=True)]
    logits = model.lm_head(torch.cat(kept)).split([len(y) for y in kept])
    return list(zip(runs, logits, strict=True))


def _read(passes: Passes, history: StateHistory, depth: int, first: int, end: int) -> Tensor:
    """Returns what is read out of the tokens from `first` to `end`."""
    if history.averages_states:
        return mean_state(passes.model, history.after[:depth, first:end].unbind(0))
    return history.states(depth, first, end)


def _of(run: Running) -> StateHistory:
    assert run.history is not None
    return run.history


def leaving(
    passes: Passes, moved: Sequence[Running], read: Mapping[Running, Tensor]
) -> tuple[dict[Running, Tensor], list[Running]]:
    """Returns the rows whose token leaves the loop now, by its rule or because it has run all steps: with its logits [V] if they
    were asked for, and those that are still to be read out. `read` holds the logits that are there already."""
    looking = [run for run in moved if run.request.options.reads_every_step and run not in read]
    asked = {**read, **{run: logits[-1] for run, logits in read_histories(passes, looking, lambda run: 1)}}
    leave = _decided(passes, [run for run in moved if run.t < run.steps], asked)
    for run in moved:
        if run.request.options.step_tokens:
            run.step_candidates.append(ranked(asked[run], run.request.options.step_tokens))
    through = [run for run in moved if run.t == run.steps or leave[run]]
    return {run: asked[run] for run in through if run in asked}, [run for run in through if run not in asked]


def _decided(passes: Passes, moved: Sequence[Running], logits: Mapping[Running, Tensor]) -> dict[Running, bool]:
    """Returns whose rule lets the token leave. Equal rules are asked together, and the device is waited for once.

    Logits that were read and say nothing end their request: no rule can decide by them.
    """
    groups: dict[Any, list[Running]] = {}
    for run in moved:  # a rule may remember something else of each step
        groups.setdefault((run.request.options.exit, _form(run.memory)), []).append(run)
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
    values = torch.cat(answers).tolist() if answers else []
    for run, usable in zip(looked, values[len(asked) :], strict=True):
        if not usable:
            run.request.fail(no_choice(run.base + 1, run.t))
    return dict(zip(asked, values[: len(asked)], strict=True))


def _states(passes: Passes, runs: Sequence[Running]) -> tuple[Tensor, Tensor]:
    """Returns the states [R, D] of the rows' present tokens before and after the last step."""
    histories = [(run.history, run.t, run.offset) for run in runs if run.history is not None]
    table = [[history.cell(t - 1 + i) + offset for history, t, offset in histories] for i in range(2)]
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
    if run.request.options.exit_keys != "copy":
        return
    index = run.base - 1  # the token whose successor was drawn
    pool.copy_token(run.row, "core", index, run.t - 1, range(run.t, run.steps))
    pool.copy_token(run.row, "coda", index, run.t - 1, (group for group in range(run.steps) if group != run.t - 1))


def begin_round(model: LoopedForCausalLM, run: Running, choices: dict[int, DraftChoice]) -> None:
    """Says how deep and how far a row drafts until the next verification; `choices` are those made for each full depth."""
    options = run.request.options
    if options.draft_depth == AUTO:
        if run.steps not in choices:
            choices[run.steps] = DraftChoice(model, run.steps)
        run.draft_depth, run.draft_tokens = choices[run.steps].choose(options.draft_tokens)
    else:
        run.draft_depth, run.draft_tokens = options.draft_depth, options.draft_tokens  # type: ignore[assignment]


def read_drafts(passes: Passes, graphs: TickGraphs | None, runs: Sequence[Running], read: set[Running], tokens: Tensor) -> None:
    """Draws the next draft of each row, with which it goes on as if it were verified; `read` are those that a captured tick read.

    Drafts stay on the device, as drawn tokens do, until they are verified.
    """
    for run, logits in read_histories(passes, [run for run in runs if run not in read], lambda run: 1):
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
    draws = [run.request.options.draw(run.drawn + len(run.drafts)) for run in runs]
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


def verified(runs: Sequence[Running], logits: Sequence[Tensor]) -> Iterator[tuple[Running, Tensor, Tensor, HostValues]]:
    """Yields each row with the tokens that full depth draws after its last verified token and after the drafts that hold, their
    logits, and both tokens and whether these could be chosen as they are on the host.

    The drafts up to the first that differs are what plain decoding draws: a draw depends on seed and position alone. Keys of the
    others are dropped. The device is waited for once.
    """
    all_logits, draws, seen, grammars = torch.cat(list(logits)), [], [], []
    for run, row_logits in zip(runs, logits, strict=True):
        ids = _ids(run)
        draws += [run.request.options.draw(run.drawn + i) for i in range(len(row_logits))]
        seen += [None if run.counts is None else run.counts.after(ids[:i]) for i in range(len(row_logits))]
        grammars += [None if run.grammar is None else run.grammar.after(ids[:i]) for i in range(len(row_logits))]
    tokens = sample(all_logits, draws, seen, grammars)
    drafts = torch.stack([token for run in runs for token in run.drafts])
    values = torch.cat([tokens, choosable(all_logits), drafts]).tolist()
    total = len(all_logits)
    drawn, usable, drafted = values[:total], values[total : 2 * total], iter(values[2 * total :])
    a = 0
    for run, row_logits in zip(runs, logits, strict=True):
        count = 1 + _agreeing(list(islice(drafted, len(run.drafts))), drawn[a:])
        run.row.crop(run.base + count)
        yield run, tokens[a : a + count], row_logits[:count], HostValues(drawn[a : a + count], usable[a : a + count])
        a += len(row_logits)


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
    if run.request.options.draft_depth == AUTO:
        choices[run.steps].learn(run.draft_depth if drafted else None, drafted, accepted)
