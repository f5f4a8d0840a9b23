"""What exit rules give on held-out text is read for the same documents as any other loss."""

from __future__ import annotations

import pytest
import torch

import loopwright as lw
from experiments.leaving.reading import FIXED, MEANS, MOST, SIMPLE, exits, leaving
from experiments.side_by_side import folded
from loopwright.evaluation.text import HeldOut, Passage, Passages, held_out
from loopwright.model.causal_lm import LoopedForCausalLM


@pytest.fixture
def text() -> Passages:
    draw = torch.Generator().manual_seed(0)
    rows = [Passage(tuple(torch.randint(0, 64, (9 + i % 3,), generator=draw).tolist()), 1, 9, 7 - i // 2) for i in range(8)]
    return Passages("test", 12, tuple(rows), 64)


def test_exits_at_a_mean_depth_are_losses_of_the_same_documents(text: Passages) -> None:
    torch.manual_seed(0)
    model = LoopedForCausalLM(lw.preset("ouro-1.4b-tiny", vocab_size=64)).eval()
    report = held_out(model, text, depths=[*range(1, MOST + 1)])
    run = {"texts": {"test": folded(report)}, "exits": {"test": exits(model, text, batch=3)}}
    fixed = HeldOut.of(leaving(run, FIXED)["texts"]["test"])
    for place, mean in enumerate(MEANS):
        assert fixed.at(mean)[0].tolist() == pytest.approx(HeldOut.of(run["texts"]["test"]).at(mean)[0].tolist(), rel=1e-4)
        assert fixed.loss[place] == pytest.approx(report.loss[mean - 1], rel=1e-4)
    for rule in SIMPLE:
        steps, loss = run["exits"]["test"][rule]["own"]
        assert 1 <= steps <= MOST and 0 < loss < 20
        found = HeldOut.of(leaving(run, rule)["texts"]["test"])
        assert any(each is not None for each in found.loss)
        assert [each is None for each in found.loss] == [not each for each in found.losses]
