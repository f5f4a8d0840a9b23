"""Step signals: the sinusoids of the Universal Transformer, learned vectors, and level signals as changed weights."""

import math

import pytest
import torch

import loopwright as lw
from loopwright.model.parts.adapters.effects import Site
from loopwright.model.parts.adapters.tables import SinusoidalStep, sinusoid
from loopwright.model.parts.part import StepIndex
from tests.cases import gap, noisy

IDS = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])


def tiny(spec: dict, **changes: object) -> lw.LoopedForCausalLM:
    return noisy("relaxed-tiny", max_steps=3 if spec["kind"] != "sinusoidal" else None, depth=2, adapters=[spec], **changes)


@pytest.mark.parametrize("width", [2, 7, 16])
def test_sinusoid_is_its_formula(width):
    got, half = sinusoid(torch.tensor([0, 3, 250]), width), width // 2
    assert got.shape == (3, width)
    for row, place in enumerate((0, 3, 250)):
        for i in range(half):
            angle = place / 10_000 ** (i / max(half - 1, 1))
            assert abs(got[row, i].item() - math.sin(angle)) < 1e-4
            assert abs(got[row, half + i].item() - math.cos(angle)) < 1e-4
    assert (got[:, 2 * half :] == 0).all()


@torch.no_grad()
@pytest.mark.parametrize("position", [True, False])
def test_sinusoidal_signal_is_the_step_plus_the_position(position):
    model = tiny({"kind": "sinusoidal", "position": position})
    e, p = model.embed(IDS)
    signal = model.adapters[0].begin(StepIndex(1, 1), e, p).signal
    expected = sinusoid(torch.tensor(2), 32).expand(4, 32)
    if position:
        expected = expected + sinusoid(torch.arange(4), 32)
    assert gap(signal.expand(1, 4, 32)[0], expected) < 1e-6
    earlier = tiny({"kind": "sinusoidal", "position": position, "first": 0}).adapters[0]
    assert torch.equal(earlier.begin(StepIndex(2, 2), e, p).signal, signal)
    rows = model.adapters[0].begin(StepIndex(torch.tensor([0, 5]), torch.tensor([0, 5])), e, p).signal
    for row, t in enumerate((0, 5)):
        alone = model.adapters[0].begin(StepIndex(t, t), e, p).signal.expand(1, 4, 32)
        assert torch.equal(rows.expand(2, 4, 32)[row], alone[0])


@torch.no_grad()
def test_sinusoidal_position_is_the_tokens_own():
    """A left-padded row must get the signals of the row alone, so positions and not columns count."""
    model = tiny({"kind": "sinusoidal"})
    ids, mask = torch.tensor([[0, 0, 5, 9]]), torch.tensor([[0, 0, 1, 1]])
    assert gap(model(ids, attention_mask=mask).logits[:, 2:], model(torch.tensor([[5, 9]])).logits) < 1e-5


def test_sinusoidal_has_no_parameters_and_the_dtype_of_the_state():
    part = SinusoidalStep(Site(lw.LoopedConfig(hidden_size=8)))
    assert not list(part.parameters())
    model = tiny({"kind": "sinusoidal"}).to(torch.bfloat16)
    e, p = model.embed(IDS)
    assert model.adapters[0].begin(StepIndex(0, 0), e, p).signal.dtype == torch.bfloat16
