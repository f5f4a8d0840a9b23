"""PassGraphs: passes over the next tokens of some rows at constant shapes, replayed as CUDA graphs.

A shape has a power of two of rows, but no more than the engine has, a power of two of tokens in each, and a power of two of keys
before them. A row that brings fewer tokens repeats its last one, and a row that takes no part repeats the first: both write the
same keys once more. What cannot be captured is run at the same shapes, and that is said once. Stacks with a fused form
(`model/fused/`) run in it where a row has few new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopwright.engine.passes import Passes
from loopwright.engine.running import pinned
from loopwright.engine.tick_graph import SHORTEST, Captures, Rotations, fused_rows
from loopwright.engine.trail import Trail
from loopwright.model.cache.fixed_rows import FixedRows
from loopwright.model.cache.pool import KeyPool, Row
from loopwright.model.cache.rows import RowSpan
from loopwright.model.forward.context import Pass, open_pass
from loopwright.model.looped import LoopedForCausalLM
from loopwright.model.parts.part import RowSteps

if TYPE_CHECKING:
    from loopwright.model.fused.stack import FusedStacks

# what the device is told of each row, after the positions of its tokens: its first cell in the stack, its step, the seed of its
# state and, where states that were kept are read, the first cells of these and of the inputs
PASS_START, PASS_STEP, PASS_SEED, STATES, INPUTS = range(5)


class PassGraphs(Passes):
    """The captured passes of a scheduler of `rows` rows, made when they are first needed."""

    def __init__(self, model: LoopedForCausalLM, pool: KeyPool, rows: int) -> None:
        super().__init__(model, pool)
        self.rows = rows
        self.lie: int | None = None  # a number for where the weights lie
        self._begin()

    def refresh(self, lie: int) -> None:
        """Captures anew where the weights lie elsewhere than before."""
        if lie != self.lie:
            self._begin()
            self.lie = lie

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

    def step_trails(self, trails: Sequence[Trail], first: Sequence[int], ends: Sequence[int], steps: Sequence[int]) -> None:
        """Runs a step of the tokens of each row from `first` to its end, from the states that were kept, and keeps the new ones."""
        sources = [(0, trail.cell(t), trail.input_cell) for trail, t in zip(trails, steps, strict=True)]
        self._run("core", [trail.row for trail in trails], first, _lengths(first, ends), steps, sources)

    def read_trails(
        self, trails: Sequence[Trail], first: Sequence[int], ends: Sequence[int], readings: Sequence[int]
    ) -> list[Tensor]:
        """Returns what the head reads of the kept states of each row's tokens [T, D], as its reading says."""
        rows = [trail.row for trail in trails]
        sources = [(0, trail.cell(depth), 0) for trail, depth in zip(trails, readings, strict=True)]
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
        told: Sequence[tuple[int, int, int]], given: Sequence[Sequence[Tensor]] | None = None,
    ) -> tuple[list[Tensor], ...]:  # fmt: skip
        length = 1 << (max(lengths) - 1).bit_length()
        end = max(a + count for a, count in zip(first, lengths, strict=True))
        fitting = min(self.rows, 1 << (len(rows) - 1).bit_length())
        shape = fitting, length, max(SHORTEST, length, 1 << (end - 1).bit_length())
        columns = []
        for row, a, count, group, numbers in zip(rows, first, lengths, groups, told, strict=True):
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
