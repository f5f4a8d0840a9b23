"""The Jacobian penalty against the whole Jacobian, in float64; padding, processes, dropout, precision."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.nn.attention import SDPBackend, sdpa_kernel

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.model.causal_lm import plain_config
from loopwright.training.compile import CompiledStep
from loopwright.training.objectives.jacobian import (
    POOL,
    Directions,
    JacobianPenalty,
    JacobianProbe,
    PenaltySite,
    default_eps,
    norms,
    token_places,
    windows,
)
from loopwright.training.rollout import Plan, rollout
from tests.cases import golden_folders, noisy
from tests.metrics.test_dual import NAMES
from tests.model.test_layers import stars_model

SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 2}


def small_model(**changes) -> lw.LoopedForCausalLM:
    return noisy("stars-addition-tiny", std=0.5, **{**SMALL, "injection": {"kind": "add"}, **changes}).double().train()


def batch_of(count: int = 4, length: int = 5, seed: int = 0, **more) -> Batch:
    ids = torch.randint(0, 15, (count, length), generator=torch.Generator().manual_seed(seed))
    return Batch(ids, ids, **more)


def value_of(model, batch, mode="exact", depth=3, update=0, grad_steps=None, **options) -> torch.Tensor:
    penalty = JacobianPenalty(mode, **options)
    return penalty(model, rollout(model, batch, Plan(depth, grad_steps or depth, update), hook=penalty))


def gradients(model, value) -> torch.Tensor:
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=True)
    return torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(parameters, found, strict=True)])


def off(a, b) -> float:
    return ((a - b).norm() / b.norm()).item()


def jacobians(path, s, step) -> torch.Tensor:
    """Returns the derivative of each row's step at s, whole and with gradients [B, n, n], one backward pass per output."""
    with sdpa_kernel(SDPBackend.MATH):
        y = step(s, path.e, path.last_step, path.p)
        rows = [torch.autograd.grad(x.sum(), s, create_graph=True)[0].flatten(1) for x in y.flatten(1).unbind(1)]
    return torch.stack(rows, dim=1)


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("grad_steps", [1, 3])
def test_fd_and_exact_are_the_product_with_the_whole_jacobian_and_so_are_their_gradients(detach, grad_steps):
    model, batch = small_model(), batch_of()
    penalty = JacobianPenalty("exact")
    path = rollout(model, batch, Plan(3, grad_steps, 7))
    s = path.before.detach().requires_grad_() if detach or grad_steps == 1 else path.before
    v = penalty.probe(s, batch, 7).v.flatten(1)
    true = torch.einsum("bij,bj->bi", jacobians(path, s, model.step), v).square().sum() / len(batch)
    slope = gradients(model, true)
    for mode, close in (("exact", 1e-9), ("fd", 1e-4)):
        found = value_of(model, batch, mode, update=7, share=1.0, detach_state=detach, grad_steps=grad_steps)
        assert found.item() == pytest.approx(true.item(), rel=close)
        assert off(gradients(model, found), slope) < close


def test_the_gradient_is_the_slope_of_the_value():
    """Through the trajectory too: the whole loop is differentiated, against a difference in the parameters."""
    model, batch = small_model(), batch_of()
    slope = gradients(model, value_of(model, batch, "exact"))
    parameters = list(model.parameters())
    way = [torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(1)) for p in parameters]

    def moved(size: float) -> float:
        with torch.no_grad():
            for p, d in zip(parameters, way, strict=True):
                p.add_(d, alpha=size)
            found = value_of(model, batch, "exact").item()
            for p, d in zip(parameters, way, strict=True):
                p.add_(d, alpha=-size)
        return found

    along = (slope * torch.cat([d.flatten() for d in way])).sum().item()
    assert along == pytest.approx((moved(1e-6) - moved(-1e-6)) / 2e-6, rel=1e-6)


def test_the_state_detached_or_not_makes_a_difference():
    model, batch = small_model(), batch_of()
    both = [gradients(model, value_of(model, batch, "exact", detach_state=detach)) for detach in (False, True)]
    assert off(*both) > 0.01


@pytest.mark.long
def test_the_mean_is_the_frobenius_norm_by_product_on_either_side():
    model, batch = small_model(), batch_of(2, length=4)
    path = rollout(model, batch, Plan(3, 1, 0))
    ends = {"exact": path.before, "paper": path.last, "released": path.last}
    for mode, s in ends.items():
        j = jacobians(path, s.detach().requires_grad_(), model.step)
        true = j.square().sum().item() / (len(batch) * j.shape[-1])
        penalty = JacobianPenalty(mode)
        with torch.no_grad():
            draws = torch.stack([penalty(model, replace(path, plan=Plan(3, 1, update))) for update in range(120)])
        assert draws.mean().item() == pytest.approx(true, rel=4 * draws.std().item() / true / 120**0.5)
        assert draws.std().item() / true / 120**0.5 < 0.04  # so that the line above says something


def test_power_steps_reach_the_growth_of_the_map():
    model, batch = small_model(), batch_of(2, length=3)
    path = rollout(model, batch, Plan(3, 1, 0))
    j = jacobians(path, path.last.detach().requires_grad_(), model.step).detach()
    v = JacobianPenalty("paper").probe(path.last, batch, 0).v.flatten(1)
    for _ in range(4):
        jv = torch.einsum("bij,bj->bi", j, v)
        v = jv / jv.norm(dim=1, keepdim=True)
    found = value_of(model, batch, "paper", power_steps=4)
    assert found.item() == pytest.approx(jv.square().sum(1).mean().item(), rel=1e-9)
    assert found.item() != pytest.approx(value_of(model, batch, "paper").item(), rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize("folder", golden_folders("stars-addition"), ids=lambda f: f.parent.parent.name)
@pytest.mark.parametrize("structure", ["sandwich_dual", "pre_norm"])
def test_released_is_the_public_formula_on_the_golden_model(folder, structure):
    """The golden case holds no value of the penalty; so: its weights and inputs, and ‖vᵀJ‖² with the whole Jacobian."""
    config, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    model = stars_model(config, weights, structure, "LayerNorm").double()
    ids = load_file(folder / "golden.safetensors")["input_ids"][:, :8]
    batch = Batch(ids, ids, lengths=torch.tensor([8, 5, 8, 8, 7]))
    path = rollout(model, batch, Plan(4, 4, 3))
    penalty = JacobianPenalty("released")
    v = penalty.probe(path.last, batch, 3, padding=True).v
    v = v / v.norm()  # over the whole tensor, padding too
    s = path.last.detach().requires_grad_()
    j = jacobians(path, s, model.step)
    true = torch.einsum("bi,bij->bj", v.flatten(1), j).square().sum()
    found = penalty(model, path)
    assert found.item() == pytest.approx(true.item(), rel=1e-9)
    assert off(gradients(model, found), gradients(model, true)) < 1e-9


@pytest.mark.parametrize("mode", ["fd", "exact", "paper"])
def test_padding_changes_nothing(mode):
    model, places = small_model(), torch.tensor([4, 9, 12, 0])
    lengths = [5, 3, 4, 2]
    rows = [batch_of(1, n, seed=n, rows=places[i : i + 1]) for i, n in enumerate(lengths)]
    alone = torch.stack([value_of(model, row, mode, share=1.0) for row in rows])
    slope = gradients(model, alone.mean())
    right = torch.stack(
        [torch.nn.functional.pad(row.input_ids[0], (0, 5 - n), value=13) for row, n in zip(rows, lengths, strict=True)]
    )
    left = torch.stack(
        [torch.nn.functional.pad(row.input_ids[0], (5 - n, 0), value=13) for row, n in zip(rows, lengths, strict=True)]
    )
    real = torch.arange(5) < torch.tensor(lengths)[:, None]
    for batch in (
        Batch(right, right, attention_mask=real.long(), rows=places),
        Batch(right, right, lengths=torch.tensor(lengths), rows=places),
        Batch(left, left, attention_mask=real.flip(1).long(), rows=places),
    ):
        whole = value_of(model, batch, mode, share=1.0)
        assert whole.item() == pytest.approx(alone.mean().item(), rel=1e-6)
        assert off(gradients(model, whole), slope) < 1e-5


@settings(max_examples=6)
@given(start=st.integers(0, 5), parts=st.sampled_from([2, 4, 8]), share=st.sampled_from([0.25, 0.2]))
def test_the_number_of_processes_changes_nothing(start, parts, share):
    """Each process takes neighbours, and probes as many of them as there are, which may be none."""
    model = small_model()
    batch = batch_of(8, 3, rows=torch.arange(start, start + 8))
    whole = value_of(model, batch, "fd", share=share)
    shares = torch.arange(8).chunk(parts)
    values = [value_of(model, Batch(batch.input_ids[i], batch.labels[i], rows=batch.rows[i]), "fd", share=share) for i in shares]
    assert torch.stack(values).mean().item() == pytest.approx(whole.item(), rel=1e-9)


def test_rows_and_directions_follow_the_update_and_the_seed():
    model, batch = small_model(), batch_of(8, 3, rows=torch.arange(40, 48))
    first = value_of(model, batch, "fd")
    assert value_of(model, batch, "fd").item() == first.item()
    assert value_of(model, replace(batch, rows=batch.rows + 8), "fd").item() != first.item()  # the next update's places
    assert value_of(model, replace(batch, rows=None), "fd", update=1) != value_of(model, replace(batch, rows=None), "fd")
    assert value_of(model, batch, "fd", seed=1).item() != first.item()
    assert JacobianPenalty().probe(rollout(model, batch, Plan(1, 1)).last, batch, 0).index.tolist() == [0, 4]


def test_a_part_without_probed_rows_adds_nothing():
    model = small_model()
    for mode, share in (("fd", None), ("exact", 0.25)):
        value = value_of(model, batch_of(2, 3, rows=torch.tensor([1, 2])), mode, share=share)
        assert value.item() == 0


@pytest.mark.parametrize("mode", ["fd", "exact"])
@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_last_step_with_a_penalty_leaves_the_state_as_it_is(mode, share, detach, dropout):
    model, batch = small_model(dropout=dropout), batch_of(8, 4)
    penalty = JacobianPenalty(mode, share=share, detach_state=detach)
    with torch.no_grad():
        torch.manual_seed(0)
        plain = rollout(model, batch, Plan(2, 2)).last
        torch.manual_seed(0)
        path = rollout(model, batch, Plan(2, 2), hook=penalty)
    if not dropout or (share == 1 and not detach):  # else the masks fall otherwise
        assert off(path.last, plain) < 1e-12
    assert path.last.shape == plain.shape
    assert path.probe.item() > 0


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_every_preset_has_finite_gradients_in_every_mode(name):
    model = noisy(f"{name}-tiny", std=0.2).train()
    batch = batch_of(4, 6, attention_mask=torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1], [1] * 6, [1] * 6]))
    values = {}
    for mode in ("fd", "exact", "paper", "released"):
        value = value_of(model, batch, mode, depth=2, share=1.0)
        slope = gradients(model, value)
        assert torch.isfinite(slope).all() and slope.norm() > 0
        values[mode] = value.item()
    assert values["fd"] == pytest.approx(values["exact"], rel=0.05)


@pytest.mark.parametrize("rows", [7, 8])
@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("detach", [False, True])
def test_dropout_is_held_between_the_two_ends(rows, share, detach):
    """J v is the derivative of one thinned map: what forward mode gives for the very same masks."""
    model, batch = small_model(dropout=0.3), batch_of(rows, 4)
    path = rollout(model, batch, Plan(2, 2))
    penalty = JacobianPenalty("fd", share=share, detach_state=detach)
    torch.manual_seed(5)
    found = penalty(model, path)
    assert penalty.random
    probe = penalty.probe(path.before, batch, 0)
    # the first of the two calls again: the probed rows, and half of the others with a direction of zeros
    index = torch.arange(rows) if probe.index is None else probe.index
    others = torch.tensor([row for row in range(rows) if detach or row not in index], dtype=torch.long)
    others = others[: (len(others) + 1) // 2]
    v = torch.cat([probe.v, torch.zeros_like(probe.v[:1]).expand(len(others), -1, -1)])
    together = PenaltySite(
        model.step, path.before, path.e, path.last_step, path.p, JacobianProbe(torch.cat([index, others]), v, None)
    )
    torch.manual_seed(5)
    true = penalty.mean(together.product(v)[1], batch)
    assert found.item() == pytest.approx(true.item(), rel=1e-3)
    site = PenaltySite(model.step, path.before, path.e, path.last_step, path.p, probe)
    wrong = penalty.mean(site.in_batch(1e-6)[1], batch)  # other masks on the copies: their difference over ε
    assert wrong.item() > 1e6 * true.item()


@pytest.mark.parametrize("rows", [7, 8])
@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("detach", [False, True])
def test_inside_and_beside_are_the_same_without_dropout(rows, share, detach):
    model, batch = small_model(), batch_of(rows, 4)
    path = rollout(model, batch, Plan(2, 2))
    probe = JacobianPenalty("fd", share=share).probe(path.before, batch, 0)
    site = PenaltySite(model.step, path.before, path.e, path.last_step, path.p, probe, detached=detach)
    for a, b in zip(site.in_batch(1e-6), site.second_pass(1e-6), strict=True):
        assert off(a, b) < 1e-8
    assert off(site.in_batch(1e-6)[0], path.last) < 1e-12


def test_a_fresh_penalty_draws_as_one_that_has_seen_dropout():
    model, batch = small_model(dropout=0.3), batch_of(8, 4)
    used = JacobianPenalty()
    ends = []
    for penalty in (used, used, JacobianPenalty()):
        torch.manual_seed(3)
        path = rollout(model, batch, Plan(2, 2), hook=penalty)
        ends.append((path.probe.item(), torch.rand(1).item()))
    assert len(set(ends)) == 1
    model.eval()
    rollout(model, batch, Plan(2, 2), hook=used)
    assert not used.random


def test_a_state_of_zeros_has_a_derivative():
    model = small_model(state={"kind": "zero"})
    for mode in ("fd", "exact"):
        value = value_of(model, batch_of(), mode, depth=1)
        assert torch.isfinite(gradients(model, value)).all()


@pytest.mark.slow
def test_the_step_of_the_difference_follows_the_precision():
    model = noisy("stars-addition-tiny", hidden_size=128).train()
    batch = batch_of(4, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        path = rollout(model, batch, Plan(3, 3))
        assert default_eps(path.before) == 0.1
        assert JacobianPenalty().self_check(model, path) < 0.05
        assert JacobianPenalty(detach_state=True).self_check(model, path) < 0.05
        assert JacobianPenalty(eps=1e-3).self_check(model, path) > 5
        true, wrong = value_of(model, batch, "exact"), value_of(model, batch, "fd", share=1.0, eps=1e-3)
        assert value_of(model, batch, "fd", share=1.0).item() == pytest.approx(true.item(), rel=0.1)
        assert wrong.item() > 5 * true.item()
    path = rollout(model, batch, Plan(3, 3))
    assert default_eps(path.before) == 3e-3
    assert JacobianPenalty().self_check(model, path) < 0.02
    assert JacobianPenalty("exact").self_check(model, path) == 0


def test_the_self_check_changes_nothing():
    model, batch = small_model(dropout=0.3), batch_of()
    path = rollout(model, batch, Plan(2, 2))
    model.core[0].eval()
    state = torch.get_rng_state()
    assert JacobianPenalty().self_check(model, path) < 1e-4
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training and not model.core[0].training
    assert all(p.grad is None for p in model.parameters())


def test_the_penalty_without_a_ride_is_the_same():
    model, batch = small_model(), batch_of(8, 3)
    for mode in ("fd", "exact"):
        penalty = JacobianPenalty(mode)
        apart = penalty(model, rollout(model, batch, Plan(2, 2)))
        assert apart.item() == pytest.approx(value_of(model, batch, mode, depth=2).item(), rel=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "jvp"}, "unknown mode"),
        ({"power_steps": 2}, "power_steps 2"),
        ({"mode": "paper", "power_steps": 0}, "power_steps 0"),
        ({"share": 0}, "share 0"),
        ({"share": 0.4}, "share 0.4"),
        ({"share": 2}, "share 2"),
        ({"eps": 0}, "eps 0"),
        ({"mode": "exact", "eps": 0.1}, "in mode 'exact'"),
        ({"mode": "released", "detach_state": False}, "detach_state"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        JacobianPenalty(**options)


def test_a_model_without_a_loop_is_refused():
    model = lw.LoopedForCausalLM(plain_config(lw.preset("stars-addition-tiny")))
    with pytest.raises(ValueError, match="no core"):
        JacobianPenalty()(model, rollout(model, batch_of(), Plan(1, 1)))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["stars-addition", "ouro-1.4b"])
def test_on_the_gpu_every_mode_has_gradients_and_nothing_waits(name):
    model = noisy(f"{name}-tiny", std=0.3, dropout=0.1).cuda().train()
    batch = batch_of(8, 6, rows=torch.arange(3, 11)).to("cuda")
    for mode in ("fd", "exact", "paper", "released"):
        penalty = JacobianPenalty(mode)
        for _ in range(2):  # the first time sees the dropout
            path = rollout(model, batch, Plan(2, 2), hook=penalty)
            assert torch.isfinite(gradients(model, penalty(model, path) + path.last.sum())).all()
        torch.cuda.set_sync_debug_mode("error")
        try:
            penalty(model, rollout(model, batch, Plan(2, 2), hook=penalty))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    model.eval()
    with torch.no_grad():
        exact, fd = (value_of(model, batch, mode, share=1.0) for mode in ("exact", "fd"))
    assert fd.item() == pytest.approx(exact.item(), rel=0.02)


@pytest.mark.gpu
def test_on_the_gpu_compiled_steps_serve():
    model = noisy("stars-addition-tiny", std=0.3, dropout=0.1).cuda().train()
    batch = batch_of(8, 6).to("cuda")
    compiled = CompiledStep(model)
    for mode in ("fd", "exact"):
        penalty = JacobianPenalty(mode)
        path = rollout(model, batch, Plan(2, 2), step=compiled, hook=penalty)
        assert torch.isfinite(gradients(model, penalty(model, path) + path.last.sum())).all()
        with torch.no_grad():
            torch.manual_seed(0)
            values = {value_of(model.eval(), batch, mode, share=1.0).item()}
            again = rollout(model, batch, Plan(3, 3), step=compiled, hook=JacobianPenalty(mode, share=1.0))
            model.train()
        assert again.probe.item() == pytest.approx(values.pop(), rel=0.01)


# Directions: a pure function of seed, update, row, token and channel; of norm 1; evenly spread


def drawn(rows, *, seed=0, update=0, length=5, width=16, valid=None, dtype=torch.float64) -> torch.Tensor:
    like = torch.empty(1, length, width, dtype=dtype)
    rows = torch.as_tensor(rows)
    return Directions(seed)(update, rows, token_places(valid, like), like, valid)


def test_norm_one_per_row_over_the_real_tokens():
    valid = torch.tensor([[True] * 5, [False, False, True, True, True]])
    v = drawn([0, 1], valid=valid)
    assert norms(v).flatten().tolist() == pytest.approx([1, 1])
    assert v[1, :2].abs().max() == 0


def test_a_row_has_its_direction_whatever_stands_beside_it():
    v = drawn([3, 8, 1_000_003])
    assert torch.equal(drawn([8]), v[1:2])
    assert torch.equal(drawn([1_000_003, 3]), v[[2, 0]])
    left = drawn([8], length=7, valid=torch.tensor([[False] * 2 + [True] * 5]))
    assert torch.allclose(left[:, 2:], v[1:2], rtol=1e-12)


def test_everything_it_depends_on_changes_it():
    v = drawn([3])
    for other in (drawn([4]), drawn([3], update=1), drawn([3], seed=1), drawn([3], seed=-1)):
        assert (v * other).sum().abs() < 0.6
    assert (v[0, 0] * v[0, 1]).sum().abs() < 0.5 * v[0, 0].norm() * v[0, 1].norm()


def test_directions_are_evenly_spread():
    """The mean of v vᵀ is the unit matrix over n, up to what so many draws leave."""
    v = drawn(torch.arange(6000), length=3, width=8, dtype=torch.float32).flatten(1)
    mean = v.T @ v / len(v) * v.shape[1]
    assert (mean - torch.eye(24)).abs().max() < 5 * 1.5 / len(v) ** 0.5


def test_the_windows_close_to_a_ring():
    w = windows(0, torch.device("cpu"), 16)
    assert w.shape == (POOL, 16)
    assert torch.equal(w[POOL - 1, 1:], w[0, :15])
    assert w[:, 0].std().item() == pytest.approx(0.98, abs=0.02)  # a normal cut at 3


def test_a_probe_picks_and_hides():
    x = torch.arange(12.0).view(3, 2, 2)
    probe = JacobianProbe(torch.tensor([2, 0]), x, torch.tensor([[True, False], [True, True]]))
    assert torch.equal(probe.pick(x), x[[2, 0]])
    assert probe.real(x[:2])[0, 1].tolist() == [0, 0]
    everything = JacobianProbe(None, x, None)
    assert everything.pick(x) is x and everything.real(x) is x


# What rounding does to the penalty's gradient over activations with a kink: why processes differ more with ReLU


WIDER = {"hidden_size": 32, "intermediate_size": 128}


def worst_change(mlp: str, mode: str, **options) -> float:
    """How far the penalty's gradient moves when all parameters are moved by one part in a million, at worst of 20 ways.

    In float64, so that nothing but the penalty itself makes it large; rounding in float32 moves states by about as much.
    """
    model = noisy("stars-addition-tiny", std=0.3, **{**SMALL, **WIDER, "mlp": mlp, "injection": {"kind": "add"}})
    model, batch = model.double(), batch_of(16, 8)
    before, generator = gradients(model, value_of(model, batch, mode, **options)), torch.Generator().manual_seed(1)
    own, worst = [p.detach().clone() for p in model.parameters()], 0.0
    for _ in range(20):
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), own, strict=True):
                parameter.copy_(value * (1 + 1e-6 * torch.randn(value.shape, generator=generator, dtype=value.dtype)))
        worst = max(worst, off(gradients(model, value_of(model, batch, mode, **options)), before))
    return worst


@pytest.mark.slow
def test_over_relu_the_gradient_of_a_difference_jumps_and_by_how_much():
    """A unit whose sign differs between the two ends of the difference weighs 1/ε in the gradient: one that is 0 up to rounding
    is on either side by chance. So processes that round otherwise differ more than with GELU, a larger ε or the exact product."""
    smooth = worst_change("gelu", "fd", share=1.0, eps=3e-3)
    kinked = worst_change("relu", "fd", share=1.0, eps=3e-3)
    assert smooth < 5e-5 and 3 * smooth < kinked < 1e-3
    assert worst_change("relu", "fd", share=1.0, eps=3e-2) < 2 * smooth
    assert worst_change("relu", "exact") < 2 * smooth
