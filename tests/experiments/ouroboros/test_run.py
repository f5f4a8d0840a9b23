"""Each row of the retrofit study is trained with the parts it names, and with no other."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from experiments.ouroboros.plan import GROUPS, Row
from experiments.ouroboros.run import recipe_of, take_textbooks
from loopwright.settings import parse_overrides

TRAINED = [row for group in GROUPS.values() for row in group() if row.objective is not None and row.seed == 0]


@pytest.mark.parametrize("row", TRAINED, ids=lambda row: row.label)
def test_a_row_has_its_own_changes_alone(row: Row) -> None:
    made = recipe_of(row, "base", "corpus", ("updates=7",))
    assert made.model.get("changes", {}) == parse_overrides(row.changes)
    assert made.model["system"] == row.system and made.updates == 7 and made.seed == row.seed
    assert made.data["tokenizer"] == "base" and made.data["files"] == f"corpus/{row.text}-*.jsonl.gz"


def test_the_textbooks_are_those_of_the_mixture(tmp_path: Path) -> None:
    kinds = ["openstax/a", "novels/b", "openstax/c"]
    with gzip.open(tmp_path / "train-00.jsonl.gz", "wt") as out:
        out.writelines(json.dumps({"source": kind, "text": kind[-1]}) + "\n" for kind in kinds)
    take_textbooks(tmp_path, tmp_path / "textbooks-00.jsonl.gz")
    with gzip.open(tmp_path / "textbooks-00.jsonl.gz", "rt") as lines:
        assert [json.loads(line)["text"] for line in lines] == ["a", "c"]
    assert not list(tmp_path.glob("*.part"))


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for group in GROUPS.values() for row in group()]
    assert len(names) == len(set(names))
