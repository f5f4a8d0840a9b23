"""A pass shows tensors to its tap and goes on with what the tap returns."""

import torch

from loopwright.model.parts.part import StepIndex
from loopwright.model.passes import Pass, Place
from loopwright.model.span import place_tokens


def test_see_hands_over_name_and_place():
    calls = []

    def tap(name, value, *, stack, step, layer):
        calls.append((name, stack, step, layer))
        return value + 1

    span = place_tokens(1, 2, torch.device("cpu"))
    value = torch.zeros(1, 2, 3)
    assert torch.equal(Pass(span, None, None, True, tap=tap).see("mlp", value, Place("coda", StepIndex(3, 3), 1)), value + 1)
    assert calls == [("mlp", "coda", 3, 1)]
    assert Pass(span, None, None, True).see("mlp", value, Place("coda", StepIndex(3, 3), 1)) is value
