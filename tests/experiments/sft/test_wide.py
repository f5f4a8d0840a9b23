"""The wide-core retrofit at its own rates: what is run, how exits are read, and what the page tells."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.figures import RESULTS
from experiments.leaving.reading import FIXED, MEANS, SIMPLE
from experiments.ouroboros.rates import GRID, TUNED, best_rates
from experiments.pages import results
from experiments.sft import wide, wide_tables
from experiments.sft.plan import Places, Run
from experiments.sft.wide import ARMS, EQUAL, LONGER, LOOPED, RATES, Row, carry_out, grid, tuned
from experiments.side_by_side import as_line
from tests.experiments.ouroboros.test_rates import tried
from tests.experiments.results import hard, result

PLACES = Places("data", "runs")


def test_every_arm_is_tried_at_four_rates_and_then_has_three_seeds() -> None:
    assert len({row.name for row in grid()}) == 12
    rows = list(tuned({LOOPED: 5e-4, EQUAL: 1e-3}))
    assert len(rows) == 6 and {row.seed for row in rows} == {1, 2, 3} and all(row.group == TUNED for row in rows)
    assert best_rates(tried(LOOPED, dict(zip(RATES, (3.0, 2.0, None, 2.5), strict=True))), RATES) == {LOOPED: 5e-4}


def test_a_row_is_the_arm_of_the_study_at_its_length_and_rate() -> None:
    long, short = (Row(group, LOOPED, 1e-3, 2).recipe(PLACES) for group in (TUNED, GRID))
    assert (long.updates, long.depth["updates"], long.schedule["warmup"]) == (1220, 610, 61)
    assert (short.updates, short.depth, short.schedule) == ((own := Run("heal").recipe(PLACES)).updates, own.depth, own.schedule)
    assert long.optim["lr"] == 1e-3 and long.seed == 2 and long.compile is False
    once = Row(TUNED, EQUAL, 5e-4, 1).recipe(PLACES, ("updates=3",))
    assert once.depth == {"kind": "fixed", "depth": 1} and once.updates == 3


def test_equal_flops_count_the_depths_of_the_longer_run(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def flops(chosen: Any) -> int:
        counted.append(chosen)
        return 500 if chosen.depth["kind"] == "curriculum" else 300

    monkeypatch.setattr("experiments.sft.plan.text_flops", flops)
    assert Row(TUNED, LONGER, 5e-4, 1).recipe(PLACES).updates == round(1220 * 5 / 3)
    assert [chosen.depth.get("updates") for chosen in counted if chosen.depth["kind"] == "curriculum"] == [610]


def test_changes_reach_the_runs_that_they_are_for() -> None:
    changes = ("heal.a=1", "chat.b=2", "looped.c=3", "d=4")
    assert list(Run("heal").asked(changes)) == ["a=1", "c=3", "d=4"] and list(Run("unlooped").asked(changes)) == ["a=1", "d=4"]
    assert list(Run("random").asked(changes)) == ["b=2", "c=3", "d=4"]


def test_a_call_begins_with_the_grid_and_all_rows_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for skipped in ("prepare", "prepare_passages", "open_base"):
        monkeypatch.setattr(wide, skipped, lambda *_: None)
    monkeypatch.setattr("experiments.study.run_all", lambda rows, *_, **__: asked.extend(row.name for row in rows))
    wide.STUDY.main([str(tmp_path / "rows.jsonl"), "--packed", "p", "--data", "d", "--unfinished", "/nowhere/u"])
    assert asked == [row.name for row in grid()], "seeds wait for the rates"
    made = results([str(RESULTS / "sft/wide.jsonl")], ())
    assert {row.name for row in wide_tables.planned(made)} == {run["name"] for run in made}


def rows_of(label: str, above: dict[int, float], *, rule: float = 0.0) -> list[dict[str, Any]]:
    """The grid of an arm and three seeds of it; rules of a looped one lie `rule` nats a token above the fixed depth."""
    arm, found = ARMS[label], tried(label, dict(zip(RATES, (3.0, 2.0, None, 2.5), strict=True)))
    for row in tuned({label: 5e-4}):
        own = {depth: value + 0.001 * row.seed * (arm == "heal") for depth, value in above.items()}
        told = {"name": row.name, "group": TUNED, "rate": row.rate, "tokens": 20_000_000, "flops": 17 * 10**15, "exits": {}}
        made = result(row.label, own, row.seed, **told)
        if arm == "heal":
            targets = made["texts"]["test"]["targets_of"]
            fixed = {FIXED: {"losses": [[x * t for x, t in zip(hard().tolist(), targets, strict=True)] for _ in MEANS]}}
            more = [[x + rule * t for x, t in zip(each, targets, strict=True)] for each in fixed[FIXED]["losses"]]
            other = {each: {"own": [3.5, 4.0], "losses": [[], *more[1:]]} for each in SIMPLE}
            made["exits"] = dict.fromkeys(wide.TEXTS, fixed | other)
        found.append(made)
    return found


def test_the_page_puts_the_loop_beside_the_layers_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows_of(LOOPED, {1: 3.0, 2: 2.0, 4: 0.5, 8: 0.6, 16: 0.7}, rule=0.25)
    found += [*rows_of(EQUAL, {1: 0.56}), *rows_of(LONGER, {1: 0.49})]
    source = tmp_path / "wide.jsonl"
    source.write_text("".join(as_line(run) + "\n" for run in found))
    monkeypatch.setattr(sys, "argv", ["wide_tables", str(source), str(tmp_path)])
    wide_tables.PAGE.main("about", "experiments.sft.wide_tables")
    page = (tmp_path / "wide.md").read_text()
    assert f"| {LOOPED} | {EQUAL} | test | 4, 1 | −0.0580 (−0.0580 to −0.0580) |" in page and "| lower |" in page
    assert f"| {LOOPED} | {LONGER} | test | 4, 1 | +0.0120 (+0.0120 to +0.0120) |" in page and "| higher |" in page
    assert "| entropy | fixed | test | 2 |" not in page, "no limit has this mean"
    assert page.count("| +0.2500 / +0.2500 / +0.2500 | 0 % | higher |") == 2 * len(SIMPLE) * (len(MEANS) - 1)
    assert "| entropy | 3.5 | 4 |" in page and "All rows of the plan were run." in page and "| diverged |" in page
    parts = {heading: page.split(f"## {heading}")[1].split("\n## ")[0] for heading in ("test: easy", "ood: hard")}
    assert all(f"| {LOOPED} | {EQUAL} |" in part and "4, 1 | −0.0580" in part for part in parts.values())
    assert "documents, 13 of them" in page


def test_thirds_are_those_that_layers_run_once_find_easy_and_hard() -> None:
    runs = {EQUAL: [run for run in rows_of(EQUAL, {1: 0.5}) if run["group"] == TUNED]}
    found = wide_tables.thirds(runs, "test")
    assert [len(part) for part in found.values()] == [13, 13, 14] and len(frozenset().union(*found.values())) == 40
    targets = torch.arange(80) % 4 + 1
    weights = targets.view(40, 2).sum(1)
    each = (hard() * targets).view(40, 2).sum(1) / weights
    easy, middle, rest = ([each[document].item() for document in part] for part in found.values())
    assert max(easy) <= min(middle) and max(middle) <= min(rest)
    looped = [run for run in rows_of(LOOPED, {1: 3.0, 2: 2.0, 4: 0.5, 8: 0.6, 16: 0.7}) if run["group"] == TUNED]
    first = wide_tables.by_depth(looped, "test", found["easy"])[0]
    mean = sum(each[document] * weights[document] for document in found["easy"]) / sum(weights[i] for i in found["easy"])
    # depths 3 and 6 come of the exits, where the made rows have nothing above what is hard
    for depth, above in {1: 3.001, 3: 0.0, 4: 0.501, 6: 0.0, 16: 0.701}.items():
        assert first[depth] == pytest.approx(mean.item() + above)


def test_a_run_that_diverged_is_told_in_the_grid_and_fails_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverges(*_: object, **__: object) -> None:
        raise ValueError("update 9: loss nan: not finite 11 times in a row")

    monkeypatch.setattr("experiments.trained.train_once", diverges)
    given: dict[str, Any] = {"data": "data", "runs": "runs", "passages": 1, "choosing": 1, "extra": ()}
    row = json.loads(as_line(carry_out(Row(GRID, LOOPED, 1e-3, 0), **given)))
    assert "not finite" in row["diverged"] and best_rates([row], (1e-3,)) == {LOOPED: 1e-3}
    with pytest.raises(ValueError, match="not finite"):
        carry_out(Row(TUNED, LOOPED, 1e-3, 1), **given)
