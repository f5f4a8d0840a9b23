"""The training study's page and figures: drawn from results alone, models of one kind side by side, small cores first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.inside.train_plan import CONTROL, Row
from experiments.inside.train_run import BEYOND, RESTS, thinned
from experiments.inside.train_tables import again_part, draw, like_part, more_parts, page, paired_table, read
from tests.analysis.summaries import dense, looped, overflowing
from tests.experiments.results import hard, held_out

pytestmark = pytest.mark.usefixtures("unlaid")
ROOT = Path(__file__).parents[3]


def run(row: Row, near: dict[str, Any]) -> dict[str, Any]:
    depths = [1] if row.label == CONTROL else [1, 4, 32]
    losses = {name: [value] * len(depths) for name, value in (("loss", 2.0), ("loss_low", 1.9), ("loss_high", 2.1))}
    return {
        "name": row.name, "label": row.label, "seed": row.seed, "layers": row.layers, "injected": row.injected,
        "parameters": 10**6, "width": 8, "updates": 2, "tokens": 64, "prompts": 3, "prompt_tokens": 6,
        "held_out": {"depth": depths, **losses},
        "start": near, "near": near, **({} if row.label == CONTROL else {"deep": near}),
    }  # fmt: skip


ROWS = (Row(CONTROL), Row("sandwich", 8), Row("sandwich", 4), Row("sandwich", 4, True), Row("bare", 4))


def runs(tmp_path: Path, near: dict[str, Any], rows: Sequence[Row] = ROWS) -> list[Any]:
    found = [run(row, dense() if row.label == CONTROL else near) for row in rows]
    (tmp_path / "runs.jsonl").write_text("\n".join(map(json.dumps, found)) + "\n")
    return list(read([str(tmp_path / "runs.jsonl")]))


def test_models_of_one_kind_stand_side_by_side_the_smallest_core_first(tmp_path: Path) -> None:
    made = draw(runs(tmp_path, looped()), ["no such model"])
    together = {"colsum-sandwich", "colsum-sandwich-injected", "colsum-bare", "loss-sandwich", "loss-bare"}
    each = {f"stages-{label}" for label in ("sandwich-4", "sandwich-8", "sandwich-4-injected", "bare-4")}
    assert set(made) == together | each
    assert ">control, 12 layers<" in made["loss-bare"]
    svg = made["colsum-sandwich"]
    assert 0 < svg.index(">(2, 4⊗4, 2)<") < svg.index(">(2, 8⊗4, 2)<") and ">dense model<" in svg and "I<" not in svg


@pytest.mark.slow
def test_figures_of_a_model_and_the_page(tmp_path: Path) -> None:
    found = runs(tmp_path, looped())
    made = set(draw(found, ["bare"]))
    assert {"stages-bare-4", "beyond-by-step-bare-4", "beyond-by-layer-bare-4", "rest-bare-4"} <= made
    assert "stages-sandwich-4" in made and "rest-sandwich-4" not in made
    text = page(found)
    assert "(2, 8⊗4, 2)" in text and "## Claims" in text and "## Beyond the trained depth" in text


def test_a_thinned_trace_makes_the_same_page(tmp_path: Path) -> None:
    found = runs(tmp_path, looped())
    for drawn in (True, False):
        thin = [{**each, "deep": thinned(each["deep"], drawn=drawn)} if "deep" in each else each for each in found]
        assert page(thin) == page(found) and len(json.dumps(thin)) < len(json.dumps(found))
    assert not any(name.startswith(("beyond", "rest")) for name in draw(thin))
    by_place = thinned(looped(), drawn=True)["by_place"]
    assert set(by_place) == {*BEYOND, *RESTS} and all("std" in by_place[name] for name in BEYOND)


def test_a_run_that_overflowed_is_told_and_drawn(tmp_path: Path) -> None:
    found = runs(tmp_path, overflowing(), (Row(CONTROL), Row("sandwich", 4)))
    assert draw(found) and "No: by step 12 layers have lost their numbers" in page(found)


def test_runs_stand_in_the_order_of_the_paper_whatever_order_they_ended_in(tmp_path: Path) -> None:
    found = runs(tmp_path, looped())
    labels = [CONTROL, "sandwich-4", "sandwich-8", "sandwich-4-injected", "bare-4"]
    assert [one["label"] for one in found] == labels
    (tmp_path / "other.jsonl").write_text("".join(json.dumps(one) + "\n" for one in reversed(found)))
    assert read([str(tmp_path / "other.jsonl")]) == found
    assert "- sandwich-12: seeds 0, 1, 2" in page(found) and "- bare-4: seeds 1, 2" in page(found)
    alone = page(found[-1:])
    assert "No claim can be held" in alone and "- bare-4: seeds 1, 2" in alone and "- control: seeds 0, 1, 2" in alone


def test_injection_is_held_to_the_same_passages() -> None:
    rows = {Row("sandwich", 4): 0.0, Row("sandwich", 4, True): -0.1, Row("bare", 4, True): 0.0}
    found = [run(row, looped()) | {"held_out": held_out("test", {1: hard(), 4: hard() + above})} for row, above in rows.items()]
    said = paired_table(found)
    assert "| (2, 4⊗4, 2) I | 0 | −0.1000 (−0.1000 to −0.1000) | 100.0 % |" in said and "(0, 4⊗4, 0) I" not in said


def trained(row: Row, *, orbits: float = 0.25, above: float = 0.0) -> dict[str, Any]:
    held = held_out("test", {4: hard() + above, 32: hard() + above})
    deep = {**looped(), "limits": {"tokens": [0.75 - orbits, orbits, 0.25, 0.0]}}
    return run(row, looped()) | {"held_out": held, "losses": [3.0, 2.0 + above], "deep": deep}


@pytest.mark.parametrize(("change", "word"), [({}, "yes"), ({"orbits": 0.5}, "no"), ({"above": 1e-6}, "no")])
def test_two_trainings_of_one_seed_are_told_apart_in_every_digit(change: dict[str, float], word: str) -> None:
    row = Row("sandwich", 4, True, 2)
    said = again_part([trained(row), trained(Row("bare", 4))], [trained(row, **change)]).splitlines()[-1]
    assert said.startswith("| (2, 4⊗4, 2) I | 2 | ") and said.endswith(f"| {word} |") and "| 25 % / 25 % |" in said


def test_models_with_other_norms_have_a_part_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "like.jsonl").write_text(json.dumps(run(Row("huginn", 4, True), looped())) + "\n")
    said = like_part([], read([str(tmp_path / "like.jsonl")]))
    assert said.count("| (2, 4⊗4, 2) I, Huginn's norms | 0 |") == 2
    assert more_parts([], again=None, like=None, pages=None, system=None, first=None) == []


def test_the_page_says_what_the_results_say() -> None:
    kept = ROOT / "experiments/results/inside"
    found = read([str(kept / "training.jsonl")])
    names = {"again": "again", "like": "like", "pages": "orbits", "system": "system", "first": "first-token"}
    more = more_parts(found, **{key: str(kept / f"{name}.jsonl") for key, name in names.items()})
    assert (kept / "training/claims.md").read_text() == page(found, more)
