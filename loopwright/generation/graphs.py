"""What the rows of an engine run, at constant shapes and replayed as CUDA graphs: launched kernel by kernel it waits for the host.

TickGraphs capture what rows need of a tick: prelude, one core step, read-out. Each part runs every row, and a row that takes no
part repeats another one, whose keys it writes once more. Which rows take part, where their tokens stand and where their keys lie
are a few numbers that are copied to the device, without waiting for it.

PassGraphs capture passes over the next tokens of some rows. A shape has a power of two of rows, but no more than the engine has, a
power of two of tokens in each, and a power of two of keys before them. A row that brings fewer tokens repeats its last one, and a
row that takes no part repeats the first: both write the same keys once more.

Stacks with fused kernels run in both, in a pass where a row has few new tokens; the others run as they are. What cannot be captured
is run at the same shapes, and that is said once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopwright.generation.mixed_depth import StateHistory, misses_none
from loopwright.generation.passes import Passes
from loopwright.generation.rows import Running, pinned
from loopwright.kernels.gate import warn_once
from loopwright.kernels.sizes import longest_pass
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.fused_support import fused_stacks
from loopwright.model.keys.pool import KeyPool, Row
from loopwright.model.keys.rows import FixedRows
from loopwright.model.layers import Rotary
from loopwright.model.parts.part import RowSteps
from loopwright.model.parts.state import signed
from loopwright.model.passes import Pass, choosable, open_pass
from loopwright.model.span import RowSpan

if TYPE_CHECKING:
    from loopwright.model.fused_stack import FusedStacks


_CAPTURING = threading.Lock()
SHORTEST = 256  # keys; a tick is captured for rows of up to so many, then for up to twice as many
SHORT_PROMPT = 16  # tokens; prompts up to this length, and shorter than the engine has rows, go through the ticks
# what the device is told of each row: the row that it repeats (itself, if it takes part), whether it takes part, where its token
# stands, its step, its first cell in the stack at hand, its token (-1: the one that was drawn last), the seed of its state and the
# cells where its input and its state are kept for later steps (those of nobody, where they are not)
SOURCE, ACTIVE, POSITION, STEP, START, GIVEN, SEED, INPUT, STATE = range(9)


class TickGraphs:
    """The captured ticks of a scheduler, by their parts and a power of two of the longest row, made when they are first needed."""

    def __init__(self, model: LoopedForCausalLM, pool: KeyPool, state: Tensor, given: Tensor, token: Tensor) -> None:
        self.model, self.pool, self.state, self.input, self.token = model, pool, state, given, token
        self.rows, self.device = len(state), state.device
        self.logits = state.new_zeros(self.rows, model.config.vocab_size)
        self.greedy = torch.zeros(self.rows, dtype=torch.long, device=self.device)
        self.usable = torch.zeros(self.rows, dtype=torch.bool, device=self.device)
        self.ticks: dict[tuple[tuple[str, ...], int, bool], CapturedTick] = {}
        self.fused: dict[int, FusedStacks | None] = {}
        self.weights_address: int | None = None
        self._begin()

    def refresh(self, weights_address: int) -> None:
        """Captures anew where the weights have moved; values that changed in place are seen as they are."""
        if weights_address != self.weights_address:
            self._begin()
            self.weights_address = weights_address

    def play(self, running: Sequence[Running]) -> tuple[set[Running], set[Running]]:
        """Queues what rows need of this tick, and returns those that take a step in it and those of them that are read out.

        These are the preludes of all, and steps and read-outs of tokens before which no token is less deep. Input and state of the
        rows follow from it; `logits` of what was read, their largest (`greedy`) and whether it can be chosen (`usable`) stand in
        the places of their rows until the next reading.
        """
        inside = [run for run in running if run.phase in ("embed", "core")]
        embedding = [run for run in inside if run.phase == "embed"]
        stepping = [run for run in inside if run.t < run.steps and misses_none(run)]
        reading = [(run, run.request.options.depth) for run in inside if run.history is None and run.t + 1 >= run.steps]
        reading += [(run, run.t + 1) for run in stepping if run.history is not None and self._reads(run, run.t + 1)]
        if not self.pool.layers["coda"] and not any(run.answers_next for run, _ in reading):
            reading = []  # of tokens inside their prompts only the keys are wanted, and a coda would keep some
        self.launch(embedding, stepping, reading)
        return set(stepping), {run for run, _ in reading}

    def _reads(self, run: Running, depth: int) -> bool:
        """Returns whether the present token of a row with a history is read out after so many steps, and can be, here."""
        # a draft is read at its depth, and the last token of a round too where a coda keeps keys of it that the next draft sees
        drafted = depth == run.draft_depth and bool(run.drafting or self.pool.layers["coda"])
        return (drafted or depth == run.steps or run.request.options.reads_every_step) and self.can_read(run, depth)

    def can_read(self, run: Running, depth: int) -> bool:
        """Returns whether a row's present token can be read out alone: no token before it is missing in the coda's reading."""
        averages = run.history is not None and run.history.averages_states
        return not averages and (not self.pool.layers["coda"] or run.row.held("coda", run.row.readings.index(depth)) == run.offset)

    def launch(self, embedding: Sequence[Running], stepping: Sequence[Running], reading: Sequence[tuple[Running, int]]) -> None:
        """Queues the prelude of the present tokens of some rows, the present step of some, and the read-out of some at a depth."""
        coda = bool(self.pool.layers["coda"])
        groups = {
            "prelude": [(run, 0) for run in embedding],
            "core": [(run, run.t) for run in stepping],
            "coda": [(run, run.row.readings.index(depth) if coda else 0) for run, depth in reading],
        }
        parts = tuple(stack for stack, runs in groups.items() if runs)
        if not parts:
            return
        reach = max(SHORTEST, 1 << max(run.offset for stack in parts for run, _ in groups[stack]).bit_length())
        table = [self._numbers(stack, groups[stack]) for stack in parts]
        numbers = pinned(table, self.device)
        key = parts, reach, any(run.history is not None for run in (*embedding, *stepping))
        if key not in self.ticks:
            self.ticks[key] = CapturedTick(self, *key, numbers)
        self.ticks[key].play(numbers)

    def _begin(self) -> None:
        self.ticks, self.fused, self.rotations = {}, {}, Rotations(self.model.rotary, self.state.dtype)
        self.captures = Captures(self.device)
        self.kept = [*self.model.parameters(), *self.model.buffers()]  # what a graph reads must not be freed under it

    def _numbers(self, stack: str, runs: Sequence[tuple[Running, int]]) -> list[tuple[int, ...]]:
        """Returns what the device is told for one part, a line for each number and a column for each row."""
        columns: dict[int, list[int]] = {}
        layers, model_seed, cells = self.pool.layers[stack], self.model.state.seed, self.pool.cells
        nobody = cells[self.pool.input_stack].count, cells["core"].count
        for run, group in runs:
            row, offset, options = run.row, run.offset, run.request.options
            if layers:
                row.place(stack, group, offset, 1)
            given = options.prompt[offset] if run.in_prompt else -1
            seed = signed(model_seed if options.state_seed is None else options.state_seed)
            kept = nobody
            if run.history is not None:  # a start state stands before the first step
                kept = (run.history.input_cell + offset, run.history.cell(0 if stack == "prelude" else run.t + 1) + offset)
            columns[run.slot] = [run.slot, 1, offset, group, row.cell(stack, group), given, seed, *kept]
        shortest = min(columns.values(), key=lambda column: column[POSITION])
        idle = [shortest[SOURCE], 0, *shortest[POSITION:]]
        return list(zip(*(columns.get(slot, idle) for slot in range(self.rows)), strict=True))

    def open_pass(self, stack: str, numbers: Tensor, reach: int) -> Pass:
        """Returns the pass of one token per row, by the numbers that are on the device."""
        if reach not in self.fused:
            self.fused[reach] = fused_rows(self.model, self.rows, reach)
        cache = FixedRows(self.pool, numbers[POSITION, :, None], {stack: numbers[START]}, reach)
        window, rotary = self.model.config.sliding_window, None
        if self.pool.layers[stack]:
            rotary = self.rotations.at(cache.positions, reach)
        return replace(open_pass(cache.span, None, window, self.state.dtype, cache=cache, fused=self.fused[reach]), rotary=rotary)

    # the parts, as they are captured

    def run(self, stack: str, numbers: Tensor, reach: int, *, keeps: bool) -> None:
        """Runs a part as it is captured; `keeps` says that some of its rows have histories."""
        p = self.open_pass(stack, numbers, reach)
        if stack == "prelude":
            self._embed(numbers, p, keeps)
        elif stack == "core":
            self._step(numbers, p, keeps)
        else:
            self._read_out(numbers, p)

    def _embed(self, numbers: Tensor, p: Pass, keeps: bool) -> None:
        given = numbers[GIVEN][:, None]
        ids = torch.where(given < 0, self.token[numbers[SOURCE]], given)
        e = self.model.run_prelude(self.model.token_vectors(ids), p)
        s = self.model.start_state(e, p, numbers[SEED] if self.model.state.seeded else None)
        self._put(self.input, e, numbers)
        self._put(self.state, s, numbers)
        if keeps:
            inputs, states = self.pool.states
            self._keep(inputs, e, numbers[INPUT])
            self._keep(states, s, numbers[STATE])

    def _step(self, numbers: Tensor, p: Pass, keeps: bool) -> None:
        steps = RowSteps((0,) * self.rows, self.device, numbers[STEP])  # the host has checked the real ones
        source = numbers[SOURCE]
        s = self.model.step(self.state[source], self.input[source], steps, p)
        self._put(self.state, s, numbers)
        if keeps:
            self._keep(self.pool.states[1], s, numbers[STATE])

    def _keep(self, held: Tensor, new: Tensor, cells: Tensor) -> None:
        held.index_copy_(0, cells, new[:, 0].to(held.dtype))

    def _read_out(self, numbers: Tensor, p: Pass) -> None:
        logits = self.model.read_out(self.state[numbers[SOURCE]], p, reading=0)[:, 0]
        self.logits.copy_(logits)
        torch.argmax(logits, -1, out=self.greedy)
        torch.where(numbers[ACTIVE, :, None] > 0, self.greedy[:, None], self.token, out=self.token)
        self.usable.copy_(choosable(logits))

    def _put(self, held: Tensor, new: Tensor, numbers: Tensor) -> None:
        torch.where(numbers[ACTIVE, :, None, None] > 0, new.to(held.dtype), held, out=held)


class CapturedTick:
    """Some parts of a tick at one reach: a graph and the numbers that it reads, or, where it cannot be captured, the parts as they
    are."""

    def __init__(self, graphs: TickGraphs, parts: Sequence[str], reach: int, keeps: bool, numbers: Tensor) -> None:
        self.numbers = numbers.to(graphs.device, copy=True)

        def run() -> None:
            for stack, stack_numbers in zip(parts, self.numbers, strict=True):
                graphs.run(stack, stack_numbers, reach, keeps=keeps)

        self._run: Callable[[], None] = run
        self.numbers[:, ACTIVE] = 0  # nobody takes part, and keys are written where the next run writes them again
        self.graph = graphs.captures.graph(self._run, f"the {', '.join(parts)} of a tick")

    def play(self, numbers: Tensor) -> None:
        """Runs the tick for the rows that the numbers name, without waiting for the device."""
        self.numbers.copy_(numbers, non_blocking=True)
        if self.graph is None:
            self._run()
        else:
            self.graph.replay()


class Rotations:
    """The rotations of all positions, of which a pass takes its own: two kernels where making them takes a dozen."""

    def __init__(self, rotary: Rotary | None, dtype: torch.dtype) -> None:
        self.rotary, self.dtype = rotary, dtype
        self.tables: dict[int, tuple[Tensor, Tensor]] = {}

    def at(self, positions: Tensor, reach: int) -> tuple[Tensor, Tensor] | None:
        """Returns cos and signed sin [R, T, 1, K] for positions [R, T] below `reach`; None in a model without rotations."""
        if self.rotary is None:
            return None
        if reach not in self.tables:
            cos, sin = self.rotary.table(torch.arange(reach, device=positions.device)[None], self.dtype)
            self.tables[reach] = cos[0], sin[0]
        cos, sin = self.tables[reach]
        return cos[positions], sin[positions]


def fused_rows(model: LoopedForCausalLM, rows: int, reach: int, length: int = 1) -> FusedStacks | None:
    """Returns the fused kernels for `length` tokens in each of so many rows, or None where there are none."""
    config = model.config
    if model.device.type != "cuda" or config.sliding_window is not None:
        return None
    if length > longest_pass(rows, config.num_attention_heads // config.num_key_value_heads):
        return None
    stacks = fused_stacks(model, rows * length)
    if not stacks:
        return None
    from loopwright.model.fused_stack import FusedStacks  # Triton comes with torch, where there is a GPU

    return FusedStacks(model, stacks, rows, reach, masked=False, length=length)


class Captures:
    """Makes graphs that are never replayed at once, on one stream and in one pool of memory: all need no more than the largest."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device=device)  # of its own: memory is used again on its own stream alone
            self.memory = torch.cuda.graph_pool_handle()

    def graph(self, run: Callable[[], None], what: str) -> torch.cuda.CUDAGraph | None:
        """Returns a graph of what is run, run twice before so that parts compile; None where it cannot be had, said once."""
        if self.device.type != "cuda":
            return None
        graph = torch.cuda.CUDAGraph()
        try:
            # one capture at a time: several engines may share the process
            with _CAPTURING, torch.cuda.device(self.device):
                self.stream.wait_stream(torch.cuda.current_stream(self.device))
                with torch.cuda.stream(self.stream):
                    for _ in range(2):
                        run()
                torch.cuda.current_stream(self.device).wait_stream(self.stream)
                with torch.cuda.graph(graph, pool=self.memory, stream=self.stream, capture_error_mode="thread_local"):
                    run()
        except RuntimeError as error:
            warn_once(f"engine: {what} is launched kernel by kernel: {error}")
            return None
        return graph


# what the device is told of each row, after the positions of its tokens: its first cell in the stack, its step, the seed of its
# state and, where states that were kept are read, the first cells of these and of the inputs
PASS_START, PASS_STEP, PASS_SEED, STATES, INPUTS = range(5)


class PassGraphs(Passes):
    """The captured passes of a scheduler of `rows` rows, made when they are first needed."""

    def __init__(self, model: LoopedForCausalLM, pool: KeyPool, rows: int) -> None:
        super().__init__(model, pool)
        self.rows = rows
        self.weights_address: int | None = None
        self._begin()

    def refresh(self, weights_address: int) -> None:
        """Captures anew where the weights have moved."""
        if weights_address != self.weights_address:
            self._begin()
            self.weights_address = weights_address

    def _begin(self) -> None:
        self.passes: dict[tuple[str, bool, int, int, int], CapturedPass] = {}
        self.captures = Captures(self.pool.device)
        self.fused: dict[tuple[int, int, int], FusedStacks | None] = {}
        self.rotations = Rotations(self.model.rotary, self.pool.keys["core"].dtype)
        self.kept = [*self.model.parameters(), *self.model.buffers()]  # what a graph reads must not be freed under it

    def embed(
        self, rows: Sequence[Row], first: Sequence[int], ids: Sequence[Sequence[int]], seeds: Sequence[int | None]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns input and first state [T, D] of the tokens of each row; `seeds` are those of the states, None for the model's."""
        longest, device = max(map(len, ids)), self.pool.device
        table = [[*some, *[0] * (longest - len(some))] for some in ids]
        padded = pinned(table, device).to(device, non_blocking=True)
        tokens = [row[: len(some)] for row, some in zip(padded, ids, strict=True)]
        e, s = self._run(
            "prelude",
            rows,
            first,
            list(map(len, ids)),
            [0] * len(rows),
            [(seed, 0, 0) for seed in self.seed_numbers(seeds)],
            [tokens],
        )
        return e, s

    def step(
        self, rows: Sequence[Row], first: Sequence[int], states: Sequence[Tensor], inputs: Sequence[Tensor], steps: Sequence[int]
    ) -> list[Tensor]:
        """Returns the states [T, D] of each row's tokens after its step."""
        (s,) = self._run("core", rows, first, list(map(len, states)), steps, [(0, 0, 0)] * len(rows), [states, inputs])
        return s

    def features(
        self, rows: Sequence[Row], first: Sequence[int], states: Sequence[Tensor], readings: Sequence[int]
    ) -> list[Tensor]:
        """Returns what the head reads of the states of each row's tokens [T, D], as its reading says."""
        lengths, groups = list(map(len, states)), self._readings(rows, readings)
        (y,) = self._run("coda", rows, first, lengths, groups, [(0, 0, 0)] * len(rows), [states])
        return y

    def step_histories(
        self, histories: Sequence[StateHistory], first: Sequence[int], ends: Sequence[int], steps: Sequence[int]
    ) -> None:
        """Runs a step of the tokens of each row from `first` to its end, from the states that were kept, and keeps the new ones."""
        sources = [(0, history.cell(t), history.input_cell) for history, t in zip(histories, steps, strict=True)]
        self._run("core", [history.row for history in histories], first, _lengths(first, ends), steps, sources)

    def read_histories(
        self, histories: Sequence[StateHistory], first: Sequence[int], ends: Sequence[int], readings: Sequence[int]
    ) -> list[Tensor]:
        """Returns what the head reads of the kept states of each row's tokens [T, D], as its reading says."""
        rows = [history.row for history in histories]
        sources = [(0, history.cell(depth), 0) for history, depth in zip(histories, readings, strict=True)]
        (y,) = self._run("coda", rows, first, _lengths(first, ends), self._readings(rows, readings), sources)
        return y

    def open(self, rows: list[Row], first: list[int], length: int) -> Pass:
        """Returns where the tokens stand, and no more: what steps need is opened where they are captured."""
        positions = torch.tensor(first, device="cpu")[:, None] + torch.arange(length, device="cpu")
        return Pass(RowSpan(tuple(first), length, positions), None, None, causal=False)

    def _readings(self, rows: Sequence[Row], readings: Sequence[int]) -> list[int]:
        coda = bool(self.pool.layers["coda"])
        return [row.readings.index(reading) if coda else 0 for row, reading in zip(rows, readings, strict=True)]

    def _run(
        self, stack: str, rows: Sequence[Row], first: Sequence[int], lengths: Sequence[int], groups: Sequence[int],
        sources: Sequence[tuple[int, int, int]], given: Sequence[Sequence[Tensor]] | None = None,
    ) -> tuple[list[Tensor], ...]:  # fmt: skip
        length = 1 << (max(lengths) - 1).bit_length()
        end = max(a + count for a, count in zip(first, lengths, strict=True))
        fitting = min(self.rows, 1 << (len(rows) - 1).bit_length())
        shape = fitting, length, max(SHORTEST, length, 1 << (end - 1).bit_length())
        columns = []
        for row, a, count, group, numbers in zip(rows, first, lengths, groups, sources, strict=True):
            if self.pool.layers[stack]:
                row.place(stack, group, a, count)
            columns.append([*range(a, a + count), *[a + count - 1] * (length - count), row.cell(stack, group), group, *numbers])
        columns += columns[:1] * (shape[0] - len(rows))
        table = pinned(list(zip(*columns, strict=True)), self.pool.device)
        key = stack, given is None, *shape
        if key not in self.passes:
            self.passes[key] = CapturedPass(self, stack, shape, kept=given is None)
        outputs = self.passes[key].play(table, given or ())
        return tuple([x[i, :count] for i, count in enumerate(lengths)] for x in outputs)

    def fixed_pass(self, stack: str, numbers: Tensor, length: int, reach: int) -> Pass:
        """Returns the pass of `length` tokens in each row, by the numbers that are on the device."""
        # row after row, as fused kernels read them
        cache = FixedRows(self.pool, numbers[:length].T.contiguous(), {stack: numbers[length + PASS_START]}, reach)
        window, dtype = self.model.config.sliding_window, self.pool.keys["core"].dtype
        fused, rotary = self._fused(numbers.shape[1], length, reach), self.rotations.at(cache.positions, reach)
        return replace(open_pass(cache.span, None, window, dtype, cache=cache, fused=fused), rotary=rotary)

    def _fused(self, rows: int, length: int, reach: int) -> FusedStacks | None:
        if (rows, length, reach) not in self.fused:
            self.fused[rows, length, reach] = fused_rows(self.model, rows, reach, length)
        return self.fused[rows, length, reach]

    def run(self, stack: str, numbers: Tensor, p: Pass, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Runs a pass as it is captured."""
        model, length = self.model, given[0].shape[1]
        if stack == "prelude":
            e = model.run_prelude(model.token_vectors(given[0]), p)
            return e, model.start_state(e, p, numbers[length + PASS_SEED] if model.state.seeded else None)
        if stack == "core":
            steps = RowSteps(
                (0,) * numbers.shape[1], numbers.device, numbers[length + PASS_STEP]
            )  # the host has checked the real ones
            return (model.step(given[0], given[1], steps, p),)
        return (model.features(given[0], p, reading=0),)

    def run_kept(self, stack: str, numbers: Tensor, p: Pass) -> tuple[Tensor, ...]:
        """Runs a pass from kept states, as it is captured; those after a step are kept in turn."""
        (inputs, states), first = self.pool.states, len(numbers) - 1 - INPUTS
        positions = numbers[:first].T
        given = [states[numbers[first + STATES, :, None] + positions]]
        if stack != "core":
            return self.run(stack, numbers, p, given)
        (new,) = self.run(stack, numbers, p, [*given, inputs[numbers[first + INPUTS, :, None] + positions]])
        states.index_copy_(0, (numbers[first + PASS_START, :, None] + positions).flatten(), new.flatten(0, 1).to(states.dtype))
        return ()


def _lengths(first: Sequence[int], ends: Sequence[int]) -> list[int]:
    return [end - a for a, end in zip(first, ends, strict=True)]


class CapturedPass:
    """One stack at one shape: a graph, with what it reads and leaves; or, where it cannot be captured, the pass as it is.

    It reads the tokens that it is given or, where `kept`, states and inputs that the pool holds.
    """

    def __init__(self, graphs: PassGraphs, stack: str, shape: tuple[int, int, int], *, kept: bool) -> None:
        rows, length, reach = shape
        device = graphs.pool.device
        self.given: list[Tensor] = []
        if not kept:
            state = graphs.pool.keys["core"].new_zeros(rows, length, graphs.model.config.hidden_size)
            ids = torch.zeros(rows, length, dtype=torch.long, device=device)
            self.given = [ids] if stack == "prelude" else [state.clone() for _ in range(2 if stack == "core" else 1)]
        self.numbers = torch.zeros(length + 1 + INPUTS, rows, dtype=torch.long, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.made: tuple[Tensor, ...] = ()
        self._name = f"the {stack} of {length} tokens"

        def run() -> None:
            p = graphs.fixed_pass(stack, self.numbers, length, reach)
            self.made = graphs.run_kept(stack, self.numbers, p) if kept else graphs.run(stack, self.numbers, p, self.given)

        self._run, self._begun, self._captures = run, False, graphs.captures

    def play(self, numbers: Tensor, given: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """Returns what the pass makes of its tokens, without waiting for the device; the next one like it writes over it."""
        self.numbers.copy_(numbers, non_blocking=True)
        for held, each in zip(self.given, given, strict=True):
            if len({len(x) for x in each}) == 1:  # in one go
                held[: len(each), : len(each[0])] = torch.stack(list(each))
                held[: len(each), len(each[0]) :] = held[: len(each), len(each[0]) - 1, None]
            else:
                for i, x in enumerate(each):
                    held[i, : len(x)] = x
                    held[i, len(x) :] = x[-1]
            held[len(each) :] = held[:1]
        if not self._begun:  # now, since what is written meanwhile is what is written anyway
            self.graph, self._begun = self._captures.graph(self._run, self._name), True
        if self.graph is None:
            self._run()
        else:
            self.graph.replay()
        return self.made
