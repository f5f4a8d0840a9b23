"""What is kept of a page: who swings, and how far stages swing over the later half of the steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.inside.orbits import STAGES, main, moved_stages, named, row_of, share, tables

PLACES = {"prelude": 1, "core": 2, "coda": 1, "steps": 4}
# prelude; two layers at four steps, of which the first two count nowhere; coda
VALUES = [0.0, *(9.0, 9.0, 9.0, 9.0), *(1.0, 2.0, 1.5, 2.0), 4.0]


def metrics(orbit: bool = True) -> dict[str, Any]:
    limits: dict[str, Any] = {"labels": ["fixed point", "orbit"], "tokens": [0.75, 0.25], "examples": [1.0, 0.5]}
    if orbit:
        by_place = {name: {"mean": VALUES} for name in STAGES}
        limits["orbit"] = {"example": 1, "token": 2, "layer": 0, "by_place": by_place, "series": [1.0]}
        limits["orbits"] = {"tokens": 3, "median_frequency": 0.5, "largest_amplitude": 0.25}
    spectrum = {"depths": [1, 4, 128], "radius": [0.5, 1.0, 1.5], "frequency": [0.0, 0.5, 0.5], "eigenvalues": []}
    return {"places": PLACES, "examples": 2, "tokens": 12, "limits": limits, "spectrum": spectrum}


def page(folder: Path, **given: Any) -> Path:
    (folder / "metrics").mkdir(parents=True)
    (folder / "metrics/analysis.json").write_text(json.dumps(metrics(**given)))
    return folder


def test_stages_swing_over_the_later_half_alone() -> None:
    moved = moved_stages(PLACES, metrics()["limits"]["orbit"])["colsum"]
    assert moved == {"apart": [0.5, 0.0], "range": 4.0}


def test_a_row_per_page_and_its_line(tmp_path: Path) -> None:
    out = tmp_path / "orbits.jsonl"
    main([str(page(tmp_path / "sandwich-8-injected-2")), str(page(tmp_path / "ouro-8", orbit=False)), "--out", str(out)])
    main([str(page(tmp_path / "more/ouro-8", orbit=False)), "--out", str(out)])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["name"] for row in rows] == ["sandwich-8-injected-2", "ouro-8"] and rows[0] == row_of(tmp_path / rows[0]["name"])
    assert share(rows[0], "colsum") == 0.125 and "orbits" not in rows[1] and "series" not in json.dumps(rows)
    said = tables(rows).splitlines()
    assert said[-2].startswith("| (2, 8⊗4, 2) I | 2 | 50.0 % | 25.0 % | 0.500 | 0.25 | 0.50 / 1.00 / 1.50 | 12.5 % |")
    assert said[-1] == "| (0, 8⊗4, 0), Ouro's norms | 0 | 50.0 % | 25.0 % | – | – | 0.50 / 1.00 / 1.50 | – | – | – |"


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("sandwich-12-injected-2", ("(2, 12⊗4, 2) I", "2")),
        ("bare-4-1", ("(0, 4⊗4, 0)", "1")),
        ("bare-4", ("(0, 4⊗4, 0)", "0")),
        ("huginn-4-injected", ("(2, 4⊗4, 2) I, Huginn's norms", "0")),
        ("huginn-dense-8", ("8 layers, Huginn's norms", "0")),
    ],
)
def test_a_folder_names_model_and_seed(name: str, model: tuple[str, str]) -> None:
    assert named(name) == model
