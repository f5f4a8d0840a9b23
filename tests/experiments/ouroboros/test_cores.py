"""Cores of several layers: the same layers in every row, equal FLOPs where that is said, and what the page tells."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from experiments.ouroboros import core_tables
from experiments.ouroboros.cores import ARMS, RATES
from experiments.ouroboros.places import runs
from experiments.ouroboros.plan import AT_DEPTH, CORES, LAYERS, ONCE_EQUAL, ONCE_LONGER, PLACES, UPDATES, cores, looping
from experiments.ouroboros.rates import best_rates, grid, tuned
from experiments.ouroboros.run import recipe_of
from loopwright.model.config import LoopedConfig
from loopwright.model.cost import pass_flops
from tests.experiments.ouroboros.test_rates import tried
from tests.experiments.results import result

SIZES = {
    "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "tie_word_embeddings": True,
}  # fmt: skip


def test_every_row_has_the_same_layers_and_as_many_of_them_run() -> None:
    assert {row.label for row in cores()} == set(ARMS)
    for row in cores():
        stacks = dict(change.split("=", 1) for change in row.changes[:3])
        kept = [layer for name in ("prelude", "core", "coda") for layer in ast.literal_eval(stacks[name])]
        assert tuple(kept) == LAYERS
        run = len(LAYERS) + (row.depth - 1) * len(ast.literal_eval(stacks["core"]))
        assert run == (21 if row.system == "gate-only" else 15)
        made = recipe_of(row, "base", "corpus")
        assert made.depth == {"kind": "fixed", "depth": row.depth} and made.batch == 16
        assert made.updates == UPDATES.get(row.label, 240)


def test_the_longer_run_has_the_flops_of_the_rows_that_loop() -> None:
    once = LoopedConfig(**SIZES, prelude_layers=3, core_layers=1, coda_layers=11, depth=1, max_steps=1, adapters=ranked(16))
    longer = UPDATES[ONCE_LONGER] * pass_flops(once, depth=1, length=512)["total"]
    for size, steps in CORES.items():
        parts = {"gate": {"kind": "grown"}, "adapters": ranked(8), "depth": steps, "max_steps": steps}
        config = LoopedConfig(**SIZES, **parts, prelude_layers=3, core_layers=size, coda_layers=12 - size)
        assert 240 * pass_flops(config, depth=steps, length=512)["total"] == pytest.approx(longer, rel=0.025)


def test_every_place_of_a_core_is_scored_as_it_runs() -> None:
    for size in CORES:
        found = dict(runs(size))
        assert len(found) == len(LAYERS) - size - 1 and all(len(run) == 21 for run in found.values())
        assert {LAYERS.index(core[0]) for core in found} == {*range(1, len(LAYERS) - size)}
        assert all(places[size] in [core[0] for core in found] for places in PLACES.values())
    assert dict(runs(3))[8, 19, 20] == (0, 1, 2, *(8, 19, 20) * 3, *range(21, 30))


def ranked(rank: int) -> list[dict]:
    """Low-rank adapters on every stack."""
    return [{"kind": "low-rank", "rank": rank, "stack": stack} for stack in ("prelude", "core", "coda")]


def test_a_rate_is_chosen_from_the_whole_grid() -> None:
    assert len({row.name for row in grid(ARMS, RATES)}) == len(ARMS) * len(RATES)
    assert best_rates(tried("a", {6e-3: 3.0, 1.2e-2: 2.0, 2.4e-2: None}), RATES) == {"a": 1.2e-2}
    assert best_rates(tried("a", {6e-3: 3.0, 1.2e-2: 2.0}), RATES) == {}


def test_the_page_puts_each_loop_beside_the_layers_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    six = looping(6, AT_DEPTH)
    found = []
    for label, depth, loss, tokens in ((ONCE_EQUAL, 1, 4.0, 100), (ONCE_LONGER, 1, 3.97, 127), (six, 2, 3.98, 100)):
        found += tried(label, dict.fromkeys(RATES, 5.0) | {1.2e-2: 4.0})
        for row in tuned([label], (1, 2, 3), {label: 1.2e-2}):
            told = {"name": row.name, "group": "tuned", "rate": 1.2e-2, "flops": 127.0 if depth == 2 else 100.0, "tokens": tokens}
            found.append(result(row.label, {depth: loss + 0.001 * row.seed}, row.seed, **told))
    source = tmp_path / "cores.jsonl"
    source.write_text("".join(json.dumps(run) + "\n" for run in found))
    monkeypatch.setattr(sys, "argv", ["core_tables", str(source), str(tmp_path)])
    core_tables.PAGE.main("about", "experiments.ouroboros.core_tables")
    text = (tmp_path / "cores.md").read_text()
    assert f"| {six} | {ONCE_EQUAL} | test | 2, 1 | −0.0200 (−0.0200 to −0.0200) |" in text and "| lower |" in text
    assert f"| {six} | {ONCE_LONGER} | test | 2, 1 | +0.0100 (+0.0100 to +0.0100) |" in text and "| higher |" in text
    assert "core of 6, at its depth" in (tmp_path / "cores.svg").read_text()
    assert core_tables.drawings({}) == {}
