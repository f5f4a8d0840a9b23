"""The differences between starts and their intervals: what they are of drawn rows, and how often they hold the truth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from experiments import noise_start as study
from experiments.noise_start import carry_out, from_starts, means_of, rows, spread, table, verdict
from loopwright.data.build import build_data
from tests.cases import noisy


def row_of(sums: Tensor, counts: Tensor, **more: Any) -> dict[str, Any]:
    means, covariance = means_of(sums, counts)
    return {"by_seed": dict(zip("0123", means, strict=True)), "covariance": covariance, **more}


def drawn(apart: Tensor, size: int, draws: torch.Generator) -> dict[str, Any]:
    """Losses of rows that are hard or easy for all starts alike, and a little for each; `apart` are the starts' own means."""
    counts = torch.randint(3, 5, (size,), generator=draws)
    shared = torch.rand(size, generator=draws, dtype=torch.float64).pow(4)
    each = 0.05 * torch.rand(4, size, generator=draws, dtype=torch.float64)
    return row_of((apart[:, None] * (shared + each)) * counts, counts)


def test_a_mean_and_its_error_are_those_of_drawn_rows() -> None:
    draws = torch.Generator().manual_seed(0)
    found = [drawn(torch.ones(4), 400, draws) for _ in range(600)]
    means = torch.tensor([list(row["by_seed"].values()) for row in found])
    told = torch.tensor([row["covariance"] for row in found]).mean(0)
    assert torch.allclose(torch.cov(means.T), told, rtol=0.15)
    counts = torch.tensor([1, 3])
    assert means_of(torch.tensor([[1.0, 2.0]] * 4), counts)[0] == pytest.approx([0.75] * 4)


@pytest.mark.parametrize(("apart", "said"), [(1.0, "alike"), (1.05, "apart")])
def test_a_verdict_is_wrong_in_few_draws(apart: float, said: str) -> None:
    draws, shares = torch.Generator().manual_seed(1), torch.tensor([1.0, 1.0, 1.0, apart])
    found = [drawn(shares, 2000, draws) for _ in range(200)]
    assert sum(verdict(row) == said for row in found) >= 198
    if apart > 1:
        inside = [abs(spread(row)[0] - (apart - 1)) <= spread(row)[1] for row in found]
        assert sum(inside) >= 190
    few = [verdict(drawn(shares, 8, draws)) for _ in range(20)]
    assert few.count("open") > 10


def test_starts_are_those_of_the_seeds() -> None:
    model, source = (
        noisy("huginn-tiny", std=0.3),
        build_data({**study.TRAINING["data"], "train": 8, "valid": 2, "test": 5}).tests["test"],
    )
    batch = source.batch(range(5))
    means, covariance = from_starts(model, source)
    for seed in range(4):
        with torch.no_grad():
            logits = model(batch.input_ids, depth=4, state_seed=seed).logits
        wanted = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten())
        assert means[seed] == pytest.approx(float(wanted), rel=1e-5)
    assert len(set(means)) == 4 and len(covariance) == 4


@pytest.mark.long
def test_rows_are_made_and_shown() -> None:
    assert [row.name for row in rows()][:2] == ["anew/1000/(0, 2⊗4, 0)/0", "anew/1000/(0, 2⊗4, 0)/1"]
    assert len({row.name for frozen in (True, False) for row in rows(frozen=frozen)}) == 30
    small = ("updates=2", "batch=4", "data.train=16", "data.valid=4", "data.test=6")
    made = [carry_out(next(rows(frozen=frozen)), extra=small) for frozen in (False, True)]
    lines = table(made).splitlines()
    assert len(lines) == 6 and "2 updates, one start:" in lines[-1] and "drawn anew" in lines[2]
