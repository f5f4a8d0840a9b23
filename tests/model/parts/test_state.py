"""States: the four starts, and noise that depends on (seed, position, channel) alone and is truncated normal."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.state import STATES, NoiseState, hashed_normal
from loopwright.schema import build_kind
from tests.cases import gap, noisy

CONFIG = LoopedConfig(hidden_size=8)
SPECS = {"input": {}, "zero": {}, "learned": {"std": 0.5}, "noise": {"std": 0.2, "scale": 3.0, "seed": 7}}
SEEDS = st.integers(-(2**63), 2**64 - 1)


def made(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    part = build_kind({"kind": kind, **SPECS[kind]}, STATES, CONFIG)
    part.start()
    return part


def test_every_kind_has_its_case():
    assert set(SPECS) == set(STATES)


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_dtype_and_value(kind, dtype):
    part, e = made(kind).to(dtype), torch.randn(3, 5, 8).to(dtype).requires_grad_()
    s = part(e, torch.arange(5)[None], None)
    assert s.shape == e.shape and s.dtype == dtype
    if kind == "input":
        assert s is e
    elif kind == "zero":
        assert torch.equal(s, torch.zeros_like(e))
    elif kind == "learned":
        assert torch.equal(s, part.vector.expand(3, 5, 8))
        s.float().square().sum().backward()
        assert part.vector.grad.isfinite().all() and part.vector.grad.abs().sum() > 0
    else:
        assert torch.equal(s[0], s[2])
        assert gap(s[0].float(), 0.6 * hashed_normal(7, torch.arange(5)[None], 8)[0]) < (1e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("kind", STATES)
def test_config_round_trip(kind):
    config = LoopedConfig(state={"kind": kind, **SPECS[kind]})
    assert LoopedConfig(**config.to_dict()).state == {"kind": kind, **SPECS[kind]}


@torch.no_grad()
@pytest.mark.parametrize("kind", STATES)
def test_an_explicit_initial_state_always_wins(kind):
    model = noisy("huginn-tiny", state={"kind": kind, **SPECS[kind]})
    ids, start = torch.tensor([[5, 6, 7]]), torch.randn(1, 3, 32)
    e, p = model.embed(ids)
    *_, s = model.unroll(e, 2, p, state=start)
    assert torch.equal(model(ids, depth=2, initial_state=start).logits, model.read_out(s, p))
    own = model.start_state(e, p)
    assert torch.equal(model(ids, depth=2).logits, model(ids, depth=2, initial_state=own).logits)
    assert gap(model(ids, depth=2).logits, model(ids, depth=2, initial_state=start).logits) > 1e-4
    with pytest.raises(ValueError, match=r"initial_state: shape \(1, 2, 32\); allowed: \(1, 3, 32\), one vector per new token"):
        model(ids, depth=2, initial_state=start[:, :2])


def test_default_std_is_huginns():
    assert NoiseState(LoopedConfig(hidden_size=5280, num_attention_heads=55)).std == math.sqrt(2 / (5 * 5280))
    assert LoopedForCausalLM(LoopedConfig(state={"kind": "learned", "std": 0.0})).state.vector.abs().max() == 0


@settings(max_examples=60)
@given(SEEDS, st.lists(st.integers(0, 2**20), min_size=1, max_size=6), st.integers(1, 12), st.randoms())
def test_noise_is_a_pure_function_of_seed_and_position(seed, positions, width, random):
    """The same value whatever the slice, the order, the batch, and whether the seed is shared or one per row."""
    whole = hashed_normal(seed, torch.tensor([positions]), width)
    assert whole.shape == (1, len(positions), width)
    order = list(range(len(positions)))
    random.shuffle(order)
    shuffled = hashed_normal(seed, torch.tensor([[positions[i] for i in order]]), width)
    assert torch.equal(shuffled, whole[:, order])
    for i, position in enumerate(positions):
        assert torch.equal(hashed_normal(seed, torch.tensor([[position]]), width)[0, 0], whole[0, i])
    signed = (seed + 2**63) % 2**64 - 2**63
    rows = hashed_normal(torch.tensor([3, signed, 4]), torch.tensor([positions]), width)
    assert torch.equal(rows[1:2], whole)
    batch = hashed_normal(seed, torch.tensor([positions, [p + 1 for p in positions]]), width)
    assert torch.equal(batch[:1], whole)


@settings(max_examples=25)
@given(SEEDS)
def test_noise_has_the_moments_of_a_truncated_normal(seed):
    x = hashed_normal(seed, torch.arange(64)[None], 256).double()
    n = x.numel()
    variance = 1 - 2 * 3 * math.exp(-4.5) / math.sqrt(2 * math.pi) / math.erf(3 / math.sqrt(2))  # 0.9733
    assert x.abs().max() <= 3
    assert abs(x.mean().item()) < 5 * math.sqrt(variance / n)
    assert abs(x.var().item() - variance) < 5 * variance * math.sqrt(2 / n)


def test_noise_follows_the_truncated_normal():
    """Kolmogorov–Smirnov distance at half a million values, below the 0.1 % critical value 1.95/√n."""
    x = np.sort(hashed_normal(11, torch.arange(512)[None], 1024).flatten().double().numpy())
    edge = math.erf(3 / math.sqrt(2))
    theory = (torch.erf(torch.from_numpy(x) / math.sqrt(2)).numpy() / edge + 1) / 2
    n = len(x)
    distance = max(np.abs(theory - np.arange(n) / n).max(), np.abs(theory - np.arange(1, n + 1) / n).max())
    assert distance < 1.95 / math.sqrt(n)


@pytest.mark.parametrize("axis", ["channel", "position", "seed"])
def test_noise_is_uncorrelated_along_every_axis(axis):
    n = 4096
    if axis == "channel":
        x = hashed_normal(5, torch.arange(n)[None], 24)[0].T
    elif axis == "position":
        x = hashed_normal(5, torch.arange(24)[None], n)[0]
    else:
        x = hashed_normal(torch.arange(24), torch.zeros(1, 1, dtype=torch.long), n)[:, 0]
    correlation = torch.corrcoef(x.double()) - torch.eye(24, dtype=torch.float64)
    assert correlation.abs().max() < 5 / math.sqrt(n)


def test_no_two_nearby_keys_share_noise():
    """Seeds and positions up to 200 each, and the seeds next to the ends of the range: all different."""
    x = hashed_normal(torch.arange(200), torch.arange(200)[None], 4).flatten(0, 1)
    assert len(torch.unique(x, dim=0)) == 200 * 200
    ends = [hashed_normal(seed, torch.arange(3)[None], 4) for seed in (0, -1, 1, 2**63 - 1, -(2**63), 2**32)]
    assert len({tuple(e.flatten().tolist()) for e in ends}) == len(ends)


def test_position_is_not_the_seed():
    """A sum of the two would make seed 1 at position 0 equal seed 0 at position 1."""
    assert gap(hashed_normal(1, torch.tensor([[0]]), 8), hashed_normal(0, torch.tensor([[1]]), 8)) > 0.1


@torch.no_grad()
def test_a_pass_may_bring_its_own_seed():
    model, ids = noisy("huginn-tiny"), torch.tensor([[5, 6, 7], [8, 9, 10]])
    default, other = model(ids).logits, model(ids, state_seed=3).logits
    assert torch.equal(default, model(ids, state_seed=model.config.state.get("seed", 0)).logits)
    assert gap(default, other) > 1e-4
    rows = model(ids, state_seed=torch.tensor([0, 3])).logits
    assert gap(rows[0], default[0]) < 1e-6 and gap(rows[1], other[1]) < 1e-6
