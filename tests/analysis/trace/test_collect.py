"""Collectors: where tokens stand, which layer ended farthest, and numbers only where there are any."""

import pytest
import torch

import loopwright as lw
from loopwright.analysis.trace.collect import ResidualStatistics, Sheet, View, Watcher, token_index
from loopwright.analysis.trace.places import Places
from loopwright.model.span import place_tokens
from loopwright.model.taps import Recorder
from tests.cases import noisy

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


def test_the_gate_and_the_diagonals_are_means_over_real_tokens():
    model = noisy("ouroboros-qwen2.5-3b-tiny", std=0.3)
    ids, mask = torch.randint(0, 96, (2, 7), generator=torch.Generator().manual_seed(1)), torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    seen = Recorder(("gate", "diagonal"))
    found = lw.trace(model, ids, 3, attention_mask=mask)
    with torch.no_grad():
        model.eval()(ids, depth=3, attention_mask=mask, tap=seen)
    for t in range(3):
        gate, diagonal = seen.seen["gate", "core", t, 1], seen.seen["diagonal", "core", t, 0]
        for row, count in ((0, 7), (1, 5)):
            assert found.values["state_gate"][row, t].item() == pytest.approx(gate[row, :count].mean().item(), rel=1e-5)
            size = diagonal[row, :count].square().mean((-1, -2)).sqrt().mean()
            assert found.core("diagonal")[row, t, 0].item() == pytest.approx(size.item(), rel=1e-5)
    assert not {"state_gate", "diagonal"} & set(lw.trace(noisy("huginn-tiny"), ids, 2).values)


def test_gate_and_diagonals_are_captured():
    model, ids = noisy("ouroboros-qwen2.5-3b-tiny", std=0.3), torch.arange(6)[None]
    captured = lw.trace(model, ids, 2, capture={"gate": [-1], "diagonal": [0, -1]}).captured
    assert captured["gate"].shape == (1, 2, 1, 32) and captured["diagonal"].shape[2:] == (2, 7, 4)
