"""What controllers share: dropout in training alone, a pooled state that no single large token rules, and the refusals."""

import pytest
import torch

import loopwright as lw
from loopwright.model.parts.part import StepIndex
from tests.cases import gap, noisy

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
