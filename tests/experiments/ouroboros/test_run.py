"""Each row of the retrofit study is trained with the parts it names, and with no other."""

from __future__ import annotations

import pytest

from experiments.ouroboros.plan import GROUPS, Row
from experiments.ouroboros.run import recipe_of
from loopwright.settings import parse_overrides

TRAINED = [row for group in GROUPS.values() for row in group() if row.objective is not None and row.seed == 0]


@pytest.mark.parametrize("row", TRAINED, ids=lambda row: row.label)
def test_a_row_has_its_own_changes_alone(row: Row) -> None:
    made = recipe_of(row, "base", "corpus", ("updates=7",))
    assert made.model.get("changes", {}) == parse_overrides(row.changes)
    assert made.model["system"] == row.system and made.updates == 7 and made.seed == row.seed
    assert made.data["tokenizer"] == "base"


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for group in GROUPS.values() for row in group()]
    assert len(names) == len(set(names))
