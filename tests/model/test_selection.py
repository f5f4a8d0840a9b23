"""Which readings a rule needs, and which logits it takes."""

import pytest
import torch

from loopwright.model.parts.halting import AdaptiveComputation, ExitGate, NoHalting
from loopwright.model.passes import Expected, check_select, pick, readings_of
from loopwright.model.presets import preset

CONFIG = preset("ouro-1.4b-tiny")
NONE, GATE, ACT = NoHalting(CONFIG), ExitGate(CONFIG, threshold=0.6), AdaptiveComputation(CONFIG)


@pytest.mark.parametrize(
    ("select", "halting", "output_steps", "readings"),
    [
        ("last", NONE, False, [3]),
        ("last", GATE, False, [3]),
        ("last", ACT, True, [1, 2, 3]),
        ("hub", GATE, False, [1, 2, 3]),
        ("expected", GATE, False, [1, 2, 3]),
        ("expected", ACT, False, [Expected(3)]),
        ("expected", ACT, True, [1, 2, 3, Expected(3)]),
    ],
)
def test_readings_of_a_rule(select, halting, output_steps, readings):
    assert readings_of(select, halting, 3, output_steps) == readings


def test_what_is_picked():
    logits = [torch.full((1, 2, 4), float(t)) for t in range(3)]
    probabilities = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.4, 0.5]]])
    assert pick(logits, None, "last", NONE, 0) is logits[-1]
    assert torch.allclose(pick(logits, probabilities, "expected", GATE, 0)[0, :, 0], torch.tensor([0.4, 1.4]))
    assert pick(logits, probabilities, "hub", GATE, 0)[0, :, 0].tolist() == [0.0, 2.0]
    kept = [x[:, -1:] for x in logits]
    assert pick(kept, probabilities, "hub", GATE, 1)[0, :, 0].tolist() == [2.0]


def test_a_rule_that_the_model_cannot_follow_is_refused():
    for select, halting, words in (
        ("best", NONE, "allowed: last, hub, expected"),
        ("expected", NONE, "needs learned halting"),
        ("hub", ACT, "halting mixes states"),
    ):
        with pytest.raises(ValueError, match=words):
            check_select(select, halting)
    check_select("hub", GATE)
    check_select("expected", ACT)
