"""The page of stages: what the committed rows say, and nothing of models that were not measured."""

from pathlib import Path

import torch

from experiments.inside.stages.tables import DENSE, WORDS, Rows, alike, page

KEPT = Path(__file__).parents[4] / "experiments/results/inside/stages"


def test_the_page_says_what_the_rows_say() -> None:
    assert (KEPT / "stages.md").read_text() == page(Rows(KEPT / "stages.jsonl"))


def test_curves_are_alike_step_by_step() -> None:
    curve = [0.1, 0.5, 0.2, 0.4, 0.3]
    dense = {"places": {"prelude": 5, "core": 0, "coda": 0, "steps": 1}, "by_place": {"colsum": {"mean": curve}}}
    looped = {"places": {"prelude": 1, "core": 3, "coda": 1, "steps": 2},
              "by_place": {"colsum": {"mean": [*curve[:4], *(0.6 - torch.tensor(curve[1:4])).tolist(), curve[4]]}}}  # fmt: skip
    first, last = alike(looped, dense).split(" / ")
    assert first == "1.00" and last.startswith("−")


def test_what_was_not_measured_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(line for line in (KEPT / "stages.jsonl").read_text().splitlines(True) if f'"{DENSE}/' in line))
    said = page(Rows(path))
    assert [model for model in WORDS if WORDS[model] in said] == [DENSE] and said.count("No row of this table") == 3
