"""What a controller's diagonals vary with: parts of a variance that are known, and what a blind one says."""

from __future__ import annotations

import pytest
import torch

from experiments.ouroboros.diagonals import Spoken, parted, sizes, spoken
from loopwright.evaluation.text import Passage, Passages
from tests.cases import noisy


def said(steps: float, kinds: float, passages: float, tokens: float = 0.0) -> dict[str, Spoken]:
    """Diagonals [passages, steps, targets, rank] of two kinds with these deviations, each ±, and nothing else."""
    sign = torch.tensor([-1.0, 1.0])
    by_step, by_passage = steps * sign[None, :, None, None], passages * sign[:, None, None, None]
    within = torch.full((2, 2, 3, 4), tokens**2)
    means = {name: (5 + by_step + kinds * way + by_passage).expand(2, 2, 3, 4) for name, way in (("maths", -1.0), ("prose", 1.0))}
    return {name: Spoken(mean, within) for name, mean in means.items()}


def test_the_variance_is_parted_between_steps_kinds_and_passages() -> None:
    found = parted(said(3.0, 2.0, 1.0))
    assert found["shares"] == pytest.approx({"steps": 9 / 14, "kinds": 4 / 14, "passages": 1 / 14})
    assert found["size"] == pytest.approx((25 + 14) ** 0.5) and found["passages_of_a_kind"] == 2
    assert list(found["sizes"]) == ["maths", "prose", "maths less prose"]
    assert torch.equal(torch.tensor(found["sizes"]["maths"]), torch.tensor([0.0, 6.0]).expand(3, 2))
    assert torch.equal(torch.tensor(found["sizes"]["maths less prose"]), torch.full((3, 2), 4.0))
    assert found["shares_by_token"] == pytest.approx({**found["shares"], "tokens": 0.0})
    within = parted(said(3.0, 2.0, 1.0, 4.0))
    assert within["shares"] == found["shares"]
    assert within["shares_by_token"] == pytest.approx({"steps": 9 / 30, "kinds": 4 / 30, "passages": 1 / 30, "tokens": 16 / 30})
    alone = parted(said(0.0, 0.0, 1.0))
    assert alone["shares"] == pytest.approx({"steps": 0.0, "kinds": 0.0, "passages": 1.0})


def test_sizes_are_by_target_and_step() -> None:
    mean = torch.tensor([[[3.0, 3.0], [0.0, 0.0]], [[1.0, 1.0], [4.0, -4.0]]])
    assert sizes({"prose": mean}) == {"prose": [[3.0, 1.0], [0.0, 4.0]]}


def test_a_kind_with_more_passages_does_not_weigh_more() -> None:
    both = said(0.0, 1.0, 0.0)
    longer = Spoken(both["prose"].mean.repeat(3, 1, 1, 1), both["prose"].variance.repeat(3, 1, 1, 1))
    assert parted({**both, "prose": longer})["shares"]["kinds"] == pytest.approx(1.0)


@pytest.mark.parametrize("pooling", ["prefix", "none"])
def test_what_a_controller_says_is_its_mean_and_variance_over_tokens(pooling: str) -> None:
    spec = {"kind": "controller", "rank": 3, "style": 8, "pooling": pooling}
    model = noisy("ouroboros-qwen2.5-3b-tiny", std=0.3, adapters=[spec])
    rows = tuple(Passage(tuple(range(n, 2 * n)), 1, n, n) for n in (5, 9))
    found = spoken(model, Passages("t", 16, rows, 96), depth=3)
    assert found.mean.shape == found.variance.shape == (2, 3, 7, 3)
    alike = torch.allclose(found.mean[0], found.mean[1])
    assert alike == (pooling == "none"), "one that reads nothing says the same of every passage"
    with torch.no_grad():
        e, p = model.embed(torch.tensor([rows[0].ids]))
        first = model.adapters[0].diagonals(model.step_index(0), model.start_state(e, p), p)[0, :, 0]
    assert torch.allclose(found.mean[0, 0], first.mean(0), atol=1e-6), "padding counts for nothing"
    assert torch.allclose(found.variance[0, 0], first.var(0, correction=0), atol=1e-6)
    assert (found.variance.max() < 1e-12) == (pooling == "none"), "one that reads nothing says the same of every token"
