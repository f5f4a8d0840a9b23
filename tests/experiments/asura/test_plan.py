"""ASURA's rows: every part has three seeds, and a row with a schedule of its own keeps it whatever the command lays over all."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

import experiments.asura
import experiments.asura.parts
import loopwright as lw
from experiments.asura.pairing import files_of
from experiments.asura.parts import register_parts
from experiments.asura.plan import (
    AGAIN,
    ALL_RATES,
    ALL_TEXT,
    ALL_UPDATES,
    CALMER,
    LARGER_START,
    LOOPED,
    ONE_PROJECTION,
    SIZES,
    TWELVE,
    WHOLE,
    WITHOUT_SKIP,
    at_schedule,
    pairs,
    rows,
)
from experiments.asura.run import SETTINGS, laid_over
from loopwright.model.cost import pass_flops
from loopwright.recipes import recipe
from tests.own_kinds import own_kinds

KEPT = Path(experiments.asura.__file__).parents[1] / "results/asura/runs.jsonl"


def test_every_part_has_three_seeds_and_no_row_is_planned_twice() -> None:
    planned = [*rows()]
    assert len({row.name for row in planned}) == len(planned)
    extra = {row.name for row in pairs()}
    counts = Counter((row.size, row.label) for row in planned if not row.schedule and row.name not in extra)
    assert set(counts.values()) == {3} and len(counts) == len(SIZES) * (len(LOOPED) + 2)


def test_a_schedule_of_its_own_is_laid_over_all_else() -> None:
    calm = [row for row in rows() if row.schedule and row.size != ALL_TEXT]
    assert [row.label for row in calm] == [at_schedule(label, *each) for label in (WITHOUT_SKIP, WHOLE) for each in CALMER]
    found = [recipe("asura-every-step", [*SETTINGS, *laid_over(row, ("schedule.warmup=60", "optim.lr=1e-3"))]) for row in calm]
    assert [(each.optim["lr"], each.schedule["warmup"]) for each in found] == [*CALMER, *CALMER]
    without, whole = found[: len(CALMER)], found[len(CALMER) :]
    assert {each.model["changes"]["injection"]["kind"] for each in without} == {"none"}
    assert not any("injection" in each.model["changes"] for each in whole)


def test_parts_are_run_again_where_their_other_seeds_read_twelve_files() -> None:
    kept = [json.loads(line) for line in KEPT.read_text().splitlines()]
    read = {(run["size"], run["label"], run["seed"]): files_of(run) for run in kept}
    mixed = {(size, label) for size, label, seed in read if seed == 0 and [read.get((size, label, each)) for each in range(3)]
             == [5, 12, 12]}  # fmt: skip
    assert mixed == {(size, label) for size, labels in AGAIN.items() for label in labels}


def test_a_row_that_is_run_again_differs_from_the_first_by_its_name_alone() -> None:
    known = {row.name: row for row in rows()}
    again = [row for row in pairs() if row.label.endswith(TWELVE)]
    for row in again:
        first = known[row.name.replace(TWELVE, "")]
        assert (row.changes, row.schedule, row.looped) == (first.changes, first.schedule, first.looped)
    assert len(again) == 6 + sum(map(len, AGAIN.values())) and [row.size for row in pairs()] == ["middle"] * 12 + ["small"] * 11


@pytest.mark.parametrize("size", SIZES)
def test_one_projection_starts_larger_and_is_the_same_else(size: str) -> None:
    with own_kinds():
        register_parts()
        register_parts()  # a process makes several rows
        check_starts(size)


def check_starts(size: str) -> None:
    models = {}
    for label in (WHOLE, ONE_PROJECTION, LARGER_START):
        row = next(row for row in rows() if (row.size, row.label) == (size, label))
        chosen = recipe("asura-every-step", [*SETTINGS, *laid_over(row, ())]).model["changes"]
        torch.manual_seed(0)
        models[label] = lw.build("asura", **{**chosen, "vocab_size": 64, "core_layers": 1})
    own, small, large = (model.injection for model in models.values())
    width = int(SIZES[size]["hidden_size"])
    started = [each.detach().std().item() for each in (own.weight, small.proj.weight, large.weight)]
    assert started == pytest.approx([(2 * width) ** -0.5, 0.02, (2 * width) ** -0.5], rel=0.01)
    large.load_state_dict({"weight": small.proj.weight, "bias": small.proj.bias + 0.1})
    small.proj.bias.data += 0.1
    s, e = torch.randn(2, 1, 3, width)
    assert torch.equal(large(s, e, None), small(s, e, None))
    costs = [pass_flops(models[label].config, batch=1, length=8)["total"] for label in (ONE_PROJECTION, LARGER_START)]
    assert costs[0] == costs[1]
    assert lw.check(models[LARGER_START]).ok


def test_all_of_the_text_is_read_once_at_two_rates() -> None:
    whole = [row for row in rows() if row.size == ALL_TEXT]
    found = [recipe("asura-every-step", [*SETTINGS, *laid_over(row, ("updates=600", "schedule.warmup=60"))]) for row in whole]
    assert {each.updates for each in found} == {ALL_UPDATES} and {row.looped for row in whole} == {True, False}
    assert sorted(each.optim["lr"] for each in found) == sorted(2 * ALL_RATES)
    tokens = ALL_UPDATES * found[0].batch * found[0].data["length"]
    assert 39_785_770 - found[0].batch * found[0].data["length"] < tokens <= 39_785_770, "as much as there is, and nothing twice"
