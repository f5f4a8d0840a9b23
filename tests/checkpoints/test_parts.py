"""The form of parts that were saved alone: digests of values, records, and what stays with the base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import loopwright as lw
from loopwright.checkpoints.adapters import RECORD, digest, divided, find_references, read_references
from tests.cases import noisy


def test_the_digest_is_of_values_not_of_their_dtype() -> None:
    values = torch.randn(3, 4).bfloat16()
    assert digest(values) == digest(values.float()) != digest(values + 0.1)
    assert digest(values) != digest(values.T.contiguous()) and digest(torch.zeros(2, 6)) != digest(torch.zeros(12))


def test_a_tensor_that_the_base_holds_is_named_by_its_own_name_before_others() -> None:
    base = noisy("relaxed-tiny")
    found = find_references({"core.0.mlp.up_proj.weight": base.core[1].mlp.up_proj.weight, "x": torch.zeros(3)}, base)
    assert found == {"core.0.mlp.up_proj.weight": ("core.1.mlp.up_proj.weight", digest(base.core[1].mlp.up_proj.weight))}
    same = find_references(dict(base.named_parameters()), base)
    assert all(ours == theirs for ours, (theirs, _) in same.items())


def test_a_norm_per_step_is_a_part_and_one_that_ends_every_step_alike_is_not() -> None:
    for name, is_part in (("ouroboros-qwen2.5-3b-tiny", True), ("ouro-1.4b-tiny", False)):
        model = lw.build(name)
        parts, rest = divided(dict(model.named_parameters()), model.config)
        assert any(name.startswith("end_norm.") for name in (parts if is_part else rest))
        assert not set(parts) & set(rest)


@pytest.mark.parametrize("record", [{}, {"format": 1, "base": {}}, {"format": 2, "base": []}, {"format": 2, "base": {"a": "b"}}])
def test_what_is_no_record_is_refused(tmp_path: Path, record: dict[str, object]) -> None:
    (tmp_path / RECORD).write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"adapters.json: not a record of parts"):
        read_references(tmp_path)
