"""Controllers: causal pooling, the same cached as not; what they share; the basis controller against whole matrices."""

import pytest
import torch

import loopwright as lw
from loopwright.model.keys.cache import LoopCache
from loopwright.model.parts.adapters.controllers import POOLINGS
from loopwright.model.parts.part import FIRST, StepIndex
from loopwright.model.passes import Place
from tests.cases import gap, noisy

CAUSAL = ["prefix", "chunk", "token", "none"]


def controller_model(pooling: str):
    spec = {"kind": "controller", "rank": 4, "style": 8, "pooling": pooling, "leak_future": pooling == "sequence"}
    spec |= {"chunk": 4} if pooling == "chunk" else {}
    model = noisy("ouroboros-qwen2.5-3b-tiny", adapters=[spec])
    with torch.no_grad():
        model.adapters[0].heads.mul_(20)  # make the controller matter
    return model


def slow_pool(x: torch.Tensor, documents: list[list[int]], pooling: str) -> torch.Tensor:
    """Returns what each token of one row pools, by definition: x [T, W], documents as lists of token indices."""
    out = torch.zeros_like(x)
    for document in documents:
        for n, i in enumerate(document):
            seen = {"prefix": x[document[: n + 1]].mean(0), "chunk": x[document[: n - n % 4 + 1]].mean(0), "token": x[i]}
            out[i] = seen.get(pooling, 0.0)
    return out


@pytest.mark.parametrize("pooling", CAUSAL)
@torch.no_grad()
def test_pooling_is_its_definition(pooling):
    model = controller_model(pooling)
    ids = torch.randint(0, 96, (2, 11))
    segments = torch.tensor([[0] * 6 + [1] * 5, [0] * 11])
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[1, :2] = 0
    mask[0, 10] = 0
    _, p = model.embed(ids, attention_mask=mask, segment_ids=segments)
    x = torch.randn(2, 11, 8)
    got = POOLINGS[pooling](x, "k", Place("core", FIRST, 0), p, 4)
    documents = [[list(range(6)), list(range(6, 10))], [list(range(2, 11))]]
    for row in range(2):
        expected = slow_pool(x[row], documents[row], pooling)
        real = mask[row].bool()
        assert gap(got[row][real], expected[real]) < 1e-6


@pytest.mark.parametrize("pooling", CAUSAL)
@torch.no_grad()
def test_cached_padded_packed_and_cropped_are_equal(pooling):
    model = controller_model(pooling)
    ids = torch.randint(0, 96, (1, 13))
    full = model(ids).logits
    assert gap(full, model.without_adapters()(ids).logits) > 1e-2
    cache = LoopCache(model.config)
    outs = [model(chunk, past_key_values=cache).logits for chunk in ids.split([5, 1, 1, 3, 3], dim=1)]
    assert gap(torch.cat(outs, 1), full) < 1e-5
    cache.crop(6)
    assert gap(model(ids[:, 6:], past_key_values=cache).logits, full[:, 6:]) < 1e-5
    # left-padded beside a longer row
    longer = torch.randint(0, 96, (1, 16))
    batch = torch.cat([torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1), longer])
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[0, :3] = 0
    assert gap(model(batch, attention_mask=mask).logits[0, 3:], full[0]) < 1e-5
    # two documents in one row, cached in two pieces
    packed, segments = torch.cat([longer, ids], 1), torch.tensor([[0] * 16 + [1] * 13])
    assert gap(model(packed, segment_ids=segments).logits[:, 16:], full) < 1e-5
    cache = LoopCache(model.config)
    model(packed[:, :20], segment_ids=segments[:, :20], past_key_values=cache)
    assert gap(model(packed[:, 20:], segment_ids=segments[:, 20:], past_key_values=cache).logits, full[:, 4:]) < 1e-5


@pytest.mark.parametrize("pooling", CAUSAL)
@torch.no_grad()
def test_future_tokens_change_nothing(pooling):
    model = controller_model(pooling)
    ids = torch.randint(0, 96, (1, 12))
    other = ids.clone()
    other[0, 7:] = (other[0, 7:] + 5) % 96
    assert torch.equal(model(ids).logits[:, :7], model(other).logits[:, :7])


@pytest.mark.parametrize("pooling", CAUSAL)
@torch.no_grad()
def test_only_a_blind_controller_says_the_same_on_every_input(pooling):
    model = controller_model(pooling)
    said = []
    for seed in range(2):
        ids = torch.randint(0, 96, (1, 6), generator=torch.Generator().manual_seed(seed))
        e, p = model.embed(ids)
        said.append(model.adapters[0].diagonals(model.step_index(0), model.start_state(e, p), p))
    assert torch.equal(*said) == (pooling == "none")
    assert gap(said[0], torch.zeros_like(said[0])) > 1e-3


@torch.no_grad()
def test_sequence_pooling_leaks():
    with pytest.warns(UserWarning, match="leaks future"):
        model = controller_model("sequence")
    ids = torch.randint(0, 96, (1, 12))
    other = ids.clone()
    other[0, 7:] = (other[0, 7:] + 5) % 96
    assert gap(model(ids).logits[:, :7], model(other).logits[:, :7]) > 1e-4


SPECS = {
    "controller": {"kind": "controller", "rank": 3, "style": 8},
    "basis-controller": {"kind": "basis-controller", "rank": 3, "alpha": 1.0, "count": 2, "state": 12, "width": 10, "style": 8},
}
IDS = torch.randint(0, 96, (2, 6), generator=torch.Generator().manual_seed(0))


def tiny(kind: str, **options) -> lw.LoopedForCausalLM:
    return noisy("ouroboros-qwen2.5-3b-tiny", std=0.3, adapters=[{**SPECS[kind], **options}])


@torch.no_grad()
@pytest.mark.parametrize("kind", SPECS)
def test_dropout_is_off_in_evaluation_and_seeded_in_training(kind):
    plain, dropping = tiny(kind), tiny(kind, dropout=0.4)
    dropping.load_state_dict(plain.state_dict())
    assert plain.config.draws is False and dropping.config.draws is True
    assert torch.equal(dropping.eval()(IDS).logits, plain.eval()(IDS).logits)
    dropping.train()
    answers = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        answers.append(dropping(IDS).logits)
    assert torch.equal(answers[0], answers[1]) and gap(answers[0], answers[2]) > 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kind", SPECS)
def test_dropout_falls_on_both_layers_of_the_style_net(kind, monkeypatch):
    """After each SiLU of it, and nowhere else: two draws for each step, of the sizes of those layers."""
    model, seen = tiny(kind, dropout=0.4).train(), []
    drop = torch.nn.functional.dropout
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda x, p, t: seen.append((x.shape[-1], p)) or drop(x, p, t))
    model(IDS, depth=1)
    widths = {"controller": [16, 8], "basis-controller": [10, 10]}[kind]
    assert [width for width, p in seen if p == 0.4] == widths


@torch.no_grad()
@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("pooling", ["prefix", "token"])
def test_a_normed_pool_is_not_ruled_by_one_large_token(kind, pooling):
    """Scaling a token's state by a thousand changes nothing under "rms", and a great deal without it."""
    moved = {}
    for norm in ("none", "rms"):
        model = tiny(kind, pool_norm=norm, pooling=pooling)
        adapter = model.adapters[0]
        e, p = model.embed(IDS)
        scale = torch.ones(1, 6, 1)
        scale[:, 0] = 1000.0
        both = [adapter.pooled(adapter.state_proj, StepIndex(0, 0), s, p) for s in (e, e * scale)]
        moved[norm] = gap(*both)
    assert moved["rms"] < 1e-3 and moved["none"] > 1.0


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 1.0}, r"dropout must be >= 0 and < 1 \(got 1.0\)"),
        ({"dropout": -0.1}, r"dropout is -0.1; allowed: from 0"),
        ({"pool_norm": "rsm"}, "pool_norm: unknown 'rsm'; did you mean 'rms'"),
        ({"chunk": 0}, "chunk is 0; allowed: a whole number from 1"),
        ({"chunk": 8}, "chunk 8, and pooling is 'prefix'; allowed: with pooling 'chunk'"),
        ({"pool_norm": "rms", "pooling": "none"}, "pool_norm 'rms', and pooling is 'none'; allowed: with one that reads"),
        ({"chunk": 8, "pooling": "none"}, "chunk 8, and pooling is 'none'; allowed: with pooling 'chunk'"),
        ({"pooling": "sequence"}, "needs leak_future=True"),
        ({"pooling": "prefx"}, "did you mean 'prefix'"),
    ],
)
def test_refusals(kind, options, message):
    with pytest.raises(ValueError, match=f"{kind}.*{message}"):
        tiny(kind, **options)


@pytest.mark.parametrize("kind", SPECS)
def test_a_config_that_spells_the_default_chunk_out_still_loads(kind, tmp_path):
    """Whatever the pooling: files hold what they were given, and the default is what would have been there unsaid."""
    for options in ({"chunk": 64}, {"chunk": 64, "pooling": "token"}, {"chunk": 8, "pooling": "chunk"}):
        model = tiny(kind, **options)
        lw.save(model, tmp_path)
        assert lw.load(tmp_path).config.adapters == model.config.adapters
        assert model.adapters[0].chunk == options["chunk"]


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.slow
def test_a_blind_controller_holds_nothing_that_nothing_reads(kind):
    """So that a count of what it trains is of what can learn."""
    model = tiny(kind, pooling="none")
    report = lw.check(model)
    assert report.ok, [row for row in report.rows if row.passed is False]
    names = {name for name, _ in model.adapters[0].named_parameters()}
    assert "step_embedding" in names and not any(name.startswith("state_proj") for name in names)


SPEC = {"kind": "basis-controller", "rank": 3, "alpha": 1.5, "count": 4, "state": 12, "step": 6, "width": 10, "style": 8}
BASIS_IDS = torch.randint(0, 96, (2, 7), generator=torch.Generator().manual_seed(0))
PRESET = "ouroboros-qwen2.5-3b-tiny"


@torch.no_grad()
def test_it_is_the_product_of_two_mixtures():
    """Token by token, A and B as whole matrices: Σ c_n A_n and Σ c′_n B_n."""
    model = noisy(PRESET, std=0.3, adapters=[SPEC]).double()
    adapter = model.adapters[0]
    e, p = model.embed(BASIS_IDS)
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
    model(BASIS_IDS, labels=BASIS_IDS, depth=2).loss.backward()
    return {name: float(p.grad.abs().sum()) for name, p in model.adapters[0].named_parameters()}


def test_it_starts_without_effect_and_trains():
    torch.manual_seed(0)
    model, plain = lw.build(PRESET, adapters=[SPEC]), lw.build(PRESET, adapters=[])
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("adapters.")})
    assert torch.equal(model(BASIS_IDS).logits, plain(BASIS_IDS).logits)
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
