"""Adapters with a table per step: low-rank, HiRA and ABBA against dense matrices, and signals that are added to the state."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file

import loopwright as lw
from loopwright.model.parts.adapters.effects import Site
from loopwright.model.parts.adapters.tables import SinusoidalStep, hadamard_product, sinusoid
from loopwright.model.parts.part import StepIndex
from tests.cases import gap, golden_folders, noisy

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KINDS = {
    "low-rank": {"kind": "low-rank", "rank": 3, "alpha": 6.0},
    "hira": {"kind": "hira", "rank": 3, "alpha": 6.0},
    "abba": {"kind": "abba", "rank1": 2, "rank2": 3, "gamma": 0.7},
}


@pytest.mark.parametrize("folder", golden_folders("abba"), ids=lambda f: f.parent.parent.name)
def test_golden_abba(folder):
    golden, case = load_file(folder / "golden.safetensors"), json.loads((folder / "case.json").read_text())
    for row in case["cases"]:
        g = {k.removeprefix(row["prefix"]): v for k, v in golden.items() if k.startswith(row["prefix"])}
        factors = [g[n] for n in ("B1", "A1", "B2", "A2")]
        for dtype, bound in ((torch.float32, 2e-6), (torch.float64, 1e-7)):
            wide = [f.to(dtype) for f in factors]
            got = hadamard_product(g["x"].to(dtype), *wide, gamma=g["gamma"].item())
            scale = g["delta_W_x"].abs().max().item()
            assert gap(got, g["delta_W_x"].to(dtype)) <= bound * scale
        matrix = hadamard_product(torch.eye(row["in_features"]), *factors, gamma=g["gamma"].item()).T
        assert gap(matrix, g["delta_W"]) <= 2e-6 * g["delta_W"].abs().max().item()


def test_abba_never_forms_the_matrix():
    out, inner, rank = 4096, 4096, 2
    factors = [torch.randn(out, rank), torch.randn(rank, inner), torch.randn(out, rank), torch.randn(rank, inner)]
    with torch.profiler.profile(profile_memory=True) as profile:
        hadamard_product(torch.randn(1, 1, inner), *factors, gamma=1.0)
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert largest < out * inner  # bytes: a quarter of the full matrix, and far above what the factors need


def dense_update(adapter, kind: str, name: str, layer: int, row: int, weight: torch.Tensor | float = 1.0) -> torch.Tensor:
    at = StepIndex(row, row)
    if kind == "abba":
        (b1, a1), (b2, a2) = adapter.first.at(name, layer, at), adapter.second.at(name, layer, at)
        return 0.7 * (b1 @ a1) * (b2 @ a2)
    b, a = adapter.factors.at(name, layer, at)
    return 2.0 * (b @ a) * (weight if kind == "hira" else 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_adapter_equals_changed_weights(kind):
    """At each step the adapted model is the plain one with W + ΔW_t written into its weights."""
    adapted = noisy("relaxed-tiny", core_layers=2, max_steps=3, depth=1, adapters=[KINDS[kind]])
    state = {k: v for k, v in adapted.state_dict().items() if not k.startswith("adapters")}
    plain = lw.build("relaxed-tiny", core_layers=2, max_steps=None, depth=1, adapters=[])
    ids = torch.randint(0, 96, (2, 7))
    e, p = adapted.embed(ids)
    for t in range(3):
        plain.load_state_dict(state)
        for layer, block in enumerate(plain.core):
            for name in LINEARS:
                linear = block.get_submodule(("self_attn." if name[0] in "qkvo" else "mlp.") + name)
                linear.weight.data += dense_update(adapted.adapters[0], kind, name, layer, t, linear.weight.data)
        assert gap(adapted.step(e, e, t, p), plain.step(e, e, t, p)) < 2e-5


@pytest.mark.parametrize("kind", ["low-rank", "abba"])
def test_branch_targets_run_beside_the_branch(kind):
    """With targets "branches" the update acts on the branch's normed input and joins the branch's output (ASURA's figure)."""
    model = noisy("relaxed-tiny", core_layers=1, adapters=[{**KINDS[kind], "targets": "branches"}])
    block, adapter = model.core[0], model.adapters[0]
    e, p = model.embed(torch.randint(0, 96, (2, 6)))
    update = {n: dense_update(adapter, kind, n, 0, 1) for n in ("attention", "mlp")}
    from loopwright.model.passes import Place

    a = block.attention_norms.input(e)
    x = e + block.self_attn(a, p, Place("core", StepIndex(1, 1), 0), None) + a @ update["attention"].T
    a = block.mlp_norms.input(x)
    expected = x + block.mlp(a, 0, None) + a @ update["mlp"].T
    assert gap(model.step(e, e, 1, p), expected) < 1e-5


def test_bad_targets_and_ranks_are_refused():
    with pytest.raises(ValueError, match="'attention'"):
        lw.build("relaxed-tiny", adapters=[{"kind": "diagonal", "targets": "branches"}])
    with pytest.raises(ValueError, match="'mlp'"):
        lw.build("relaxed-tiny", adapters=[{"kind": "hira", "targets": "branches"}])
    with pytest.raises(ValueError, match="did you mean 'q_proj'"):
        lw.build("relaxed-tiny", adapters=[{"kind": "low-rank", "targets": ["q_prj"]}])
    with pytest.raises(ValueError, match="rank is 0"):
        lw.build("relaxed-tiny", adapters=[{"kind": "low-rank", "rank": 0}])


def test_per_step_tables_refuse_more_depth():
    model = lw.build("relaxed-tiny")
    with pytest.raises(ValueError, match=r"depth: 3 is beyond max_steps=2; adapters \(low-rank\)"):
        model(torch.zeros(1, 3, dtype=torch.long), depth=3)


@torch.no_grad()
def test_a_bias_per_step_shifts_the_map():
    """The shift of a step and layer, and of it alone."""
    model = noisy(
        "relaxed-tiny", depth=2, max_steps=3, adapters=[{"kind": "low-rank", "rank": 2, "targets": ["v_proj"], "bias": True}]
    )
    update = model.adapters[0].begin(StepIndex(2, 2), torch.zeros(1), None).update
    x = torch.zeros(2, 3, model.config.hidden_size)
    table = model.adapters[0].biases["v_proj"]
    for layer in range(model.config.core_layers):
        assert torch.equal(update(layer, "v_proj", x, None), table[2, layer].expand(2, 3, -1))
    assert update(0, "q_proj", x, None) is None


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
