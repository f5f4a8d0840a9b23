"""The multi-hop study's page: arms, pairs and exits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from experiments.hops.tables import EXACT, PAGE, PAIRS, percent_at
from experiments.tables import named_pairs, points_table
from tests.experiments.hops.made import made

ALL = (*range(1, 17), 24, 32)


def cells(line: str) -> list[str]:
    return line.strip("| ").split(" | ")


def test_a_difference_of_all_seeds_is_decided_and_noise_is_not() -> None:
    looped = [made("1⊗8", seed, exact=dict.fromkeys(ALL, 1.0)) for seed in range(3)]
    near = [made("plain 8", seed, exact=dict.fromkeys(ALL, value)) for seed, value in enumerate((1.0, 0.99, 1.0))]
    far = [made("plain 1", seed, exact=dict.fromkeys(ALL, value)) for seed, value in enumerate((0.4, 0.39, 0.38))]

    def told(*arms: list[dict]) -> list[list[str]]:
        pairs = named_pairs(dict(zip(("1⊗8", "plain 8", "plain 1"), arms, strict=True)), PAIRS)
        return [cells(line) for line in points_table(pairs, EXACT, percent_at).splitlines()[2:]]

    first, second = told(looped, near, far)
    assert (first[-1], second[-1]) == ("undecided", "decided")
    assert second[2:4] == ["60.00 / 61.00 / 62.00", "61.00 (58.52 to 63.48)"]  # ± 4.303 / √3
    assert told(looped[:1], [], far[:1])[0][-1] == "one seed"


def test_a_page_and_its_figures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    runs = [made("1⊗8", exact=dict.fromkeys(ALL, 1.0)), made("plain 8", exact={hops: 1 - 0.5 * (hops > 8) for hops in ALL})]
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    monkeypatch.setattr(sys, "argv", ["tables", str(path), str(tmp_path / "out")])
    PAGE.main("about", "experiments.hops.tables")
    figures = {f"{name}.svg" for name in ("hops", "learning", "depth-1x8", "test-time")}
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"table.md", *figures}
    page = (tmp_path / "out/table.md").read_text()
    assert "- compared/2⊗4/as the recipe: seeds 0, 1, 2" in page
    assert "| plain 8, as the recipe | 0 | 8,000 | 8e+06 | 0.001 | 0.1 | 8 | 75 | 100, 100," in page
