"""Every output on a cache equals the uncached one, or the pass is refused in one line: random programs over all presets.

A program is a list of operations on one cache: passes in chunks of any length (with step logits, select rules, given states,
padding, packed documents, depths that go up and down), passes whose rows stand at their own steps, crops, reorders, rows freed and
admitted. Beside the cache runs a plain record of which token was run at which step and read at which depth. It says what is owed:
a pass that needs what was never run must be refused and change nothing; every other one must equal each row alone, without a cache.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache as once

import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.model.passes import LoopedOutput, readings_of, rules_of
from loopwright.model.presets import PRESETS
from tests.cases import gap, noisy, plant_marks_of_every_step, plant_one_coda_slot

TOLERANCE = 1e-9
CONTROLLER = {"kind": "controller", "rank": 4, "style": 8}
# what no preset has: a coda under each kind of halting, sums on every stack, a window, a dense model
VARIANTS: dict[str, dict] = {
    "exit and coda": {"name": "ouro-1.4b-tiny", "coda_layers": 2, "halting": {"kind": "exit", "threshold": 0.6}},
    "act and coda": {"name": "universal-tiny", "coda_layers": 1, "prelude_layers": 1},
    "controllers": {
        "name": "ouroboros-qwen2.5-3b-tiny",
        "adapters": [
            {**CONTROLLER, "pooling": "chunk", "chunk": 3},
            {**CONTROLLER, "stack": "coda"},
            {**CONTROLLER, "stack": "prelude", "pooling": "chunk", "chunk": 2},
        ],
    },
    "window": {"name": "huginn-tiny", "sliding_window": 5},
    "dense": {"name": "retrofit-llama-1b-tiny", "core_layers": 0, "injection": None, "state": None, "depth": 1},
}
SUBJECTS = [f"{name}-tiny" for name in PRESETS] + list(VARIANTS)


@once
def subject(which: str) -> lw.LoopedForCausalLM:
    return noisy(**{"read_out": "last", **VARIANTS.get(which, {"name": which})}).double()


@dataclass
class Token:
    """One token of a row: what it is, and what the cache was made to run of it."""

    id: int
    segment: int = 0
    real: bool = True
    state: Tensor | None = None  # given as its initial state
    ran: frozenset = frozenset()  # ("core", step) and ("coda", reading)


@dataclass
class Program:
    """A cache, and beside it the record of its rows."""

    model: lw.LoopedForCausalLM
    draw: random.Random
    counts: Counter = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    rows: list[list[Token]] = field(default_factory=list)

    def __post_init__(self) -> None:
        config, draw = self.model.config, self.draw
        limit = config.max_steps if config.max_steps and config.beyond_max_steps == "refuse" else 6
        self.deepest = limit if config.is_looped else 1
        self.home = draw.randint(1, min(4, self.deepest))
        self.sweeping = draw.random() < 0.5
        self.selects = rules_of(self.model.halting)
        self.select = draw.choice(self.selects)
        fixed = draw.random() < 0.3
        self.cache = lw.LoopCache(config, capacity=64 if fixed else draw.choice([0, 3]), fixed=fixed)
        self.rows = [[] for _ in range(draw.randint(1, 3))]

    # what is asked for

    def depth(self) -> int:
        return self.home if self.draw.random() < 0.8 else self.draw.randint(1, self.deepest)

    def options(self) -> tuple[int, str, bool]:
        """Returns depth, select and output_steps: mostly those of the program, sometimes others."""
        select = self.select if self.draw.random() < 0.85 else self.draw.choice(self.selects)
        return self.depth(), select, self.sweeping if self.draw.random() < 0.85 else not self.sweeping

    def new_tokens(self, plain: bool) -> list[list[Token]]:
        draw, length = self.draw, self.draw.choice([1, 1, 1, 2, 3, 5])
        pads, packs = (False, False) if plain else (draw.random() < 0.35, draw.random() < 0.25)
        rows = []
        for row in self.rows:
            segment = next((t.segment for t in reversed(row) if t.real), 0)
            left = draw.randint(0, length - 1) if pads else 0
            tokens = []
            for i in range(length):
                if packs and draw.random() < 0.3:
                    segment += 1
                real = i >= left and not (pads and draw.random() < 0.1)
                tokens.append(Token(draw.randrange(self.model.config.vocab_size), segment, real))
            rows.append(tokens)
        return rows

    def missing(self, rows: list[list[Token]], needs: list[frozenset]) -> bool:
        """Whether a row holds a token that was not run at all that a pass needs of it."""
        return any(not need <= token.ran for row, need in zip(rows, needs, strict=True) for token in row)

    def needs(self, steps: int, readings: list) -> frozenset:
        core = {("core", t) for t in range(steps)} if self.model.config.is_looped else set()
        return frozenset(core | ({("coda", r) for r in readings} if self.model.config.coda_layers else set()))

    # what it should be

    def uncached(self, row: list[Token], depth: int, select: str) -> LoopedOutput:
        """Returns what the model says of a row's real tokens, alone and in one pass."""
        real = [t for t in row if t.real]
        ids, segments = torch.tensor([[t.id for t in real]]), torch.tensor([[t.segment for t in real]])
        e, p = self.model.embed(ids, segment_ids=segments)
        state = self.model.start_state(e, p).clone()
        for i, token in enumerate(real):
            if token.state is not None:
                state[0, i] = token.state
        given = {"depth": depth} if self.model.config.is_looped else {}
        return self.model(ids, segment_ids=segments, initial_state=state, output_steps=True, select=select, **given)

    def alone(self, row: list[Token], depth: int, select: str) -> tuple[LoopedOutput | None, list[int]]:
        """Returns the uncached output of a row's real tokens, and where each token of the row stands in it (−1: a pad)."""
        if not any(t.real for t in row):
            return None, []
        full = self.uncached(row, depth, select)
        places, count = [], 0
        for token in row:
            places.append(count if token.real else -1)
            count += token.real
        return full, places

    def compare(self, what: str, got: Tensor, want: Tensor) -> None:
        self.counts["compared"] += 1
        if not gap(got, want) <= TOLERANCE:
            self.counts["wrong"] += 1
            self.faults.append(f"{what}: {gap(got, want):.1e}")

    def refused(self, what: str, owed: bool, error: ValueError) -> None:
        self.counts["refused"] += 1
        if not owed or not str(error).startswith("cache: ") or "\n" in str(error):
            self.counts["wrong"] += 1
            self.faults.append(f"{what}: refused where nothing is missing ({error})")

    def accepted(self, what: str, owed_refusal: bool) -> None:
        self.counts["equal" if not owed_refusal else "wrong"] += 1
        if owed_refusal:
            self.faults.append(f"{what}: accepted, and earlier tokens were never run so")

    # the operations

    def run_pass(self) -> None:
        depth, select, output_steps = self.options()
        new = self.new_tokens(plain=self.draw.random() < 0.5)
        keep = self.draw.choice([0, 0, 1])
        needs = self.needs(depth, readings_of(select, self.model.halting, depth, output_steps))
        what = f"pass depth={depth} select={select} output_steps={output_steps}"
        given = {"depth": depth} if self.model.config.is_looped else {}
        mask = torch.tensor([[t.real for t in row] for row in new]).long()
        if not mask.all() or self.draw.random() < 0.2:
            given["attention_mask"] = mask
        segments = torch.tensor([[t.segment for t in row] for row in new])
        last = [next((t.segment for t in reversed(row) if t.real), 0) for row in self.rows]
        if (segments != torch.tensor(last)[:, None]).any():
            given["segment_ids"] = segments
        if self.draw.random() < 0.15 and self.model.config.is_looped:
            state = torch.randn(*mask.shape, self.model.config.hidden_size, dtype=torch.float64)
            given["initial_state"] = state
            for b, row in enumerate(new):
                for i, token in enumerate(row):
                    token.state = state[b, i]
        owed = self.missing(self.rows, [needs] * len(self.rows))
        self.counts["tried"] += 1
        ids = torch.tensor([[t.id for t in row] for row in new])
        try:
            out = self.model(
                ids, select=select, output_steps=output_steps, past_key_values=self.cache, logits_to_keep=keep, **given
            )
        except ValueError as error:
            self.refused(what, owed, error)
            return
        self.accepted(what, owed)
        for b, row in enumerate(new):
            full, places = self.alone(self.rows[b] + row, depth, select)
            for i, token in enumerate(row):
                at, kept = (places[len(self.rows[b]) + i] if places else -1), i - (len(row) - keep if keep else 0)
                if not token.real:
                    continue
                if kept >= 0:
                    self.compare(f"{what}, logits", out.logits[b, kept], full.logits[0, at])
                if out.exit_probs is not None:
                    self.compare(f"{what}, exit_probs", out.exit_probs[b, i], full.exit_probs[0, at])
                for t in range(depth if output_steps else 0):
                    self.compare(f"{what}, state {t}", out.states[t][b, i], full.states[t][0, at])
                    if kept >= 0:
                        self.compare(f"{what}, logits of step {t}", out.step_logits[t][b, kept], full.step_logits[t][0, at])
        self.hold(new, [needs] * len(new))

    def hold(self, new: list[list[Token]], ran: list[frozenset]) -> None:
        for row, tokens, groups in zip(self.rows, new, ran, strict=True):
            for token in tokens:
                token.ran = groups
            row += tokens

    def run_rows(self) -> None:
        """A pass whose rows stand at their own steps, some waiting while others go on, read out at their own depths."""
        if not self.model.config.is_looped:
            return
        model, draw, count = self.model, self.draw, len(self.rows)
        new = self.new_tokens(plain=True)
        depths = [self.depth() for _ in range(count)] if draw.random() < 0.7 else [self.depth()] * count
        ids = torch.tensor([[t.id for t in row] for row in new])
        ran = [set() for _ in range(count)]
        what = f"rows at depths {depths}"
        e, p = model.embed(ids, cache=self.cache)
        self.counts["tried"] += 1
        owed = self.missing(self.rows, [self.needs(d, [d]) for d in depths])
        done = [0] * count
        before = now = model.start_state(e, p)
        full = [self.uncached(row + tokens, self.deepest, "last") for row, tokens in zip(self.rows, new, strict=True)]
        try:
            while done != depths:
                moving = [b for b in range(count) if done[b] < depths[b]]
                moving = draw.sample(moving, draw.randint(1, len(moving)))
                t = [done[b] if b in moving else max(done[b] - 1, 0) for b in range(count)]
                inputs = torch.stack([now[b] if b in moving else before[b] for b in range(count)])
                alike = len(set(t)) == 1 and draw.random() < 0.5
                after = model.step(inputs, e, t[0] if alike else torch.tensor(t), p)
                before = inputs
                # a row that has not begun stays at its start, whatever the step made of it
                now = torch.stack([after[b] if b in moving or done[b] else now[b] for b in range(count)])
                for b in range(count):
                    ran[b].add(("core", t[b]))
                    done[b] += b in moving
                if min(done) and draw.random() < 0.3:
                    self.read(what, now, p, list(done), ran, new, full)
            logits = model.read_out(now, p, reading=depths[0] if len(set(depths)) == 1 else torch.tensor(depths))
        except ValueError as error:
            self.refused(what, owed, error)
            return
        self.accepted(what, owed)
        self.compare_rows(what, logits, depths, new, full)
        for b, d in enumerate(depths):
            ran[b].add(("coda", d))
        self.cache.advance(p.span)
        self.hold(new, [frozenset(groups) for groups in ran])

    def read(self, what: str, now: Tensor, p, done: list[int], ran: list[set], new: list, full: list) -> None:
        """Reads out between steps: on the cache it is a reading like any other."""
        owed = self.missing(self.rows, [self.needs(0, [d]) for d in done])
        self.counts["tried"] += 1
        try:
            logits = self.model.read_out(now, p, reading=torch.tensor(done))
        except ValueError as error:
            self.refused(f"{what}, read at {done}", owed, error)
            return
        self.accepted(f"{what}, read at {done}", owed)
        self.compare_rows(what, logits, done, new, full)
        for b, d in enumerate(done):
            ran[b].add(("coda", d))

    def compare_rows(self, what: str, logits: Tensor, depths: list[int], new: list, full: list) -> None:
        for b, d in enumerate(depths):
            self.compare(f"{what}, row {b}", logits[b], full[b].step_logits[d - 1][0, -len(new[b]) :])

    def crop(self) -> None:
        length = max(map(len, self.rows))
        keep = self.draw.randint(0, length)
        if keep and self.draw.random() < 0.5:
            self.cache.crop(keep)
            self.rows = [row[:keep] for row in self.rows]
        else:
            self.cache.crop(keep - length)
            self.rows = [row[: max(len(row) - (length - keep), 0)] for row in self.rows]

    def reorder(self) -> None:
        if not any(self.rows):
            return
        order = [self.draw.randrange(len(self.rows)) for _ in range(self.draw.randint(1, 3))]
        self.cache.reorder_cache(torch.tensor(order))
        self.rows = [list(self.rows[b]) for b in order]

    def run(self) -> None:
        self.run_pass()
        for _ in range(self.draw.randint(3, 7)):
            if max(map(len, self.rows)) > 40:
                return
            chosen = self.draw.random()
            if chosen < 0.55:
                self.run_pass()
            elif chosen < 0.75:
                self.run_rows()
            else:
                self.draw.choice([self.crop, self.reorder])()


@torch.no_grad()
def attack(cases: int, subjects: Sequence[str] = SUBJECTS) -> tuple[Counter, list[str]]:
    """Runs that many programs, the subjects in turn, and returns the counts and what was wrong."""
    counts: Counter = Counter()
    faults: list[str] = []
    for case in range(cases):
        which = subjects[case % len(subjects)]
        torch.manual_seed(case)
        program = Program(subject(which), random.Random(case), counts)
        try:
            program.run()
        except Exception as error:  # anything that is not a refusal is a fault of its own
            counts["wrong"] += 1
            program.faults.append(f"raised {type(error).__name__}: {error}")
        faults += [f"case {case} ({which}): {fault}" for fault in program.faults]
        counts["cases"] += 1
    return counts, faults


def report(counts: Counter) -> str:
    return (
        f"cache equality: cases {counts['cases']}, passes tried {counts['tried']}, equal {counts['equal']}, "
        f"refused {counts['refused']}, wrong {counts['wrong']} ({counts['compared']} comparisons)"
    )


@pytest.mark.slow
def test_random_programs_on_a_cache_equal_each_row_alone() -> None:
    counts, faults = attack(len(SUBJECTS))
    assert not faults, "\n".join(faults[:10])
    assert counts["equal"] > 2 * counts["refused"] > 0, report(counts)


@pytest.mark.attack
def test_a_thousand_random_programs() -> None:
    counts, faults = attack(1000)
    print(report(counts))
    assert not faults, "\n".join(faults[:20])
    assert counts["wrong"] == 0 and counts["equal"] > 2 * counts["refused"] > 0


@pytest.mark.long
def test_the_programs_find_a_coda_that_all_steps_share(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_one_coda_slot(monkeypatch)
    _, faults = attack(4, ["exit and coda", "huginn-tiny"])
    assert any("logits of step" in fault for fault in faults)
    assert any("accepted" in fault for fault in faults)


@pytest.mark.long
def test_the_programs_find_a_step_that_marks_every_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_marks_of_every_step(monkeypatch)
    _, faults = attack(6, ["ouro-1.4b-tiny", "universal-tiny"])
    assert any("accepted, and earlier tokens" in fault for fault in faults)
