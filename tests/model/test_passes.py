"""A pass shows tensors to its tap, returns what an independent model computes, in order, and says which logits answer."""

import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import loopwright as lw
from loopwright.model.parts.halting import AdaptiveComputation, ExitGate, NoHalting
from loopwright.model.parts.part import StepIndex
from loopwright.model.passes import (
    Expected,
    LoopedOutput,
    Pass,
    Place,
    check_select,
    choosable,
    next_token_loss,
    pick,
    readings_of,
    weighted_sum,
)
from loopwright.model.presets import preset
from loopwright.model.span import place_tokens
from loopwright.model.taps import Recorder
from tests.cases import SOME_TINY_CASES, gap, noisy


def test_see_hands_over_name_and_place():
    calls = []

    def tap(name, value, *, stack, step, layer):
        calls.append((name, stack, step, layer))
        return value + 1

    span = place_tokens(1, 2, torch.device("cpu"))
    value = torch.zeros(1, 2, 3)
    assert torch.equal(Pass(span, None, None, True, tap=tap).see("mlp", value, Place("coda", StepIndex(3, 3), 1)), value + 1)
    assert calls == [("mlp", "coda", 3, 1)]
    assert Pass(span, None, None, True).see("mlp", value, Place("coda", StepIndex(3, 3), 1)) is value


BOTH = {"output_hidden_states": True, "output_attentions": True}


def ids_of(model, rows: int, length: int) -> Tensor:
    return torch.randint(1, model.config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(1))


def padding(rows: int, length: int) -> Tensor:
    """Returns a mask whose first row has three tokens of padding on the left."""
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, :3] = 0
    return mask


def test_loss_by_hand():
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 4, 7), torch.randint(0, 7, (2, 4))
    labels[1, 2] = -100
    terms = [-logits[b, i].log_softmax(-1)[labels[b, i + 1]] for b in range(2) for i in range(3) if labels[b, i + 1] >= 0]
    assert gap(next_token_loss(logits, labels), torch.stack(terms).mean()) < 1e-6


def test_weighted_sum_by_hand():
    torch.manual_seed(0)
    weights, steps = torch.rand(2, 3, 4), [torch.randn(2, 3, 5) for _ in range(4)]
    assert gap(weighted_sum(weights, steps), torch.einsum("bts,btsd->btd", weights, torch.stack(steps, 2))) < 1e-6


def test_output_leaves_out_what_is_none():
    assert list(LoopedOutput(logits=torch.zeros(1)).keys()) == ["logits"]


# hidden states and attention maps


def written_out(model: lw.LoopedForCausalLM, depth: int) -> LlamaForCausalLM:
    """Returns transformers' Llama with one layer for each layer run of a looped model without parts."""
    runs = [*model.prelude, *(block for _ in range(depth) for block in model.core), *model.coda]
    config = model.config
    shared = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    theirs = LlamaConfig(
        **{name: getattr(config, name) for name in shared}, num_hidden_layers=len(runs), rms_norm_eps=config.norm["eps"],
        tie_word_embeddings=False, attn_implementation="eager", rope_parameters=dict(config.rope_parameters),
    )  # fmt: skip
    llama = LlamaForCausalLM(theirs).eval()
    for layer, block in zip(llama.model.layers, runs, strict=True):
        layer.self_attn.load_state_dict(block.self_attn.state_dict())
        layer.mlp.load_state_dict(block.mlp.state_dict())
        layer.input_layernorm.load_state_dict(block.attention_norms.input.state_dict())
        layer.post_attention_layernorm.load_state_dict(block.mlp_norms.input.state_dict())
    llama.model.embed_tokens.load_state_dict(model.embed_tokens.state_dict())
    llama.model.norm.load_state_dict(model.norm.state_dict())
    llama.lm_head.load_state_dict(model.lm_head.state_dict())
    return llama


@pytest.mark.parametrize("layers", [(1, 2, 1), (0, 2, 0), (3, 0, 0)])
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_states_and_maps_are_those_of_the_layers_written_out(layers, padded):
    torch.manual_seed(0)
    stacks = dict(zip(("prelude_layers", "core_layers", "coda_layers"), layers, strict=True))
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    depth = 3 if layers[1] else 1
    config = lw.LoopedConfig(**sizes, **stacks, depth=depth, tie_word_embeddings=False, initializer_range=0.3)
    model = lw.LoopedForCausalLM(config).eval()
    ids = ids_of(model, 2, 7)
    mask = padding(2, 7) if padded else None
    positions = None if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
    theirs = written_out(model, depth)(ids, attention_mask=mask, position_ids=positions, **BOTH)
    ours = model(ids, attention_mask=mask, **BOTH)
    assert len(ours.hidden_states) == len(theirs.hidden_states) == config.num_hidden_layers + 1
    assert len(ours.attentions) == len(theirs.attentions) == config.num_hidden_layers
    real = torch.ones(2, 7, dtype=torch.bool) if mask is None else mask.bool()
    assert gap(ours.logits[real], theirs.logits[real]) < 1e-5
    for a, b in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        assert gap(a[real], b[real]) < 1e-5
    for a, b in zip(ours.attentions, theirs.attentions, strict=True):
        assert gap(a.transpose(1, 2)[real], b.transpose(1, 2)[real]) < 1e-5


@pytest.mark.parametrize("name", SOME_TINY_CASES)
@torch.no_grad()
def test_the_flags_change_nothing_else(name):
    model = noisy(name)
    ids = ids_of(model, 2, 7)
    plain = model(ids, output_steps=True)
    states = model(ids, output_steps=True, output_hidden_states=True)
    assert torch.equal(states.logits, plain.logits) and states.attentions is None
    both = model(ids, **BOTH)
    assert gap(both.logits, plain.logits) < 1e-4
    assert plain.hidden_states is None and plain.attentions is None
    assert len(states.hidden_states) == model.config.num_hidden_layers + 1


@pytest.mark.parametrize("name", SOME_TINY_CASES)
@torch.no_grad()
def test_states_are_what_a_tap_sees_and_what_the_head_reads(name):
    """Bitwise: the embedding, the prelude's and coda's residuals, the state after each step, the features last."""
    model = noisy(name)
    config, tap = model.config, Recorder()
    out = model(ids_of(model, 2, 6), tap=tap, output_steps=True, output_hidden_states=True, logits_to_keep=1)
    first, width = config.prelude_layers, config.core_layers
    assert torch.equal(out.hidden_states[0], tap.seen["embed", "prelude", 0, 0])
    for layer in range(first):
        assert torch.equal(out.hidden_states[1 + layer], tap.seen["residual", "prelude", 0, layer])
    for t in range(config.depth - (config.coda_layers == 0)):  # with no coda, the last state is shown after the final norm
        assert torch.equal(out.hidden_states[first + width * (t + 1)], out.states[t])
        if config.layer_post_norm == "none":
            assert torch.equal(out.hidden_states[first + width * t + 1], tap.seen["residual", "core", t, 0]) or width == 1
    for layer in range(config.coda_layers - 1):
        assert torch.equal(out.hidden_states[first + width * config.depth + 1 + layer], tap.seen["residual", "coda", 0, layer])
    assert gap(model.lm_head(out.hidden_states[-1]), model(ids_of(model, 2, 6)).logits) < 1e-5
    assert gap(out.hidden_states[-1][:, -1:], out.last_hidden_state) < 1e-6


def test_a_norm_after_each_layer_belongs_to_the_layer():
    """What is given for a layer is what the next one takes in."""
    model = noisy("asura-tiny", core_layers=2)
    seen = []
    model.core[1].register_forward_pre_hook(lambda block, args: seen.append(args[0]))
    with torch.no_grad():
        out = model(ids_of(model, 2, 5), output_hidden_states=True)
    for t, x in enumerate(seen):
        assert torch.equal(out.hidden_states[2 * t + 1], x)


@pytest.mark.parametrize("name", SOME_TINY_CASES)
@torch.no_grad()
def test_maps_are_the_softmax_of_tapped_queries_and_keys(name):
    model = noisy(name)
    ids, mask, tap = ids_of(model, 2, 6), padding(2, 6), Recorder(("query", "key"))
    maps = model(ids, attention_mask=mask, tap=tap, **BOTH).attentions
    places = [key[1:] for key in tap.seen if key[0] == "query"]
    assert len(maps) == len(places) == model.config.num_hidden_layers
    seen = torch.ones(6, 6, dtype=torch.bool).tril() & mask[:, None].bool()  # [B, T, N]
    for weights, place in zip(maps, places, strict=True):
        q, k = tap.seen["query", *place].double(), tap.seen["key", *place].double()
        k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
        scores = torch.einsum("bthk,bnhk->bhtn", q, k) / q.shape[-1] ** 0.5
        expected = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
        real = mask.bool()
        assert gap(weights.transpose(1, 2)[real].double(), expected.transpose(1, 2)[real]) < 1e-5
        assert weights.shape == (2, model.config.num_attention_heads, 6, 6)
        assert gap(weights.sum(-1), torch.ones(2, model.config.num_attention_heads, 6)) < 1e-5
        # exactly zero: the future for every query, padding for every real one
        assert not weights.masked_select(torch.ones(6, 6, dtype=torch.bool).triu(1)).any()
        assert not weights.transpose(1, 2)[real].masked_select(~seen[real][:, None]).any()


@pytest.mark.parametrize("name", SOME_TINY_CASES)
@torch.no_grad()
def test_on_a_cache_they_are_the_last_rows_of_the_whole_ones(name):
    model = noisy(name)
    ids, mask = ids_of(model, 2, 8), padding(2, 8)
    whole = model(ids, attention_mask=mask, **BOTH)
    cache = lw.LoopCache(model.config)
    model(ids[:, :4], attention_mask=mask[:, :4], past_key_values=cache)
    for start, stop in ((4, 7), (7, 8)):
        part = model(ids[:, start:stop], past_key_values=cache, **BOTH)
        for a, b in zip(part.hidden_states, whole.hidden_states, strict=True):
            assert gap(a, b[:, start:stop]) < 1e-4
        for a, b in zip(part.attentions, whole.attentions, strict=True):
            assert gap(a, b[:, :, start:stop, :stop]) < 1e-5


@cache
def windowed() -> lw.LoopedForCausalLM:
    return noisy("ouroboros-qwen2.5-3b-tiny", sliding_window=3, depth=2, prelude_layers=0, coda_layers=1)


@settings(max_examples=6)
@given(padding=st.lists(st.integers(0, 5), min_size=1, max_size=3), cuts=st.sets(st.integers(1, 7)))
@torch.no_grad()
def test_any_padding_and_any_cuts_give_the_same_maps(padding, cuts):
    """With a sliding window: zeros where nothing is seen, rows that sum to 1, pieces that are parts of the whole."""
    model = windowed()
    ids, mask = ids_of(model, len(padding), 8), (torch.arange(8) >= torch.tensor(padding)[:, None]).long()
    whole = model(ids, attention_mask=mask, **BOTH)
    query, key = torch.arange(8)[:, None], torch.arange(8)
    seen = ((key <= query) & (key > query - 3) & mask[:, None].bool()) | ((key == query) & ~mask[:, :, None].bool())
    for weights in whole.attentions:
        assert not weights.transpose(0, 1)[:, ~seen].any()
        assert gap(weights.sum(-1), torch.ones(weights.shape[:3])) < 1e-5
    held, ends = lw.LoopCache(model.config), sorted({*cuts, 8})
    for start, stop in zip([0, *ends], ends, strict=False):
        part = model(ids[:, start:stop], attention_mask=mask[:, start:stop], past_key_values=held, **BOTH)
        for a, b in zip(part.attentions, whole.attentions, strict=True):
            assert gap(a, b[:, :, start:stop, :stop]) < 1e-5
        for a, b in zip(part.hidden_states, whole.hidden_states, strict=True):
            real = mask[:, start:stop].bool()
            assert gap(a[real], b[:, start:stop][real]) < 1e-4


@pytest.mark.parametrize("select", ["hub", "expected"])
@torch.no_grad()
def test_the_codas_entries_are_those_of_the_last_reading(select):
    model = noisy("huginn-tiny", halting={"kind": "exit"})
    ids = ids_of(model, 2, 5)
    every, last = model(ids, select=select, **BOTH), model(ids, **BOTH)
    assert len(every.hidden_states) == len(last.hidden_states) and len(every.attentions) == len(last.attentions)
    assert all(torch.equal(a, b) for a, b in zip(every.hidden_states, last.hidden_states, strict=True))


def test_gradients_reach_states_and_maps():
    model = noisy("ouroboros-qwen2.5-3b-tiny")
    out = model(ids_of(model, 2, 5), **BOTH)
    watched = [out.hidden_states[0], out.hidden_states[-1], out.attentions[0], out.attentions[-1]]
    assert all(g is not None and g.abs().sum() > 0 for g in torch.autograd.grad(out.logits[:, -1].sum(), watched))


def test_the_config_decides_what_the_call_leaves_open():
    model = noisy("ouro-1.4b-tiny")
    model.config.output_hidden_states = True
    ids = ids_of(model, 1, 4)
    assert model(ids).hidden_states is not None and model(ids).attentions is None
    assert model(ids, output_hidden_states=False).hidden_states is None
    assert lw.build("ouro-1.4b-tiny")._layer_outputs(None, None) is None


@pytest.mark.parametrize("wrong", [96, -5])
def test_labels_that_are_no_tokens_are_named(wrong):
    logits = torch.randn(1, 3, 96)
    with pytest.raises(ValueError, match=rf"labels: must be token ids from 0 to 95, or -100 .*{wrong}"):
        next_token_loss(logits, torch.tensor([[1, 2, wrong]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_a_token_can_be_chosen_from(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    rows = [[1, 2, 3], [most, -most, 0], [math.nan, 1, 2], [math.inf, 1, 2], [-math.inf, 1, 2], [0, 0, 0], [most, most, most]]
    assert choosable(torch.tensor(rows, dtype=dtype)).tolist() == [True, True, False, False, False, False, False]
    assert choosable(torch.zeros(2, 1, dtype=dtype)).tolist() == [True, True]  # a vocabulary of one


CONFIG = preset("ouro-1.4b-tiny")
NONE, GATE, ACT = NoHalting(CONFIG), ExitGate(CONFIG, threshold=0.6), AdaptiveComputation(CONFIG)


@pytest.mark.parametrize(
    ("select", "halting", "output_steps", "readings"),
    [
        ("last", NONE, False, [3]),
        ("last", GATE, False, [3]),
        ("last", ACT, True, [1, 2, 3]),
        ("hub", GATE, False, [1, 2, 3]),
        ("expected", GATE, False, [1, 2, 3]),
        ("expected", ACT, False, [Expected(3)]),
        ("expected", ACT, True, [1, 2, 3, Expected(3)]),
    ],
)
def test_readings_of_a_rule(select, halting, output_steps, readings):
    assert readings_of(select, halting, 3, output_steps) == readings


def test_what_is_picked():
    logits = [torch.full((1, 2, 4), float(t)) for t in range(3)]
    probabilities = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.4, 0.5]]])
    assert pick(logits, None, "last", NONE, 0) is logits[-1]
    assert torch.allclose(pick(logits, probabilities, "expected", GATE, 0)[0, :, 0], torch.tensor([0.4, 1.4]))
    assert pick(logits, probabilities, "hub", GATE, 0)[0, :, 0].tolist() == [0.0, 2.0]
    kept = [x[:, -1:] for x in logits]
    assert pick(kept, probabilities, "hub", GATE, 1)[0, :, 0].tolist() == [2.0]


def test_a_rule_that_the_model_cannot_follow_is_refused():
    for select, halting, words in (
        ("best", NONE, "allowed: last, hub, expected"),
        ("expected", NONE, "needs learned halting"),
        ("hub", ACT, "halting mixes states"),
    ):
        with pytest.raises(ValueError, match=words):
            check_select(select, halting)
    check_select("hub", GATE)
    check_select("expected", ACT)
