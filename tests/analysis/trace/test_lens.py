"""Lenses: the last layer's lens is the model's own answer, and the numbers of a distribution are right."""

import pytest
import torch

from loopwright.analysis.trace.trace import trace
from loopwright.metrics.predictions import prediction_divergence
from tests.analysis.trace.test_maps import IDS, MASK
from tests.cases import gap, noisy


@torch.no_grad()
@pytest.mark.parametrize("name", ["huginn-tiny", "ouro-1.4b-tiny", "retrofit-llama-1b-tiny", "asura-tiny"])
def test_the_coda_lens_is_what_each_depth_answers(name: str):
    model = noisy(name)
    found = trace(model, IDS, 3, attention_mask=MASK, collect=("lens",)).values
    out = model(IDS, attention_mask=MASK, depth=3, output_steps=True)
    last = torch.tensor([8, 5, 8])
    said = [logits[torch.arange(3), last].log_softmax(-1) for logits in out.step_logits]
    for t in range(3):
        assert torch.equal(found["answer_token"][:, t], said[t].argmax(-1))
        assert gap(found["answer_entropy"][:, t], -(said[t].exp() * said[t]).sum(-1)) < 1e-5
        if t:
            assert gap(found["answer_change"][:, t], prediction_divergence(said[t], said[t - 1])) < 1e-5
    assert found["answer_change"][:, 0].isnan().all()


@pytest.mark.parametrize("name", ["huginn-tiny", "ouro-1.4b-tiny", "retrofit-llama-1b-tiny"])
def test_the_lens_of_the_last_layer_is_the_answer(name: str):
    found = trace(noisy(name), IDS, 3, attention_mask=MASK, collect=("lens",)).values
    assert torch.equal(found["lens_token"][:, -1], found["answer_token"][:, -1])
    assert gap(found["lens_entropy"][:, -1], found["answer_entropy"][:, -1]) < 1e-5
