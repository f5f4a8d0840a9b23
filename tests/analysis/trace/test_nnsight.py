"""nnsight reads and edits one (step, layer) of a looped model as it stands = our tap.

Needs nnsight: `pip install nnsight`, then `pytest -m ecosystem`.
"""

from __future__ import annotations

import pytest
import torch

from loopwright.analysis.trace.edit import at, zero
from loopwright.model.taps import Recorder
from tests.cases import gap, noisy

pytestmark = pytest.mark.ecosystem


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny", "asura-tiny", "ouroboros-qwen2.5-3b-tiny"])
def test_a_step_of_a_layer_is_read_and_edited(name):
    nnsight = pytest.importorskip("nnsight")
    model, ids, seen = noisy(name), torch.randint(0, 90, (1, 6)), Recorder()
    plain = model(ids, depth=3, use_cache=False, tap=seen).logits
    traced = nnsight.NNsight(model)
    with traced.trace(ids, depth=3) as tracer:
        first = traced.core[0].output.save()
        with tracer.iter[2]:
            third = traced.core[0].output.save()
        logits = traced.output.logits.save()
    assert torch.equal(first, seen.seen["residual", "core", 0, 0])
    assert torch.equal(third, seen.seen["residual", "core", 2, 0])
    assert gap(logits, plain) < 1e-6
    with traced.trace(ids, depth=3) as tracer:
        with tracer.iter[1]:
            traced.core[0].output[:] = 0
        edited = traced.output.logits.save()
    expected = model(ids, depth=3, use_cache=False, tap=zero("residual", at(stack="core", step=1, layer=0))).logits
    assert gap(edited, expected) < 1e-6 and gap(edited, plain) > 1e-3
