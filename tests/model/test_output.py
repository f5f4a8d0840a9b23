"""The loss shifts once; the weighted sum is one."""

import torch

from loopwright.model.output import LoopedOutput, shifted_loss, weighted_sum
from tests.cases import gap


def test_loss_by_hand():
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 4, 7), torch.randint(0, 7, (2, 4))
    labels[1, 2] = -100
    terms = [-logits[b, i].log_softmax(-1)[labels[b, i + 1]] for b in range(2) for i in range(3) if labels[b, i + 1] >= 0]
    assert gap(shifted_loss(logits, labels), torch.stack(terms).mean()) < 1e-6


def test_weighted_sum_by_hand():
    torch.manual_seed(0)
    weights, steps = torch.rand(2, 3, 4), [torch.randn(2, 3, 5) for _ in range(4)]
    assert gap(weighted_sum(weights, steps), torch.einsum("bts,btsd->btd", weights, torch.stack(steps, 2))) < 1e-6


def test_output_leaves_out_what_is_none():
    assert list(LoopedOutput(logits=torch.zeros(1)).keys()) == ["logits"]
