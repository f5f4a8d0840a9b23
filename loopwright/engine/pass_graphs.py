"""PassGraphs: passes over the next tokens of some rows at constant shapes, replayed as CUDA graphs.

A shape has one row or all rows of the engine, a power of two of tokens in each, and a power of two of keys before them. A row that
brings fewer tokens repeats its last one, and a row that takes no part repeats the first: both write the same keys once more. What
cannot be captured is run at the same shapes, and that is said once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopwright.engine.passes import Passes
from loopwright.engine.tick_graph import SHORTEST, captured
from loopwright.model.cache.fixed_rows import FixedRows
from loopwright.model.cache.pool import KeyPool, Row
from loopwright.model.forward.context import Pass, open_pass
from loopwright.model.fused.offer import fused_stacks
from loopwright.model.looped import LoopedForCausalLM
from loopwright.model.parts.part import RowSteps
from loopwright.model.parts.state import signed

if TYPE_CHECKING:
    from loopwright.model.fused.stack import FusedStacks

START, STEP, SEED = range(3)  # what the device is told of each row, after the positions of its tokens


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
        self.passes: dict[tuple[str, int, int, int], CapturedPass] = {}
        self.fused: dict[tuple[int, int], FusedStacks | None] = {}
        self.kept = [*self.model.parameters(), *self.model.buffers()]  # what a graph reads must not be freed under it

    def embed(
        self, rows: Sequence[Row], first: Sequence[int], ids: Sequence[Sequence[int]], seeds: Sequence[int | None]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns input and first state [T, D] of the tokens of each row; `seeds` are those of the states, None for the model's."""
        own = self.model.state.seed
        each = [signed(own if seed is None else seed) for seed in seeds]
        tokens = [torch.tensor(list(some), device=self.pool.device) for some in ids]
        e, s = self._run("prelude", rows, first, [0] * len(rows), each, tokens)
        return e, s

    def step(
        self, rows: Sequence[Row], first: Sequence[int], states: Sequence[Tensor], inputs: Sequence[Tensor], steps: Sequence[int]
    ) -> list[Tensor]:
        """Returns the states [T, D] of each row's tokens after its step."""
        (s,) = self._run("core", rows, first, steps, [0] * len(rows), states, inputs)
        return s

    def features(
        self, rows: Sequence[Row], first: Sequence[int], states: Sequence[Tensor], readings: Sequence[int]
    ) -> list[Tensor]:
        """Returns what the head reads of the states of each row's tokens [T, D], as its reading says."""
        coda = bool(self.pool.layers["coda"])
        groups = [row.readings.index(reading) if coda else 0 for row, reading in zip(rows, readings, strict=True)]
        (y,) = self._run("coda", rows, first, groups, [0] * len(rows), states)
        return y

    def _run(
        self, stack: str, rows: Sequence[Row], first: Sequence[int], groups: Sequence[int], seeds: Sequence[int],
        *given: Sequence[Tensor],
    ) -> tuple[list[Tensor], ...]:  # fmt: skip
        lengths = [len(x) for x in given[0]]
        length = 1 << (max(lengths) - 1).bit_length()
        end = max(a + count for a, count in zip(first, lengths, strict=True))
        shape = 1 if len(rows) == 1 else self.rows, length, max(SHORTEST, length, 1 << (end - 1).bit_length())
        columns = []
        for row, a, count, group, seed in zip(rows, first, lengths, groups, seeds, strict=True):
            if self.pool.layers[stack]:
                row.place(stack, group, a, count)
            columns.append([*range(a, a + count), *[a + count - 1] * (length - count), row.cell(stack, group), group, seed])
        columns += columns[:1] * (shape[0] - len(rows))
        # from pinned memory a copy waits for nothing
        numbers = torch.tensor(list(zip(*columns, strict=True)), device="cpu", pin_memory=self.pool.device.type == "cuda")
        if (stack, *shape) not in self.passes:
            self.passes[stack, *shape] = CapturedPass(self, stack, shape)
        made = self.passes[stack, *shape].play(numbers, given)
        return tuple([x[i, :count] for i, count in enumerate(lengths)] for x in made)

    def fixed_pass(self, stack: str, numbers: Tensor, length: int, reach: int) -> Pass:
        """Returns the pass of `length` tokens in each row, by the numbers that are on the device."""
        cache = FixedRows(self.pool, numbers[:length].T, {stack: numbers[length + START]}, reach)
        window, dtype = self.model.config.sliding_window, self.pool.keys["core"].dtype
        fused = self._fused(numbers.shape[1], reach) if length == 1 else None
        return open_pass(cache.span, self.model.rotary, window, dtype, cache=cache, fused=fused)

    def _fused(self, rows: int, reach: int) -> FusedStacks | None:
        if (rows, reach) not in self.fused:
            self.fused[rows, reach] = None
            if (
                self.pool.device.type == "cuda"
                and self.model.config.sliding_window is None
                and (stacks := fused_stacks(self.model))
            ):
                from loopwright.model.fused.stack import FusedStacks  # Triton comes with torch, where there is a GPU

                self.fused[rows, reach] = FusedStacks(self.model, stacks, rows, reach, masked=False)
        return self.fused[rows, reach]

    def run(self, stack: str, numbers: Tensor, p: Pass, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Runs a pass as it is captured."""
        model, length = self.model, given[0].shape[1]
        if stack == "prelude":
            e = model.run_prelude(model.token_vectors(given[0]), p)
            return e, model.start_state(e, p, numbers[length + SEED] if model.state.seeded else None)
        if stack == "core":
            steps = RowSteps((0,) * numbers.shape[1], numbers.device, numbers[length + STEP])  # the host has checked the real ones
            return (model.step(given[0], given[1], steps, p),)
        return (model.features(given[0], p, reading=0),)


class CapturedPass:
    """One stack at one shape: a graph, with what it reads and leaves; or, where it cannot be captured, the pass as it is."""

    def __init__(self, graphs: PassGraphs, stack: str, shape: tuple[int, int, int]) -> None:
        rows, length, reach = shape
        device = graphs.pool.device
        state = graphs.pool.keys["core"].new_zeros(rows, length, graphs.model.config.hidden_size)
        ids = torch.zeros(rows, length, dtype=torch.long, device=device)
        self.given = [ids] if stack == "prelude" else [state.clone() for _ in range(2 if stack == "core" else 1)]
        self.numbers = torch.zeros(length + 3, rows, dtype=torch.long, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.made: tuple[Tensor, ...] = ()
        self._name = f"the {stack} of {length} tokens"
        self._run = lambda: graphs.run(stack, self.numbers, graphs.fixed_pass(stack, self.numbers, length, reach), self.given)
        self._begun = False

    def play(self, numbers: Tensor, given: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Returns what the pass makes of the tokens that are given, without waiting for the device."""
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
            self.graph, self._begun = captured(self._keep, self.numbers.device, self._name), True
        if self.graph is None:
            self._keep()
        else:
            self.graph.replay()
        return [x.clone() for x in self.made]  # the next pass writes over them

    def _keep(self) -> None:
        self.made = self._run()
