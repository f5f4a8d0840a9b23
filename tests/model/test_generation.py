"""`generate` through the ordinary transformers API, on every preset: cached, sampled, beamed, padded, assisted, chunked."""

from string import ascii_letters, digits

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, pipeline

import loopwright as lw
from loopwright.model import room
from loopwright.model.causal_lm import FIRST_CAPACITY, REPLAYED
from tests.cases import SOME_TINY_CASES, gap, noisy

GREEDY = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


def prompt_of(model, rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(1, model.config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def by_hand(model, ids: torch.Tensor, count: int, depth: int | None = None) -> torch.Tensor:
    for _ in range(count):
        ids = torch.cat([ids, model(ids, depth=depth).logits[:, -1:].argmax(-1)], dim=1)
    return ids


@pytest.mark.parametrize("name", SOME_TINY_CASES)
@torch.no_grad()
def test_greedy_equals_repeated_full_passes(name):
    model = noisy(name)
    ids = prompt_of(model, 2, 5)
    expected = by_hand(model, ids, 8)
    assert torch.equal(model.generate(ids, **GREEDY), expected)
    assert torch.equal(model.generate(ids, use_cache=False, **GREEDY), expected)
    assert torch.equal(model.generate(ids, cache_implementation="static", **GREEDY), expected)
    assert torch.equal(model.generate(ids, prefill_chunk_size=2, **GREEDY), expected)


@pytest.mark.long
@pytest.mark.parametrize("name", SOME_TINY_CASES)
@torch.no_grad()
def test_left_padded_batch_equals_rows_alone(name):
    model = noisy(name)
    short, long = prompt_of(model, 1, 3), prompt_of(model, 1, 7, seed=2)
    batch = torch.cat([torch.cat([torch.zeros(1, 4, dtype=torch.long), short], 1), long])
    mask = torch.ones_like(batch)
    mask[0, :4] = 0
    out = model.generate(batch, attention_mask=mask, **GREEDY)
    assert torch.equal(out[0, 4:], by_hand(model, short, 8)[0])
    assert torch.equal(out[1], by_hand(model, long, 8)[0])
    chunked = model.generate(batch, attention_mask=mask, prefill_chunk_size=3, **GREEDY)
    assert torch.equal(chunked, out)


@pytest.mark.long
@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny", "ouroboros-qwen2.5-3b-tiny"])
@torch.no_grad()
def test_depth_is_an_argument_of_generate(name):
    model = noisy(name)
    ids = prompt_of(model, 1, 5)
    outs = {depth: model.generate(ids, depth=depth, **GREEDY) for depth in (1, 3, 7)}
    for depth, out in outs.items():
        assert torch.equal(out, by_hand(model, ids, 8, depth=depth))
    static = model.generate(ids, depth=7, cache_implementation="static", **GREEDY)
    assert torch.equal(static, outs[7])


@pytest.mark.long
@pytest.mark.parametrize("name", SOME_TINY_CASES)
@torch.no_grad()
def test_assisted_decoding_equals_greedy(name, monkeypatch):
    """A draft model that is often wrong: crops restore keys, values and the controller's running sums."""
    model = noisy(name)
    ids = prompt_of(model, 1, 5)
    expected = by_hand(model, ids, 12)
    cropped = []
    crop = lw.LoopCache.crop
    monkeypatch.setattr(lw.LoopCache, "crop", lambda cache, length: (cropped.append(length), crop(cache, length))[1])
    for draft in (noisy(name, std=2.0), noisy(name, seed=3)):  # one that is sometimes right, one that hardly ever is
        out = model.generate(ids, assistant_model=draft, **{**GREEDY, "max_new_tokens": 12})
        assert torch.equal(out, expected)
    assert any(length < 0 for length in cropped)


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny", "ouroboros-qwen2.5-3b-tiny"])
@torch.no_grad()
def test_beams_equal_uncached_beams(name):
    model = noisy(name)
    ids = prompt_of(model, 2, 5)
    options = {**GREEDY, "num_beams": 3, "num_return_sequences": 2}
    cached = model.generate(ids, **options)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **options))
    assert cached.shape == (4, 13)


@torch.no_grad()
@pytest.mark.slow
def test_sampling_is_reproducible_and_seeded_state_matters():
    model = noisy("huginn-tiny")
    ids = prompt_of(model, 1, 5)
    options = {"max_new_tokens": 12, "do_sample": True, "top_p": 0.9, "temperature": 0.8, "pad_token_id": 0}
    torch.manual_seed(5)
    first = model.generate(ids, **options)
    torch.manual_seed(5)
    assert torch.equal(model.generate(ids, **options), first)
    seeds = [model.generate(ids, state_seed=seed, **{**GREEDY, "max_new_tokens": 16}) for seed in range(6)]
    assert len({tuple(out[0].tolist()) for out in seeds}) > 1
    rows = model.generate(ids.expand(2, -1), state_seed=torch.tensor([4, 5]), **{**GREEDY, "max_new_tokens": 16})
    assert torch.equal(rows[0], seeds[4][0])
    assert torch.equal(rows[1], seeds[5][0])


@torch.no_grad()
def test_a_conversation_goes_on_from_its_cache():
    model = noisy("ouroboros-qwen2.5-3b-tiny")
    ids = prompt_of(model, 1, 5)
    cache = lw.LoopCache(model.config)
    first = model.generate(ids, past_key_values=cache, **GREEDY)
    longer = torch.cat([first, prompt_of(model, 1, 3, seed=8)], dim=1)
    second = model.generate(longer, past_key_values=cache, **GREEDY)
    assert torch.equal(second, by_hand(model, longer, 8))


def test_refusals_of_generate():
    model = lw.build("asura-tiny")
    ids = prompt_of(model, 1, 4)
    with pytest.raises(ValueError, match="beyond max_steps=3"):
        model.generate(ids, depth=9, **GREEDY)
    with pytest.raises(ValueError, match="dense model"):
        model.without_adapters().generate(ids, depth=2, **GREEDY)
    with pytest.raises(ValueError, match="dept"):
        model.generate(ids, dept=2, **GREEDY)


@pytest.mark.long
@torch.no_grad()
def test_a_draft_runs_at_its_own_depth():
    model = noisy("ouro-1.4b-tiny")
    ids = prompt_of(model, 1, 5)
    expected = by_hand(model, ids, 8, depth=6)
    for draft in (noisy("asura-tiny"), model.without_adapters(), noisy("ouro-1.4b-tiny", std=2.0)):
        assert torch.equal(model.generate(ids, depth=6, assistant_model=draft, **GREEDY), expected)


@pytest.mark.long
@pytest.mark.parametrize("name", SOME_TINY_CASES)
@torch.no_grad()
def test_an_early_exit_of_the_assistant_is_a_draft_of_fewer_steps(name, monkeypatch):
    model = noisy(name)
    ids = prompt_of(model, 1, 5)
    depths = []
    run = type(model).unroll
    monkeypatch.setattr(
        type(model), "unroll", lambda self, e, depth, *a, **k: (depths.append(depth), run(self, e, depth, *a, **k))[1]
    )
    for depth in {model.config.depth, min(model.config.max_steps or 6, 6)}:
        expected = model.generate(ids, depth=depth, **GREEDY)
        for steps in {1, depth - 1}:
            depths.clear()
            assert torch.equal(model.generate(ids, depth=depth, assistant_early_exit=steps, **GREEDY), expected)
            assert set(depths) == {steps, depth}
    out = model.generate(ids, assistant_early_exit=1, max_new_tokens=6, do_sample=True, pad_token_id=0)
    assert out.shape == (1, 11)
    assert model.generation_config.assistant_early_exit is None


@pytest.mark.parametrize("steps", [0, 4, 9, True, "2"])
def test_an_early_exit_that_is_none_is_refused(steps):
    model = lw.build("ouro-1.4b-tiny")
    with pytest.raises(
        ValueError, match=r"assistant_early_exit: .*; allowed: from 1 to 3, as drafts take fewer steps than the depth 4"
    ):
        model.generate(prompt_of(model, 1, 4), assistant_early_exit=steps, **GREEDY)
    with pytest.raises(ValueError, match="allowed: none here, as drafts take fewer steps than the depth 1"):
        model.without_adapters().generate(prompt_of(model, 1, 4), assistant_early_exit=1, **GREEDY)


@torch.no_grad()
def test_generation_from_embeddings():
    model = noisy("huginn-tiny")
    ids = prompt_of(model, 2, 5)
    out = model.generate(inputs_embeds=model.get_input_embeddings()(ids), **GREEDY)
    assert torch.equal(out, by_hand(model, ids, 8)[:, 5:])


def test_generate_refuses_what_covers_the_prompt_alone():
    model = noisy("huginn-tiny")
    ids = prompt_of(model, 1, 4)
    with pytest.raises(ValueError, match="initial_state says nothing of tokens that do not exist yet"):
        model.generate(ids, initial_state=torch.zeros(1, 4, 32), **GREEDY)


@pytest.mark.long
@pytest.mark.parametrize("select", ["expected", "hub"])
@torch.no_grad()
def test_select_rules_generate_with_a_coda_as_without_a_cache(select):
    model = noisy("ouro-1.4b-tiny", coda_layers=1, halting={"kind": "exit", "threshold": 0.6}).double()
    for seed in range(4):
        ids = torch.randint(1, 96, (2, 5), generator=torch.Generator().manual_seed(seed))
        given = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "select": select}
        assert torch.equal(model.generate(ids, **given), model.generate(ids, use_cache=False, **given))


@pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True}, {"num_beams": 2, "do_sample": False}])
@torch.no_grad()
def test_logits_that_are_not_finite_are_refused(options):
    model = noisy("huginn-tiny")
    model.core[0].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="logits are not finite after 3 tokens, so no token can be chosen"):
        model.generate(torch.tensor([[2, 3, 4]]), max_new_tokens=3, pad_token_id=0, **options)


@torch.no_grad()
def test_a_depth_whose_cache_does_not_fit_is_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda device: 2**30)
    model = noisy("huginn-tiny")
    ids = torch.tensor([[2, 3, 4]])
    with pytest.raises(ValueError, match=r"cache: 2,\d+,\d+ slots of 1 × 5 tokens take [\d,.]+ GiB, and 1\.0 GiB are free on cpu"):
        model.generate(ids, max_new_tokens=2, depth=10**6, pad_token_id=0)
    cache = lw.LoopCache(model.config)
    model(ids, past_key_values=cache)
    cache.crop(-3)
    with pytest.raises(ValueError, match="are free on cpu"):
        model(ids, depth=10**6, past_key_values=cache)
    assert torch.equal(model(ids, past_key_values=cache).logits, model(ids, use_cache=True).logits)


# the dict outputs

DICT = {"return_dict_in_generate": True, "output_hidden_states": True, "output_attentions": True, "output_logits": True}
DECODINGS = {
    "greedy": {},
    "uncached": {"use_cache": False},
    "static": {"cache_implementation": "static"},
    "sampling": {"do_sample": True},
    "beams": {"num_beams": 2},
    "assisted": {"draft": True},
    "prompt lookup": {"prompt_lookup_num_tokens": 2},
}


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny", "ouroboros-qwen2.5-3b-tiny", "asura-tiny"])
@pytest.mark.parametrize("kind", DECODINGS)
@torch.no_grad()
def test_dict_outputs_hold_states_and_maps_of_each_new_token(name, kind):
    """Each tuple is that of one pass over the sequence so far: its last rows, or all of them for the prompt."""
    model = noisy(name)
    options = dict(DECODINGS[kind])
    if options.pop("draft", False):
        options["assistant_model"] = noisy(name, std=2.0)
    ids = prompt_of(model, 1, 5)
    torch.manual_seed(0)
    out = model.generate(ids, **{**GREEDY, "max_new_tokens": 4, **DICT, **options})
    layers, count = model.config.num_hidden_layers, out.sequences.shape[1] - 5
    assert len(out.hidden_states) == len(out.attentions) >= count
    for states, maps in zip(out.hidden_states, out.attentions, strict=True):
        assert len(states) == layers + 1 and len(maps) == layers
    if kind == "beams":  # a beam may have moved to another row since; the prompt is the same in all
        whole = model(ids, output_hidden_states=True, output_attentions=True)
        assert out.hidden_states[0][0].shape[0] == 2 and out.attentions[1][0].shape[2:] == (1, 6)
        for a, b in zip((*out.hidden_states[0], *out.attentions[0]), (*whole.hidden_states, *whole.attentions), strict=True):
            assert gap(a, b.expand(a.shape)) < 1e-4
        return
    whole = model(out.sequences, output_hidden_states=True, output_attentions=True)
    end = 5
    for states, maps in list(zip(out.hidden_states, out.attentions, strict=True))[:count]:
        new = states[0].shape[1]
        for a, b in zip(states, whole.hidden_states, strict=True):
            assert gap(a, b[:, end - new : end]) < 1e-4
        for a, b in zip(maps, whole.attentions, strict=True):
            assert gap(a, b[:, :, end - new : end, :end]) < 1e-5
        end += 1


@pytest.mark.parametrize(
    ("options", "fixed"), [({}, True), ({"num_beams": 2}, False), ({"cache_implementation": "dynamic"}, False)]
)
def test_which_generations_get_a_fixed_cache(monkeypatch, options: dict, fixed: bool):
    """On a GPU those whose decode steps can be replayed; on a CPU none that did not ask for it. The tokens are the same."""
    model = noisy("ouro-1.4b-tiny")
    ids = torch.randint(1, 96, (2, 5), generator=torch.Generator().manual_seed(0))
    greedy = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True, **options}
    plain = model.generate(ids, **greedy)
    assert not plain.past_key_values.fixed
    monkeypatch.setattr(type(model), "_replays", lambda self, length, mode: length < FIRST_CAPACITY and mode in REPLAYED)
    found = model.generate(ids, **greedy)
    assert found.past_key_values.fixed == fixed
    assert torch.equal(found.sequences, plain.sequences)


def letters() -> PreTrainedTokenizerFast:
    """A tokenizer of a token for each letter and digit."""
    raw = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(ascii_letters + digits)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw)


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"use_cache": False}])
def test_a_stop_string_ends_an_answer(options):
    """As of any model of transformers, from `generate` and from a pipeline."""
    model, tokenizer = noisy("ouro-1.4b-tiny", vocab_size=62), letters()
    ids = tokenizer("bcd", return_tensors="pt").input_ids
    whole = model.generate(ids, **GREEDY, **options)
    text = tokenizer.decode(whole[0])
    stop = text[4:6]
    end = text.index(stop, 3) + 2
    found = model.generate(ids, **GREEDY, **options, stop_strings=[stop], tokenizer=tokenizer)
    assert torch.equal(found, whole[:, :end]) and end < whole.shape[1]
    if not options:
        pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
        # a letter is a token here: some versions of transformers end an answer at each token of a longer `stop_sequence`
        assert pipe("bcd", stop_strings=[stop], tokenizer=tokenizer, **GREEDY)[0]["generated_text"] == text[:end]
        first = text[: text.index(stop[0], 3) + 1]
        assert pipe("bcd", stop_sequence=stop[0], **GREEDY)[0]["generated_text"] == first and len(first) < len(text)
