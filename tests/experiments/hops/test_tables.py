"""The multi-hop study's page: arms, pairs, rates and steps, and that the committed page is that of the committed rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from experiments.hops.tables import arm_table, main, page, pair_table, planned, rate_table, step_table
from experiments.pages import results
from tests.experiments.hops.made import made

ROWS = Path(__file__).parents[3] / "experiments/results/hops/runs.jsonl"
ALL = (*range(1, 17), 24, 32)


def cells(line: str) -> list[str]:
    return line.strip("| ").split(" | ")


def test_the_committed_page_is_that_of_the_committed_rows() -> None:
    assert page(results([str(ROWS)], planned())) == ROWS.with_name("table.md").read_text()


def test_an_arm_stands_with_its_seeds() -> None:
    runs = [made("plain 8", seed, exact={hops: 1 - 0.5 * (hops > 8 + seed) for hops in ALL}) for seed in range(2)]
    line = cells(arm_table({"plain 8": runs}).splitlines()[-1])
    assert line[:5] == ["plain 8", "8,000", "8.0 M", "0, 1", "8 / 9"] and line[5] == "75 / 78.12" and line[6] == "50 / 50"


def test_a_difference_of_all_seeds_is_decided_and_noise_is_not() -> None:
    looped = [made("1⊗8", seed, exact=dict.fromkeys(ALL, 1.0)) for seed in range(3)]
    near = [made("plain 8", seed, exact=dict.fromkeys(ALL, value)) for seed, value in enumerate((1.0, 0.99, 1.0))]
    far = [made("plain 1", seed, exact=dict.fromkeys(ALL, value)) for seed, value in enumerate((0.4, 0.39, 0.38))]
    lines = pair_table({"1⊗8": looped, "plain 8": near, "plain 1": far}).splitlines()[2:]
    assert [cells(line)[-1] for line in lines] == ["undecided", "decided"]
    assert cells(lines[1])[1:3] == ["60.00 / 61.00 / 62.00", "61.00 (58.52 to 63.48)"]  # ± 4.303 / √3
    one = pair_table({"1⊗8": looped[:1], "plain 1": far[:1]}).splitlines()[-1]
    assert cells(one)[-1] == "one seed"


def test_the_rate_with_the_least_loss_is_bold() -> None:
    runs = [
        made("plain 2", exact=dict.fromkeys(ALL, 0.5)),
        made("plain 2", exact=dict.fromkeys(ALL, 0.6), group="rates", changes=["optim.lr=0.002"], valid=[[999, 0.05]]),
        made("plain 2", 1, exact=dict.fromkeys(ALL, 0.7), valid=[[999, 0.01]]),
    ]
    lines = [cells(line)[1:3] for line in rate_table(runs).splitlines()[2:]]
    assert lines == [["0.001", "0.10000"], ["**0.002**", "**0.05000**"]]  # of seed 0 alone


def test_steps_are_told_of_looped_runs_alone() -> None:
    found = [made("plain 8", exact=dict.fromkeys(ALL, 1.0)), made("2⊗4", exact=dict.fromkeys(ALL, 1.0) | {16: 0.5})]
    (line,) = step_table(found).splitlines()[2:]
    assert cells(line)[1] == "4" and cells(line)[16] == "–"


def test_a_page_and_its_figures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(made("1⊗8", exact=dict.fromkeys(ALL, 1.0))) + "\n")
    monkeypatch.setattr(sys, "argv", ["tables", str(path), str(tmp_path / "out")])
    main()
    figures = {f"{name}.svg" for name in ("hops", "learning", "depth-1x8", "test-time")}
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"table.md", *figures}
    assert "- compared/2⊗4/as the recipe: seeds 0, 1, 2" in (tmp_path / "out/table.md").read_text()
