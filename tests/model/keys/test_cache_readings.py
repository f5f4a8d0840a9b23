"""LoopCache over steps and readings: exact where the past was run and read so, refused in one line where it was not."""

import pytest
import torch

import loopwright as lw
from loopwright.model.keys.cache import LoopCache
from loopwright.model.passes import rules_of
from tests.cases import gap, noisy


def ids_of(model, rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


CODAS = {
    "huginn": {"name": "huginn-tiny"},
    "retrofit": {"name": "retrofit-llama-1b-tiny"},
    "ouroboros": {"name": "ouroboros-qwen2.5-3b-tiny"},
    "ouro with a coda": {"name": "ouro-1.4b-tiny", "coda_layers": 1},
    "universal with a coda": {"name": "universal-tiny", "coda_layers": 1, "read_out": "last"},
    "a controller on the coda": {
        "name": "ouro-1.4b-tiny",
        "coda_layers": 1,
        "adapters": [{"kind": "controller", "rank": 4, "style": 8, "stack": "coda"}],
    },
}


def with_coda(which: str) -> lw.LoopedForCausalLM:
    return noisy(**CODAS[which]).double()


@pytest.mark.long
@pytest.mark.parametrize("which", CODAS)
@torch.no_grad()
def test_step_logits_and_rules_on_a_cache_equal_the_uncached_ones(which):
    model = with_coda(which)
    ids = ids_of(model, 2, 10)
    for select in rules_of(model.halting):
        full = model(ids, output_steps=True, select=select)
        for output_steps in (True, False):
            cache = LoopCache(model.config)
            start = 0
            for end in (4, 5, 10):
                out = model(ids[:, start:end], output_steps=output_steps, select=select, past_key_values=cache)
                assert gap(out.logits, full.logits[:, start:end]) < 1e-9, (select, end)
                for got, want in zip(out.step_logits or (), full.step_logits, strict=False):
                    assert gap(got, want[:, start:end]) < 1e-9
                start = end


@pytest.mark.parametrize("which", CODAS)
@torch.no_grad()
def test_a_reading_that_misses_earlier_tokens_is_refused_before_anything_is_written(which):
    model = with_coda(which)
    ids = ids_of(model, 1, 9)
    cache = LoopCache(model.config)
    model(ids[:, :5], depth=4, past_key_values=cache)
    one_depth = cache.storage_bytes
    before = {key: table.data.clone() for key, table in cache.tables.items()}
    for given, words in (
        ({"depth": 2}, r"the coda read 0 of 5 earlier tokens at depth 2; run them at depth=2 too"),
        ({"depth": 4, "output_steps": True}, r"the coda read 0 of 5 earlier tokens at depth 1"),
        ({"depth": 5}, r"step 4 holds 0 of 5 earlier tokens"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            model(ids[:, 5:], past_key_values=cache, **given)
        assert "\n" not in str(caught.value)
    assert cache.storage_bytes == one_depth
    assert all(torch.equal(table.data, before[key]) for key, table in cache.tables.items())
    assert gap(model(ids[:, 5:], depth=4, past_key_values=cache).logits, model(ids, depth=4).logits[:, 5:]) < 1e-9


@pytest.mark.parametrize("which", CODAS)
@torch.no_grad()
def test_depth_goes_down_and_up_where_the_past_was_read_at_every_depth(which):
    model = with_coda(which)
    ids = ids_of(model, 2, 9)
    cache = LoopCache(model.config)
    model(ids[:, :5], depth=3, output_steps=True, past_key_values=cache)
    assert gap(model(ids[:, 5:6], depth=2, past_key_values=cache).logits, model(ids, depth=2).logits[:, 5:6]) < 1e-9
    with pytest.raises(ValueError, match="step 2 holds 5 of 6 earlier tokens of row 0"):
        model(ids[:, 6:7], depth=3, past_key_values=cache)
    with pytest.raises(ValueError, match="the coda read 5 of 6 earlier tokens of row 0 at depth 1"):
        model(ids[:, 6:7], depth=1, past_key_values=cache)
    for depth in (1, 3):
        cache.crop(5)
        assert gap(model(ids[:, 5:], depth=depth, past_key_values=cache).logits, model(ids, depth=depth).logits[:, 5:]) < 1e-9


@torch.no_grad()
def test_depth_goes_down_freely_without_a_coda():
    model = noisy("ouro-1.4b-tiny").double()
    ids = ids_of(model, 2, 8)
    cache = LoopCache(model.config)
    model(ids[:, :5], depth=4, past_key_values=cache)
    assert gap(model(ids[:, 5:], depth=2, past_key_values=cache).logits, model(ids, depth=2).logits[:, 5:]) < 1e-9


@torch.no_grad()
def test_a_step_with_one_index_per_row_fills_only_what_it_ran():
    model = noisy("ouro-1.4b-tiny").double()
    ids = ids_of(model, 2, 8)
    cache = LoopCache(model.config)
    model(ids[:, :4], depth=2, past_key_values=cache)
    e, p = model.embed(ids[:, 4:5], depth=4, cache=cache)
    s = model.start_state(e, p)
    one = model.step(s, e, torch.tensor([0, 0]), p)
    with pytest.raises(ValueError, match="step 2 holds 0 of 4 earlier tokens of row 1"):
        model.step(one, e, torch.tensor([1, 2]), p)
    model.step(torch.stack([one[0], s[1]]), e, torch.tensor([1, 0]), p)
    cache.advance(p.span)
    with pytest.raises(ValueError, match="step 1 holds 4 of 5 earlier tokens of row 1"):
        model(ids[:, 5:6], depth=2, past_key_values=cache)
    cache.reorder_cache(torch.tensor([0, 0]))  # the row that did run two steps
    with pytest.raises(ValueError, match="step 2 holds 0 of 5 earlier tokens of row 0"):
        model(ids[:, 5:6], depth=4, past_key_values=cache)
    ids = ids[:1].expand(2, -1)
    assert gap(model(ids[:, 5:6], depth=2, past_key_values=cache).logits, model(ids, depth=2).logits[:, 5:6]) < 1e-9
    cache.crop(5)
    assert gap(model(ids[:, 5:], depth=1, past_key_values=cache).logits, model(ids, depth=1).logits[:, 5:]) < 1e-9


@pytest.mark.parametrize("which", CODAS)
@torch.no_grad()
def test_rows_read_out_at_their_own_depths(which):
    """Row 0 ends after one step, row 1 after two, token after token: each as if alone."""
    model = with_coda(which)
    ids = ids_of(model, 2, 7)
    depths = torch.tensor([1, 2])
    full = [model(ids[row : row + 1], depth=int(depths[row])).logits[0] for row in range(2)]
    cache = LoopCache(model.config)
    for start, end in ((0, 3), (3, 4), (4, 7)):
        e, p = model.embed(ids[:, start:end], cache=cache)
        s = model.start_state(e, p)
        one = model.step(s, e, torch.tensor([0, 0]), p)
        two = model.step(torch.stack([s[0], one[1]]), e, torch.tensor([0, 1]), p)
        logits = model.read_out(two, p, reading=depths)
        cache.advance(p.span)
        assert max(gap(logits[row], full[row][start:end]) for row in range(2)) < 1e-9
    with pytest.raises(ValueError, match="step 1 holds 0 of 7 earlier tokens of row 0"):
        model(ids[:, :1], depth=2, past_key_values=cache)
    with pytest.raises(ValueError, match="the coda read 0 of 7 earlier tokens of row 1 at depth 1"):
        model(ids[:, :1], depth=1, past_key_values=cache)


@torch.no_grad()
def test_a_read_out_on_a_cache_must_say_where_it_reads():
    model = noisy("huginn-tiny")
    e, p = model.embed(ids_of(model, 1, 3), cache=LoopCache(model.config))
    with pytest.raises(ValueError, match="a cache with a coda needs `reading`"):
        model.read_out(e, p)


@torch.no_grad()
def test_one_depth_has_as_many_coda_slots_as_layers_and_a_sweep_one_group_per_step():
    model = noisy("huginn-tiny")
    ids = ids_of(model, 2, 5)
    one, sweep = LoopCache(model.config, capacity=8), LoopCache(model.config, capacity=8)
    model(ids, depth=4, past_key_values=one)
    model(ids, depth=4, output_steps=True, past_key_values=sweep)
    assert (len(one), len(sweep)) == (2 + 4 * 2 + 2, 2 + 4 * 2 + 4 * 2)
    slot = 2 * 4 * 2 * 8 * model.config.num_key_value_heads * model.config.head_dim
    assert (one.storage_bytes, sweep.storage_bytes) == (12 * slot, 18 * slot)
    assert sweep.tables["coda", "keys"].data.shape[0] == 8


@pytest.mark.parametrize("policy", ["last", "share(2)", "share(4)"])
@torch.no_grad()
def test_sharing_policies_share_the_codas_slots_too(policy):
    model = noisy("huginn-tiny").double()
    ids = ids_of(model, 1, 8)
    cache = LoopCache(model.config, policy=policy)
    full = model(ids, depth=4, output_steps=True)
    model(ids[:, :5], depth=4, output_steps=True, past_key_values=cache)
    assert len(cache.readings) == cache.share
    out = model(ids[:, 5:], depth=4, output_steps=True, past_key_values=cache)
    differences = [gap(got, want[:, 5:]) for got, want in zip(out.step_logits, full.step_logits, strict=True)]
    assert (max(differences) < 1e-9) == (policy == "share(4)")


@torch.no_grad()
def test_a_pass_that_fails_leaves_the_cache_as_it_was():
    model = noisy("ouro-1.4b-tiny").double()
    ids = ids_of(model, 1, 9)

    def broken(name, value, *, stack, step, layer):
        if step == 2:
            raise RuntimeError("stop")
        return value

    cache = LoopCache(model.config)
    with pytest.raises(RuntimeError, match="stop"):
        model(ids.expand(3, -1), depth=4, tap=broken, past_key_values=cache)
    model(ids[:, :4], depth=4, past_key_values=cache)  # the rows of the failed pass are no promise
    with pytest.raises(RuntimeError, match="stop"):
        model(ids[:, 4:8], depth=4, tap=broken, past_key_values=cache)
    with pytest.raises(ValueError, match="labels: shape"):
        model(ids[:, 4:8], labels=ids, depth=4, past_key_values=cache)
    assert cache.row_lengths == [4]
    model(ids[:, 4:5], depth=1, past_key_values=cache)
    with pytest.raises(ValueError, match="step 1 holds 4 of 5"):  # the failed pass had written this step further
        model(ids[:, 5:6], depth=2, past_key_values=cache)
    cache.crop(4)
    assert gap(model(ids[:, 4:], depth=4, past_key_values=cache).logits, model(ids, depth=4).logits[:, 4:]) < 1e-9


@torch.no_grad()
def test_a_row_that_went_less_deep_goes_with_its_copies():
    """Reorder and repeat carry what each row misses: here the first of two runs one step, the second three."""
    model = noisy("huginn-tiny").double()
    ids = ids_of(model, 2, 8)
    cache = LoopCache(model.config)
    e, p = model.embed(ids[[0, 0], :4], cache=cache)
    start = s = model.start_state(e, p)
    for t in range(3):  # the first row waits: it repeats its one step
        s = model.step(torch.stack([start[0], s[1]]), e, torch.tensor([0, t]), p)
    model.read_out(s, p, reading=torch.tensor([1, 3]))
    cache.advance(p.span)
    with pytest.raises(ValueError, match="step 1 holds 0 of 4 earlier tokens of row 0"):
        model(ids[:, 4:5], depth=3, past_key_values=cache)
    cache.reorder_cache(torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="step 1 holds 0 of 4 earlier tokens of row 1"):
        model(ids[:, 4:5], depth=3, past_key_values=cache)
    cache.batch_repeat_interleave(2)
    with pytest.raises(ValueError, match="of row 2"):
        model(ids[[0, 0, 1, 1], 4:5], depth=3, past_key_values=cache)
    cache.reorder_cache(torch.tensor([0, 1, 1, 0]))
    want = model(ids[:1], depth=3).logits[:, 4:]
    assert gap(model(ids[:1, 4:].expand(4, -1), depth=3, past_key_values=cache).logits, want.expand(4, -1, -1)) < 1e-9
    cache.reset()
    assert model(ids[[0, 1, 0, 1], :2], depth=5, past_key_values=cache).logits.isfinite().all()


@torch.no_grad()
def test_steps_that_are_none_are_refused():
    model = noisy("ouro-1.4b-tiny")
    ids = ids_of(model, 2, 3)
    e, p = model.embed(ids, cache=LoopCache(model.config))
    with pytest.raises(ValueError, match="cache: step -1; allowed: 0 and above"):
        model.step(e, e, torch.tensor([0, -1]), p)
    with pytest.raises(ValueError, match=r"steps of shape \(3,\); allowed: one number, or one per row \(2,\)"):
        model.step(e, e, torch.tensor([0, 1, 0]), p)


@torch.no_grad()
def test_another_number_of_rows_is_refused_in_a_padded_cache_too():
    model = noisy("huginn-tiny")
    ids = ids_of(model, 2, 4)
    cache = LoopCache(model.config)
    model(ids, attention_mask=torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]), past_key_values=cache)
    with pytest.raises(ValueError, match="it holds 2 rows, the pass has 1"):
        model(ids[:1], past_key_values=cache)
    cache.crop(-4)
    assert gap(model(ids[:1], past_key_values=cache).logits, model(ids[:1]).logits) < 1e-5


@torch.no_grad()
def test_a_step_beyond_what_was_reserved_makes_its_own_room():
    model = noisy("ouro-1.4b-tiny").double()
    ids = ids_of(model, 2, 5)
    cache = LoopCache(model.config)
    e, p = model.embed(ids[:, :4], depth=1, cache=cache)
    *_, s = model.unroll(e, 3, p)
    model.read_out(s, p, reading=3)
    cache.advance(p.span)
    assert gap(model(ids[:, 4:], depth=3, past_key_values=cache).logits, model(ids, depth=3).logits[:, 4:]) < 1e-9
