"""The language model, on every preset: documents, sweeps, selection, taps, dtypes, wrong input."""

import pytest
import torch

import loopwright as lw
from loopwright.model.passes import next_token_loss
from loopwright.model.presets import PRESETS
from loopwright.model.taps import Recorder
from tests.cases import gap, noisy

NAMES = [f"{name}-tiny" for name in PRESETS]


def ids_of(model, rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_packed_documents_equal_each_alone(name):
    model = noisy(name)
    first, second = ids_of(model, 1, 5), ids_of(model, 1, 7, seed=2)
    packed = torch.cat([first, second], dim=1)
    out = model(packed, segment_ids=torch.tensor([[0] * 5 + [1] * 7])).logits
    assert gap(out[:, :5], model(first).logits) < 1e-5
    assert gap(out[:, 5:], model(second).logits) < 1e-5
    assert gap(model(packed).logits[:, 5:], model(second).logits) > 1e-3


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_one_sweep_equals_separate_passes_and_continues(name):
    model = noisy(name)
    ids, depth = ids_of(model, 2, 6), model.config.depth
    out = model(ids, output_steps=True, select="last")
    assert len(out.states) == len(out.step_logits) == depth
    for d in range(1, depth + 1):
        assert gap(out.step_logits[d - 1], model(ids, depth=d, select="last").logits) < 1e-6
    e, p = model.embed(ids)
    for a in range(1, depth):
        *_, s = model.unroll(e, depth - a, p, state=out.states[a - 1], first_step=a)
        assert gap(s, out.states[-1]) < 1e-6
    assert torch.equal(out.logits, out.step_logits[-1])


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_recording_changes_no_bit(name):
    model = noisy(name)
    ids = ids_of(model, 2, 6)
    recorder = Recorder()
    assert torch.equal(model(ids, tap=recorder).logits, model(ids).logits)
    depth, config = model.config.depth, model.config
    layers = config.prelude_layers + config.coda_layers + depth * config.core_layers
    assert sum(key[0] == "residual" for key in recorder.seen) == layers
    states = [recorder.seen["state", "core", t, config.core_layers] for t in range(depth)]
    assert all(torch.equal(a, b) for a, b in zip(states, model(ids, output_steps=True).states, strict=True))


@torch.no_grad()
def test_a_tap_can_edit():
    model = noisy("ouro-1.4b-tiny")
    ids = ids_of(model, 1, 5)

    def drop(name, value, *, stack, step, layer):
        return torch.zeros_like(value) if (name, step, layer) == ("mlp", 1, 0) else value

    class WithoutMLP(torch.nn.Module):
        def forward(self, x, layer, adapt):
            return torch.zeros_like(x)

    edited = model(ids, tap=drop, output_steps=True)
    assert torch.equal(edited.states[0], model(ids, depth=1, output_steps=True).states[0])
    e, p = model.embed(ids)
    s = model.step(e, e, 0, p)
    model.core[0].mlp = WithoutMLP()
    assert torch.equal(model.step(s, e, 1, p), edited.states[1])


@torch.no_grad()
def test_more_depth_than_the_config_says():
    for name in ("ouro-1.4b-tiny", "huginn-tiny", "ouroboros-qwen2.5-3b-tiny"):
        model = noisy(name)
        out = model(ids_of(model, 1, 5), depth=11, output_steps=True)
        assert len(out.states) == 11
        assert gap(out.states[-1], out.states[3]) > 0
    model = lw.build("asura-tiny")
    with pytest.raises(ValueError, match="depth: 4 is beyond max_steps=3"):
        model(ids_of(model, 1, 5), depth=4)


@torch.no_grad()
def test_explicit_state_wins_and_is_checked():
    model = noisy("huginn-tiny")
    ids = ids_of(model, 2, 5)
    state = torch.randn(2, 5, 32)
    assert gap(model(ids, initial_state=state).logits, model(ids).logits) > 1e-3
    assert torch.equal(model(ids, initial_state=state, state_seed=3).logits, model(ids, initial_state=state).logits)
    with pytest.raises(ValueError, match=r"initial_state: shape \(2, 4, 32\); allowed: \(2, 5, 32\)"):
        model(ids, initial_state=state[:, :4])


@torch.no_grad()
def test_row_seeds_are_independent_of_batch_mates():
    model = noisy("huginn-tiny").double()  # how a product of float32 is rounded may depend on the row it stands in
    ids = ids_of(model, 1, 5).expand(3, -1)
    out = model(ids, state_seed=torch.tensor([7, 8, 7])).logits
    assert gap(out[0], out[2]) < 1e-6
    assert gap(out[0], out[1]) > 1e-3
    assert gap(out[1:2], model(ids[:1], state_seed=8).logits) < 1e-6


@torch.no_grad()
def test_selection_of_exit():
    model = noisy("ouro-1.4b-tiny")
    ids = ids_of(model, 2, 6)
    out = model(ids, output_steps=True)
    assert torch.allclose(out.exit_probs.sum(-1), torch.ones(2, 6), atol=1e-6)
    stacked = torch.stack(out.step_logits, -2)
    expected = (out.exit_probs[..., None] * stacked).sum(-2)
    assert gap(model(ids, select="expected").logits, expected) < 1e-6
    assert gap(model(ids, select="expected", logits_to_keep=2).logits, expected[:, -2:]) < 1e-6
    model.halting.threshold = 0.4
    step = model.halting.exit_step(out.exit_probs)
    assert step.unique().numel() > 1
    hub = model(ids, select="hub").logits
    for b in range(2):
        for i in range(6):
            assert torch.equal(hub[b, i], out.step_logits[step[b, i]][b, i])
    act = noisy("universal-tiny", halting={"kind": "act"})
    sweep = act(ids, output_steps=True)
    _, p = act.embed(ids)
    mean = sum(sweep.exit_probs[..., t, None] * s for t, s in enumerate(sweep.states))
    assert gap(act(ids, select="expected").logits, act.read_out(mean, p)) < 1e-6


@torch.no_grad()
def test_loss_shifts_once():
    model = noisy("ouro-1.4b-tiny")
    ids = ids_of(model, 2, 6)
    labels = ids.clone()
    labels[0, 3] = -100
    out = model(ids, labels=labels)
    log_probs = out.logits.log_softmax(-1)
    terms = [-log_probs[b, i, ids[b, i + 1]] for b in range(2) for i in range(5) if labels[b, i + 1] != -100]
    assert gap(out.loss, torch.stack(terms).mean()) < 1e-6
    with pytest.raises(ValueError, match="labels: shape"):
        next_token_loss(out.logits, labels[:, 1:])


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_without_adapters_runs_the_layers_once(name):
    model = noisy(name)
    ids = ids_of(model, 2, 6)
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    values = {name: p.clone() for name, p in model.named_parameters()}
    plain = model.without_adapters()
    assert not plain.config.is_looped
    assert plain.prelude[0] is (model.prelude[0] if len(model.prelude) else model.core[0])
    assert plain(ids).logits.isfinite().all()
    with pytest.raises(ValueError, match="dense model"):
        plain(ids, depth=2)
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == before
    assert all(torch.equal(p, values[name]) for name, p in model.named_parameters())
    assert {p.data_ptr() for p in plain.parameters()} <= {p.data_ptr() for p in model.parameters()}


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_bfloat16_runs_and_stays_near(name):
    model = noisy(name)
    ids = ids_of(model, 2, 6)
    full = model(ids, depth=2).logits
    half = model.to(torch.bfloat16)(ids, depth=2).logits
    assert half.dtype == torch.bfloat16
    assert gap(half.float(), full) < 0.15 * full.abs().max().item() + 0.05


@torch.no_grad()
def test_inputs_embeds_and_tuples():
    model = noisy("huginn-tiny")
    ids = ids_of(model, 2, 5)
    embeds = model.get_input_embeddings()(ids)  # unscaled, as transformers and prompt tuning take it
    assert torch.equal(model(inputs_embeds=embeds).logits, model(ids).logits)
    assert torch.equal(model(ids, return_dict=False)[0], model(ids).logits)
    assert torch.equal(model(ids, logits_to_keep=2).logits, model(ids).logits[:, -2:])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"depth": 0}, "depth: 0; allowed: a whole number of at least 1"),
        ({"depth": 2.5}, "depth: 2.5"),
        ({"depth": True}, "depth: True"),
        ({"select": "best"}, "select: 'best'; allowed: last, hub, expected"),
        ({"inputs_embeds": torch.zeros(1, 3, 32)}, "not both"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, "holds no token"),
        ({"input_ids": None}, "not neither"),
    ],
)
def test_wrong_input_gets_one_line(inputs, words):
    model = lw.build("ouro-1.4b-tiny")
    with pytest.raises(ValueError, match=words) as caught:
        model(**{"input_ids": torch.zeros(1, 3, dtype=torch.long), **inputs})
    assert "\n" not in str(caught.value)


def test_selection_needs_halting():
    ids = torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="needs learned halting"):
        lw.build("huginn-tiny")(ids, select="expected")
    with pytest.raises(ValueError, match="halting mixes states"):
        lw.build("universal-tiny")(ids, select="hub")
    with pytest.raises(ValueError, match="learned positions end at max_position_embeddings=128"):
        lw.build("stars-addition-tiny")(torch.zeros(1, 129, dtype=torch.long))


def test_dropout_only_in_training():
    model = lw.build("stars-addition-tiny", dropout=0.5)
    ids = torch.zeros(1, 6, dtype=torch.long)
    assert torch.equal(model(ids).logits, model(ids).logits)
    model.train()
    torch.manual_seed(0)
    assert gap(model(ids).logits, model(ids).logits) > 1e-4


@torch.no_grad()
def test_a_window_counts_real_tokens():
    """Padding anywhere, cached or not: a row behind pads sees as far back as the row alone."""
    model = noisy("ouro-1.4b-tiny", sliding_window=4)
    row, tail = ids_of(model, 1, 6), ids_of(model, 1, 4, seed=5)
    alone = model(torch.cat([row, tail], 1)).logits
    assert gap(alone, noisy("ouro-1.4b-tiny")(torch.cat([row, tail], 1)).logits) > 1e-3
    padded = torch.cat([row, torch.zeros(1, 3, dtype=torch.long)], 1)
    mask = torch.tensor([[1] * 6 + [0] * 3])
    cache = lw.LoopCache(model.config)
    model(padded, attention_mask=mask, past_key_values=cache)
    assert gap(model(tail, past_key_values=cache).logits, alone[:, 6:]) < 1e-5
    whole = model(torch.cat([padded, tail], 1), attention_mask=torch.cat([mask, torch.ones(1, 4, dtype=torch.long)], 1))
    assert gap(whole.logits[:, 9:], alone[:, 6:]) < 1e-5


@pytest.mark.parametrize("kind", ["exit", "act"])
@torch.no_grad()
def test_exit_probabilities_come_with_every_pass(kind):
    model = noisy("universal-tiny", halting={"kind": kind})
    ids = ids_of(model, 2, 6)
    probs = model(ids).exit_probs
    assert probs.shape == (2, 6, model.config.depth)
    assert gap(probs.sum(-1), torch.ones(2, 6)) < 1e-6
    assert torch.equal(probs, model(ids, output_steps=True).exit_probs)


@torch.no_grad()
def test_learned_positions_count_positions_not_tokens():
    model = noisy("stars-addition-tiny", max_position_embeddings=8)
    first, second = ids_of(model, 1, 6), ids_of(model, 1, 6, seed=2)
    packed = model(torch.cat([first, second], 1), segment_ids=torch.tensor([[0] * 6 + [1] * 6])).logits
    assert gap(packed[:, 6:], model(second).logits) < 1e-5
    with pytest.raises(ValueError, match="position 8; learned positions end at max_position_embeddings=8"):
        model(torch.cat([first, second], 1), segment_ids=torch.tensor([[0] * 9 + [1] * 3]))
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), first], 1)
    assert gap(model(padded, attention_mask=torch.tensor([[0] * 4 + [1] * 6])).logits[:, 4:], model(first).logits) < 1e-5
    with pytest.raises(ValueError, match="position 9; learned positions end at max_position_embeddings=8"):
        model(first[:, :4], position_ids=torch.tensor([[6, 7, 8, 9]]))


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny"])
@torch.no_grad()
def test_given_positions_are_gone_on_from(name):
    model = noisy(name)
    ids = ids_of(model, 2, 8)
    full = model(ids, position_ids=torch.arange(5, 13)[None]).logits
    assert gap(full, model(ids).logits) > (1e-3 if name == "huginn-tiny" else 0)
    cache = lw.LoopCache(model.config)
    model(ids[:, :4], position_ids=torch.arange(5, 9)[None], past_key_values=cache)
    assert gap(model(ids[:, 4:6], past_key_values=cache).logits, full[:, 4:6]) < 1e-5
    cache.crop(-1)
    cache.reorder_cache(torch.tensor([1, 0]))
    assert gap(model(ids[[1, 0], 5:], past_key_values=cache).logits, full[[1, 0], 5:]) < 1e-5


def test_loss_is_as_precise_as_the_model():
    model = noisy("huginn-tiny").double()
    ids = ids_of(model, 1, 5)
    loss = model(ids, labels=ids).loss
    assert loss.dtype == torch.float64
    parameter = model.core[0].self_attn.k_proj.weight
    loss.backward()
    with torch.no_grad():
        parameter[0, 0] += 1e-6
        up = model(ids, labels=ids).loss
        parameter[0, 0] -= 2e-6
        down = model(ids, labels=ids).loss
    assert abs((up - down).item() / 2e-6 - parameter.grad[0, 0].item()) < 1e-6


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"input_ids": torch.zeros(3, dtype=torch.long)}, r"one row per sequence \[B, T\] \(got torch.int64 of shape \(3,\)\)"),
        ({"input_ids": [[1, 2]]}, r"one row per sequence \[B, T\] \(got list\)"),
        ({"input_ids": torch.zeros(1, 3)}, "a tensor of whole numbers"),
        ({"input_ids": torch.tensor([[1, 96]])}, "input_ids: from 1 to 96; allowed: 0 to 95"),
        ({"state_seed": torch.tensor([1, 2, 3])}, "state_seed: .*; allowed: a whole number, or a tensor of one per row"),
        ({"state_seed": [1]}, "state_seed"),
        ({"labels": torch.zeros(2, 3, dtype=torch.long), "logits_to_keep": 1}, "the loss needs the logits of every token"),
    ],
)
def test_wrong_tokens_and_seeds_get_one_line(inputs, words):
    model = lw.build("huginn-tiny")
    with pytest.raises(ValueError, match=words):
        model(**{"input_ids": torch.zeros(2, 3, dtype=torch.long), **inputs})


def test_a_dense_model_takes_no_parts_of_a_step():
    for fields in ({"state": {"kind": "noise"}}, {"injection": {"kind": "concat"}}, {"end_norm": "every"}):
        with pytest.raises(ValueError, match=r"a model without a core \(core_layers 0\) has no steps"):
            lw.LoopedConfig(prelude_layers=2, core_layers=0, **fields)


def test_flags_are_true_or_false():
    with pytest.raises(ValueError, match="mlp_bias is 'no'; allowed: true, false"):
        lw.LoopedConfig(mlp_bias="no")
