"""LoopCache: slots by (step, layer), policies, growth, crop, reorder, rows admitted and freed."""

import re
import warnings

import pytest
import torch

import loopwright as lw
from loopwright.model.keys.cache import LoopCache
from loopwright.model.parts.part import FIRST, StepIndex
from loopwright.model.passes import Expected, Place
from tests.cases import gap, noisy

PRESETS = ["ouro-1.4b-tiny", "huginn-tiny", "asura-tiny", "ouroboros-qwen2.5-3b-tiny"]


def ids_of(model, rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", PRESETS)
@torch.no_grad()
def test_crop_then_go_on_equals_never_having_been_there(name):
    model = noisy(name)
    ids, wrong = ids_of(model, 2, 12), ids_of(model, 2, 4, seed=9)
    cache = LoopCache(model.config)
    model(ids[:, :6], past_key_values=cache)
    model(wrong, past_key_values=cache)
    cache.crop(-4)
    assert cache.length == 6
    out = model(ids[:, 6:], past_key_values=cache).logits
    assert gap(out, model(ids).logits[:, 6:]) < 1e-5
    cache.crop(torch.tensor(3))  # as transformers' assisted decoding may say it
    assert cache.length == 3 and type(cache.length) is int
    assert gap(model(ids[:, 3:7], past_key_values=cache).logits, model(ids).logits[:, 3:7]) < 1e-5
    cache.crop(0)
    assert cache.length == 7


@pytest.mark.parametrize("how", ["goes on", "with a mask", "in rows"])
@torch.no_grad()
def test_crop_where_positions_have_gaps(how):
    """What follows stands after the last token that is left, wherever those stood that are gone."""
    model = noisy("ouro-1.4b-tiny")
    ids, places = ids_of(model, 2, 8), torch.tensor([[3, 4, 9, 20, 21, 40]])
    if how == "in rows":
        places = torch.cat([places, places + torch.arange(6)])
    cache = LoopCache(model.config)
    model(ids[:, :4], position_ids=places[:, :4], past_key_values=cache)
    model(ids[:, 4:6], position_ids=places[:, 4:], past_key_values=cache)
    cache.crop(-3)
    if how == "in rows":
        cache.reorder_cache(torch.tensor([1, 0]))
        ids, places = ids.flip(0), places.flip(0)
    mask = torch.ones(2, 5, dtype=torch.long)
    mask[0, 3] = 0
    options = {"attention_mask": mask} if how == "with a mask" else {}
    out = model(ids[:, 3:5], past_key_values=cache, **options).logits
    placed = torch.cat([places[:, :3], places[:, 2:3] + torch.tensor([[1, 2]])], 1).expand(2, -1)
    if options:
        placed = torch.where(mask.cumsum(1) < torch.arange(1, 6), placed - 1, placed)
    full = model(ids[:, :5], position_ids=placed, **options).logits
    real = mask[:, 3:].bool() if options else torch.ones(2, 2, dtype=torch.bool)
    assert gap(out[real], full[:, 3:][real]) < 1e-5
    cache.crop(-cache.length)
    assert gap(model(ids[:, :3], past_key_values=cache).logits, model(ids[:, :3]).logits) < 1e-5


@pytest.mark.parametrize("name", PRESETS)
@torch.no_grad()
def test_reorder_follows_the_rows(name):
    model = noisy(name)
    ids = ids_of(model, 3, 9)
    mask = torch.ones(3, 6, dtype=torch.long)
    mask[1, :2] = 0
    cache = LoopCache(model.config)
    model(ids[:, :6], attention_mask=mask, past_key_values=cache)
    order = torch.tensor([1, 1, 0])
    cache.reorder_cache(order)
    out = model(ids[:, 6:], past_key_values=cache).logits
    whole = torch.cat([ids[order, :6], ids[:, 6:]], dim=1)
    full = model(whole, attention_mask=torch.cat([mask[order], torch.ones(3, 3, dtype=torch.long)], dim=1)).logits
    assert gap(out, full[:, 6:]) < 1e-5


@torch.no_grad()
def test_policies_and_their_slots():
    model = noisy("huginn-tiny")
    ids = ids_of(model, 2, 9)
    full = model(ids, depth=4).logits
    differences = {}
    for policy, steps in (("every", 4), ("share(4)", 4), ("share(2)", 2), ("last", 1)):
        cache = LoopCache(model.config, policy=policy)
        model(ids[:, :5], depth=4, past_key_values=cache)
        assert len(cache) == 2 + 2 + steps * 2
        outs = [model(ids[:, i : i + 1], depth=4, past_key_values=cache).logits for i in range(5, 9)]
        differences[policy] = gap(torch.cat(outs, 1), full[:, 5:])
    assert differences["every"] < 1e-5
    assert differences["share(4)"] < 1e-5  # four steps in four slots
    # sharing changes the function: a test that could not tell would prove nothing
    assert differences["share(2)"] > 1e-3
    assert differences["last"] > 1e-3
    for wrong in ("latest", "share(0)", "share"):
        with pytest.raises(ValueError, match="allowed: every, last, share"):
            LoopCache(model.config, policy=wrong)


@torch.no_grad()
def test_slots_are_prelude_then_core_step_major_and_the_coda_by_reading():
    model = noisy("huginn-tiny")
    cache = LoopCache(model.config)
    p = model.embed(ids_of(model, 1, 3), cache=cache)[1]
    order = [Place("prelude", FIRST, 0), Place("prelude", FIRST, 1)] + [
        Place("core", StepIndex(t, t), layer) for t in range(3) for layer in range(2)
    ]
    assert [cache.slot_of(place, p) for place in order] == [("core", slot) for slot in range(8)]
    coda = [
        cache.slot_of(Place("coda", FIRST, layer), p.at_reading(reading)) for reading in (4, 2, Expected(4)) for layer in range(2)
    ]
    assert coda == [("coda", slot) for slot in range(6)]


@torch.no_grad()
def test_a_deeper_step_than_the_past_had_is_refused():
    model = noisy("ouro-1.4b-tiny")
    ids = ids_of(model, 1, 6)
    cache = LoopCache(model.config)
    model(ids[:, :4], depth=2, past_key_values=cache)
    with pytest.raises(ValueError, match=r"step 2 holds 0 of 4 earlier tokens"):
        model(ids[:, 4:5], depth=3, past_key_values=cache)
    shallow = LoopCache(model.config)
    model(ids[:, :3], depth=3, past_key_values=shallow)
    model(ids[:, 3:4], depth=2, past_key_values=shallow)
    with pytest.raises(ValueError, match=r"step 2 holds 3 of 4"):
        model(ids[:, 4:5], depth=3, past_key_values=shallow)
    last = LoopCache(model.config, policy="last")
    model(ids[:, :4], depth=2, past_key_values=last)
    assert model(ids[:, 4:5], depth=3, past_key_values=last).logits.isfinite().all()


@pytest.mark.long
@torch.no_grad()
def test_storage_is_preallocated_and_grows():
    model = noisy("ouro-1.4b-tiny")
    ids = ids_of(model, 2, 40)
    fixed = LoopCache(model.config, capacity=40, fixed=True)
    model(ids[:, :8], past_key_values=fixed)
    pointer = fixed.keys.data.data_ptr()
    for i in range(8, 40):
        model(ids[:, i : i + 1], past_key_values=fixed)
    assert fixed.keys.data.data_ptr() == pointer
    with pytest.raises(ValueError, match="41 tokens do not fit; this cache is fixed at 40"):
        model(ids[:, :1], past_key_values=fixed)
    growing = LoopCache(model.config)
    for i in range(40):
        out = model(ids[:, i : i + 1], past_key_values=growing).logits
    assert gap(out[:, -1], model(ids).logits[:, -1]) < 1e-5
    assert growing.capacity == 64
    heads, width = model.config.num_key_value_heads, model.config.head_dim
    assert fixed.storage_bytes == 2 * 4 * (4 * 2) * 2 * 40 * heads * width


def test_gradients_pass_through_a_cached_forward():
    model = noisy("huginn-tiny")
    ids = ids_of(model, 2, 6)
    model(ids, labels=ids).loss.backward()
    plain = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    model(ids, labels=ids, use_cache=True).loss.backward()
    for name, parameter in model.named_parameters():
        assert gap(parameter.grad, plain[name]) < 1e-6, name


def test_wrong_uses_are_named():
    model = lw.build("ouro-1.4b-tiny")
    ids = ids_of(model, 2, 4)
    cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="it holds 2 rows, the pass has 1"):
        model(ids[:1], past_key_values=cache)
    with pytest.raises(TypeError, match="writes by"):
        cache.update(ids, ids, 0)
    cache.reset()
    assert cache.length == 0
    assert not cache.is_initialized


def test_frozen_projections_train_through_a_cached_pass():
    """Only q is trained: what attention read must not be overwritten by later steps."""
    model = noisy("ouro-1.4b-tiny")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("q_proj" in name)
    ids = ids_of(model, 2, 6)
    model(ids, labels=ids).loss.backward()
    plain = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model(ids, labels=ids, use_cache=True).loss.backward()
    assert plain and all(gap(p.grad, plain[n]) < 1e-6 for n, p in model.named_parameters() if p.grad is not None)


@torch.no_grad()
def test_a_padded_cache_is_cropped_with_its_ledger():
    model = noisy("ouroboros-qwen2.5-3b-tiny")
    ids, wrong = ids_of(model, 2, 12), ids_of(model, 2, 3, seed=9)
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[0, :2] = 0
    full = model(ids, attention_mask=torch.cat([mask, torch.ones(2, 6, dtype=torch.long)], 1)).logits
    cache = LoopCache(model.config)
    model(ids[:, :6], attention_mask=mask, past_key_values=cache)
    model(wrong, past_key_values=cache)
    cache.crop(-3)
    assert not cache._ledger.valid[:, 6:].any()
    assert not any(cache.filled.missing.values())
    assert gap(model(ids[:, 6:], past_key_values=cache).logits, full[:, 6:]) < 1e-5


@pytest.mark.parametrize("policy", ["last", "share(2)"])
@torch.no_grad()
def test_a_second_prompt_chunk_under_shared_keys_is_warned_of(policy):
    """In `forward`, in a chunked prefill and in a second turn alike: the logits move, and one line says so."""
    model = noisy("ouro-1.4b-tiny").eval()
    ids = ids_of(model, 1, 8)
    whole, cache = LoopCache(model.config, policy=policy), LoopCache(model.config, policy=policy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one pass, then token by token: what the policy is for
        told = model(ids, past_key_values=whole).logits[:, -1]
        model(ids[:, :1], past_key_values=whole)
        model(ids[:, :5], past_key_values=cache)
        every = LoopCache(model.config)
        for part in ids.split(5, 1):
            model(part, past_key_values=every)
        shallow = LoopCache(model.config, policy=policy)
        for part in ids.split(5, 1):
            model(part, past_key_values=shallow, depth=1)  # nothing is shared
    with pytest.warns(UserWarning, match=rf"^cache: 3 tokens after 5 under policy '{re.escape(policy)}' are not what one pass"):
        found = model(ids[:, 5:], past_key_values=cache).logits[:, -1]
    assert gap(found, told) > 1e-3
    with pytest.warns(UserWarning, match="2 tokens after 8"):  # a draft that is verified, or the next turn
        model(ids[:, :2], past_key_values=cache)
    mine = LoopCache(model.config, policy=policy)
    with pytest.warns(UserWarning, match="after 4 under policy"):
        model.generate(ids, past_key_values=mine, max_new_tokens=1, prefill_chunk_size=4, do_sample=False, pad_token_id=0)
