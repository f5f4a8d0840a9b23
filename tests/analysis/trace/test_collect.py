"""Collectors: where tokens stand, which layer ended farthest, and numbers only where there are any."""

import pytest
import torch

from loopwright.analysis.trace.collect import ResidualStatistics, Sheet, Watcher, token_index
from loopwright.analysis.trace.maps import View
from loopwright.analysis.trace.places import Places
from loopwright.model.forward.span import place_tokens

MASK = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]])


def sheet(steps: int = 2) -> Sheet:
    return Sheet(Places(0, 2, 0, steps), View.of(place_tokens(2, 4, torch.device("cpu"), attention_mask=MASK), None))


def test_tokens_are_counted_among_the_valid_ones():
    assert token_index(sheet().view, [0, -1]).tolist() == [[0, 3], [1, 2]]


def test_what_nobody_put_is_nan():
    made = sheet()
    made.put("x", ("core", 1, 0), torch.tensor([1.0, 2.0]))
    made.put("n", ("core", 0, 1), torch.tensor([1, 2]))
    assert made.values["x"].isnan().tolist() == [[True, True, False, True]] * 2
    assert made.values["n"].tolist() == [[-1, 1, -1, -1], [-1, 2, -1, -1]]


def test_padding_does_not_enter_the_residual_numbers():
    found = []
    for filler in (0.0, 1e6):
        made = sheet()
        x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0)).masked_fill(~MASK.bool()[..., None], filler)
        ResidualStatistics(made).see("residual", x, ("core", 0, 0))
        found.append(made.values)
    assert torch.equal(found[0]["norm"][:, 0], found[1]["norm"][:, 0])
    assert torch.equal(found[0]["largest"][:, 0], found[1]["largest"][:, 0])


def test_rows_at_their_own_steps_are_refused():
    with pytest.raises(ValueError, match="rows at different steps"):
        Watcher([])("state", torch.zeros(1), stack="core", step=torch.tensor([0]), layer=0)
