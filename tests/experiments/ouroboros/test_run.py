"""Each row of the retrofit study is trained with the parts it names, and with no other."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import loopwright as lw
from experiments.ouroboros.plan import GROUPS, Row
from experiments.ouroboros.run import depths_of, recipe_of, take_textbooks
from loopwright.schema import build_kind, parse_overrides
from loopwright.training.depth import RULES
from loopwright.training.run import validation_depths

TRAINED = [row for group in GROUPS.values() for row in group() if row.objective is not None and row.seed == 0]


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.label, marks=[pytest.mark.slow] * (i % 6 > 0)) for i, row in enumerate(TRAINED)]
)
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


@pytest.fixture(scope="module")
def dense() -> lw.LoopedForCausalLM:
    """As many layers as SmolLM2 has, and room for every rank."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 1, "vocab_size": 16}
    parts = {"prelude_layers": 30, "core_layers": 0, "coda_layers": 0, "depth": 1}
    return lw.LoopedForCausalLM(lw.LoopedConfig(**sizes, **parts))


@pytest.mark.filterwarnings("ignore:controller. pooling 'sequence' leaks")
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.label, marks=[pytest.mark.slow] * (i % 6 > 0)) for i, row in enumerate(TRAINED)]
)
def test_a_rows_model_has_the_steps_it_is_trained_and_measured_at(row: Row, dense: lw.LoopedForCausalLM) -> None:
    made = recipe_of(row, "base", "corpus")
    config = lw.retrofit(dense, row.system or "", **parse_overrides(row.changes)).config
    rule = build_kind(made.depth, RULES)
    assert validation_depths(config, rule, made) == [rule.median], "a run that never looks asks for no other depth"
    measured = depths_of(lw.LoopedForCausalLM(config)) or []
    assert measured == ([1] if row.system == "healed" else [1, 2, 4, 8, 16])


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for group in GROUPS.values() for row in group()]
    assert len(names) == len(set(names))
