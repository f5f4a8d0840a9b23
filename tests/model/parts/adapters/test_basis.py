"""The basis controller: its equation with whole matrices, a start that trains, and the public start that cannot."""

import pytest
import torch

import loopwright as lw
from loopwright.model.parts.part import StepIndex
from tests.cases import gap, noisy

SPEC = {"kind": "basis-controller", "rank": 3, "alpha": 1.5, "count": 4, "state": 12, "step": 6, "width": 10, "style": 8}
IDS = torch.randint(0, 96, (2, 7), generator=torch.Generator().manual_seed(0))
PRESET = "ouroboros-qwen2.5-3b-tiny"


@torch.no_grad()
def test_it_is_the_product_of_two_mixtures():
    """Token by token, A and B as whole matrices: Σ c_n A_n and Σ c′_n B_n."""
    model = noisy(PRESET, std=0.3, adapters=[SPEC]).double()
    adapter = model.adapters[0]
    e, p = model.embed(IDS)
    for t in (0, 3):
        c = adapter.coefficients(StepIndex(t, t), e, p)
        modulate = adapter.begin(StepIndex(t, t), e, p).modulate
        for i, name in enumerate(adapter.names):
            a = adapter.a[name][0].unflatten(0, (4, 3))
            b = adapter.b[name][0].unflatten(1, (4, 3))
            x = torch.randn(2, 7, a.shape[-1], dtype=torch.float64)
            base = torch.randn(14, b.shape[0], dtype=torch.float64)
            whole_a = torch.einsum("btn,nri->btri", c[:, :, 0, i, 0], a)
            whole_b = torch.einsum("btn,onr->btor", c[:, :, 0, i, 1], b)
            want = base + 0.5 * torch.einsum("btor,btri,bti->bto", whole_b, whole_a, x).flatten(0, 1)
            (found,) = modulate(0, (name,), x, [base.clone()])
            assert gap(found, want) < 1e-12
            assert gap(found, base) > 1e-3


def gradients(model: lw.LoopedForCausalLM) -> dict[str, float]:
    model.zero_grad(set_to_none=True)
    model(IDS, labels=IDS, depth=2).loss.backward()
    return {name: float(p.grad.abs().sum()) for name, p in model.adapters[0].named_parameters()}


def test_it_starts_without_effect_and_trains():
    torch.manual_seed(0)
    model, plain = lw.build(PRESET, adapters=[SPEC]), lw.build(PRESET, adapters=[])
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("adapters.")})
    assert torch.equal(model(IDS).logits, plain(IDS).logits)
    first = gradients(model)
    assert {name for name, size in first.items() if size > 0} == {"heads", "offset"}
    with torch.no_grad():
        for parameter in model.adapters[0].parameters():
            parameter.sub_(parameter.grad)
    assert all(size > 0 for size in gradients(model).values())


def test_the_public_start_has_no_gradient_at_all():
    """Both coefficients zero: each one's gradient is a product with the other, so nothing ever moves."""
    torch.manual_seed(0)
    model = lw.build(PRESET, adapters=[SPEC])
    with torch.no_grad():
        model.adapters[0].offset.zero_()
    assert set(gradients(model).values()) == {0.0}


SOUND = [
    {"pooling": "prefix"},
    *(pytest.param(each, marks=pytest.mark.slow) for each in ({"pooling": "chunk", "chunk": 3}, {"pooling": "token"})),
]


@pytest.mark.slow
@pytest.mark.parametrize("pooling", SOUND)
def test_it_is_sound(pooling):
    model = noisy(PRESET, std=0.3, adapters=[{**SPEC, **pooling}])
    report = lw.check(model)
    assert report.ok, [row for row in report.rows if row.passed is False]


def test_sizes_of_the_public_code():
    """With the public sizes on Llama-3.2-3B shapes; bases are one matrix each, where the public ones are two."""
    with torch.device("meta"):
        model = lw.LoopedForCausalLM(
            lw.LoopedConfig(
                vocab_size=64, hidden_size=3072, intermediate_size=8192, num_attention_heads=24, num_key_value_heads=8,
                max_steps=128, adapters=[{"kind": "basis-controller"}],
            )
        )  # fmt: skip
    sizes = {name: p.numel() for name, p in model.adapters[0].named_parameters() if name[:2] not in ("a.", "b.")}
    assert sizes["state_proj.weight"] == 3072 * 512 and sizes["step_embedding"] == 128 * 256
    assert sizes["style1.weight"] == 768 * 1024 and sizes["style3.weight"] == 1024 * 64
    assert sizes["heads"] == 7 * 2 * 8 * 64 and model.adapters[0].a["q_proj"].shape == (1, 128, 3072)


def test_a_count_below_one_is_refused():
    with pytest.raises(ValueError, match="count is 0; allowed: a whole number from 1"):
        lw.build(PRESET, adapters=[{**SPEC, "count": 0}])
