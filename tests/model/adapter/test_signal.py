"""Step signals: the sinusoids of the Universal Transformer, learned vectors, and level signals as changed weights."""

import math

import pytest
import torch
from torch import nn

import loopwright as lw
from loopwright.model.adapter.signal import LearnedStep, LevelSignal, SinusoidalStep, sinusoid
from loopwright.model.adapter.target import Site
from loopwright.model.part import StepIndex
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


@torch.no_grad()
def test_learned_step_is_added_before_the_core():
    model = tiny({"kind": "step-embedding"})
    plain = lw.build("relaxed-tiny", max_steps=None, depth=2, adapters=[])
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("adapters")})
    e, p = model.embed(IDS)
    for t in range(3):
        assert gap(model.step(e, e, t, p), plain.step(e + model.adapters[0].table[t], e, t, p)) < 1e-6


def test_learned_step_starts_at_zero():
    part = LearnedStep(Site(lw.LoopedConfig(hidden_size=8, max_steps=3, end_norm="per-step", depth=3)))
    part.start()
    assert part.table.shape == (3, 8) and part.table.abs().max() == 0


@torch.no_grad()
def test_level_signals_are_changed_weights():
    """q, k, v see W + B A; the MLP sees x + B A x, that is (1 + B A) folded into its two input maps."""
    model = tiny({"kind": "level-signal", "rank": 3})
    plain = lw.build("relaxed-tiny", max_steps=None, depth=1, adapters=[])
    state = {k: v for k, v in model.state_dict().items() if not k.startswith("adapters")}
    e, p = model.embed(IDS)
    for t in range(3):
        changed, at = dict(state), StepIndex(t, t)
        for layer in range(2):
            for name in ("q_proj", "k_proj", "v_proj"):
                b, a = model.adapters[0].factors.at(name, layer, at)
                key = f"core.{layer}.self_attn.{name}.weight"
                changed[key] = state[key] + b @ a
            b, a = model.adapters[0].factors.at("mlp", layer, at)
            for name in ("gate_proj", "up_proj"):
                key = f"core.{layer}.mlp.{name}.weight"
                changed[key] = state[key] @ (torch.eye(32) + b @ a)
        plain.load_state_dict(changed)
        assert gap(model.step(e, e, t, p), plain.step(e, e, 0, p)) < 1e-5


def test_level_signal_leaves_the_other_maps_alone():
    config = lw.LoopedConfig(hidden_size=8, max_steps=2, depth=2, end_norm="per-step")
    part = LevelSignal(Site(config), rank=2)
    effects, x = part.begin(StepIndex(0, 0), None, None), torch.randn(1, 2, 8)
    linear = nn.Linear(8, 8)
    assert effects.update(0, "o_proj", x, linear.weight) is None
    assert effects.update(0, "mlp", x, None) is None, "the branch itself gets nothing; its input does"
    assert effects.update(0, "q_proj", x, linear.weight).shape == (1, 2, 8)
