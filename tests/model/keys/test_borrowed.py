"""The caches of transformers under a looped model: what a `LoopCache` gives, or one line."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache, QuantizedCache, StaticCache

import loopwright as lw
from loopwright.model.keys.borrowed import BOOK, BorrowedCache
from loopwright.model.passes import rules_of
from loopwright.model.presets import PRESETS
from tests.cases import UNLIKE, gap, noisy, some

CONTROLLER = {"kind": "controller", "rank": 4, "style": 8, "init": "linear"}
CASES: dict[str, dict[str, Any]] = {
    **{name: {"name": f"{name}-tiny"} for name in PRESETS},
    "window": {"name": "ouro-1.4b-tiny", "sliding_window": 3},
    "window, coda and pooling": {"name": "ouroboros-qwen2.5-3b-tiny", "sliding_window": 4},
    "chunks on all stacks": {
        "name": "ouroboros-qwen2.5-3b-tiny",
        "adapters": [{**CONTROLLER, "pooling": "chunk", "chunk": 2, "stack": stack} for stack in ("prelude", "core", "coda")],
    },
    "exit gate and coda": {"name": "ouro-1.4b-tiny", "halting": {"kind": "exit", "threshold": 0.6}, "coda_layers": 1},
    "act and coda": {"name": "universal-tiny", "coda_layers": 1, "halting": {"kind": "act"}},
}
SOME_CASES = some(CASES, {*UNLIKE, *(set(CASES) - set(PRESETS))})
KINDS: dict[str, Callable[[lw.LoopedConfig], Cache]] = {
    "dynamic": lambda config: DynamicCache(),
    "dynamic of the config": lambda config: DynamicCache(config=config),
    "static": lambda config: StaticCache(config=config, max_cache_len=32),
}
TOLERANCE = 1e-9
GREEDY = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


@cache
def model_of(case: str) -> lw.LoopedForCausalLM:
    return noisy(**CASES[case]).double()


def ids_of(model: lw.LoopedForCausalLM, rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(1, model.config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def offloading(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' offloading on a CPU: its streams do nothing, its layers go away and come back all the same."""

    class Stream:
        def wait_stream(self, other: Any) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *raised: object) -> None: ...

    monkeypatch.setattr(torch, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: Stream())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", SOME_CASES)
@torch.no_grad()
def test_passes_on_it_equal_one_pass_without(case, kind):
    """In chunks and token by token, at the default depth and below and above it, under each rule that answers."""
    model = model_of(case)
    ids = ids_of(model, 2, 12)
    for depth in {model.config.depth, 2, min(6, model.config.max_steps or 6)}:
        for select in rules_of(model.halting):
            full = model(ids, depth=depth, select=select).logits
            held, start = KINDS[kind](model.config), 0
            for end in (5, 6, 9, 10, 11, 12):
                out = model(ids[:, start:end], depth=depth, select=select, past_key_values=held)
                assert out.past_key_values is held and held.get_seq_length() == end
                assert gap(out.logits, full[:, start:end]) < TOLERANCE
                start = end


@torch.no_grad()
def test_slots_are_layers_in_the_order_in_which_they_run():
    model = model_of("huginn")
    held, ours = DynamicCache(), lw.LoopCache(model.config)
    ids = ids_of(model, 2, 5)
    for kept in (held, ours):
        model(ids, past_key_values=kept)
    assert len(held) == len(ours) == model.config.num_hidden_layers
    keys = torch.cat([ours.tables["core", "keys"].data, ours.tables["coda", "keys"].data])
    for layer, slot in zip(held.layers, keys, strict=True):
        assert torch.equal(layer.keys.transpose(1, 2), slot[:, :5])


@pytest.mark.long
@pytest.mark.parametrize("case", SOME_CASES)
@settings(max_examples=8)
@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("pass"), st.integers(1, 4)),
            st.tuples(st.just("crop"), st.integers(-3, -1)),
            st.tuples(st.sampled_from(["reorder", "repeat", "copy"]), st.integers(0, 5)),
        ),
        min_size=2,
        max_size=8,
    )
)
@torch.no_grad()
def test_whatever_is_done_to_it_it_goes_on_as_our_own(case, moves):
    """Passes, crops, beams, repeated rows and copies in any order. (A layer that slides does not come back: no crops there.)"""
    model = model_of(case)
    held: Any = DynamicCache() if model.config.sliding_window is None else DynamicCache(config=model.config)
    ours, rows = lw.LoopCache(model.config), 2
    for turn, (name, number) in enumerate([("pass", 4), *moves, ("pass", 2)]):
        if name == "pass":
            ids = ids_of(model, rows, number, seed=turn)
            a, b = (model(ids, past_key_values=kept).logits for kept in (held, ours))
            assert gap(a, b) < TOLERANCE
        elif name == "crop" and model.config.sliding_window is None and -number < ours.length:
            held.crop(number), ours.crop(number)
        elif name == "reorder":
            order = torch.tensor([(number + i) % rows for i in range(rows)])
            held.reorder_cache(order), ours.reorder_cache(order)
        elif name == "repeat" and rows < 4:
            rows *= 2
            held.batch_repeat_interleave(2), ours.batch_repeat_interleave(2)
        elif name == "copy":
            held = deepcopy(held)
        assert held.get_seq_length() == ours.length


DECODINGS: dict[str, dict[str, Any]] = {
    "greedy": {}, "chunked prompt": {"prefill_chunk_size": 2}, "beams": {"num_beams": 3, "num_return_sequences": 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 2}, "sampled": {"do_sample": True}, "depth": {"depth": 3},
}  # fmt: skip


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("case", ["ouro-1.4b", "huginn", "ouroboros-qwen2.5-3b", "window"])
@torch.no_grad()
def test_generate_writes_the_same_tokens(case, decoding, offloading):
    model, options = model_of(case), {**GREEDY, **DECODINGS[decoding]}
    ids = ids_of(model, 1 if decoding == "prompt lookup" else 2, 5)
    torch.manual_seed(0)
    expected = model.generate(ids, **options)
    away = DynamicCache(config=model.config, offloading=True)
    ways: list[dict[str, Any]] = [{"past_key_values": DynamicCache()}, {"past_key_values": away}]
    if decoding not in ("beams", "prompt lookup"):  # a static layer knows neither more rows nor less tokens
        ways.append({"past_key_values": StaticCache(config=model.config, max_cache_len=16)})
    if case == "window" and decoding == "prompt lookup":
        ways.pop(1)  # nor does one that slides
    for way in ways:
        torch.manual_seed(0)
        assert torch.equal(model.generate(ids, **options, **way), expected), way


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["ouro-1.4b", "huginn", "ouroboros-qwen2.5-3b"])
@torch.no_grad()
def test_generate_writes_the_same_tokens_with_keys_off_the_gpu(case):
    model = deepcopy(model_of(case)).cuda()
    ids = ids_of(model, 2, 5).cuda()
    torch.manual_seed(0)
    expected = model.generate(ids, **GREEDY)
    for way in ({"cache_implementation": "offloaded"}, {"past_key_values": DynamicCache(config=model.config, offloading=True)}):
        torch.manual_seed(0)
        assert torch.equal(model.generate(ids, **GREEDY, **way), expected), way


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@torch.no_grad()
def test_padded_rows_equal_rows_alone(kind, side):
    for case in ("ouro-1.4b", "ouroboros-qwen2.5-3b", "stars-addition"):
        model = model_of(case)
        short, long = ids_of(model, 1, 3), ids_of(model, 1, 6, seed=2)
        gone = torch.zeros(1, 3, dtype=torch.long)
        both = [gone, short] if side == "left" else [short, gone]
        batch = torch.cat([torch.cat(both, 1), long])
        mask = torch.cat(
            [
                torch.cat([gone, torch.ones_like(short)] if side == "left" else [torch.ones_like(short), gone], 1),
                torch.ones_like(long),
            ]
        )
        held, more = KINDS[kind](model.config), ids_of(model, 2, 2, seed=3)
        model(batch, attention_mask=mask, past_key_values=held)
        found = model(more, attention_mask=torch.cat([mask, torch.ones_like(more)], 1), past_key_values=held).logits
        assert gap(found[:1], model(torch.cat([short, more[:1]], 1)).logits[:, 3:]) < TOLERANCE
        assert gap(found[1:], model(torch.cat([long, more[1:]], 1)).logits[:, 6:]) < TOLERANCE


@torch.no_grad()
def test_a_conversation_goes_on_from_it():
    model = model_of("ouroboros-qwen2.5-3b")
    held, ids = DynamicCache(), ids_of(model, 1, 5)
    first = model.generate(ids, past_key_values=held, **GREEDY)
    longer = torch.cat([first, ids_of(model, 1, 3, seed=8)], 1)
    kept = deepcopy(held)
    expected = model.generate(longer, **GREEDY)
    assert torch.equal(model.generate(longer, past_key_values=held, **GREEDY), expected)
    assert torch.equal(model.generate(longer, past_key_values=kept, **GREEDY), expected)


@pytest.mark.parametrize("case", ["ouro-1.4b", "huginn", "ouroboros-qwen2.5-3b"])
@torch.no_grad()
def test_a_quantised_cache_is_near(case):
    """Of float8: within its rounding; beside keys, the running sums of a controller are kept as they are. At any depth."""
    model = deepcopy(model_of(case)).float()
    try:
        QuantizedCache(backend="fp8", config=model.config)
    except ValueError:
        pytest.skip("this version of transformers has no cache of float8")
    ids = ids_of(model, 2, 8)
    for depth in (2, 4, 5):
        held = QuantizedCache(backend="fp8", config=model.config)
        full = model(ids, depth=depth).logits
        assert gap(model(ids[:, :5], depth=depth, past_key_values=held).logits, full[:, :5]) < 1e-4
        found = model(ids[:, 5:], depth=depth, past_key_values=held).logits
        assert 0 < gap(found, full[:, 5:]) < 0.2 * full.abs().max()
    options = {**GREEDY, "cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
    assert model.generate(ids, **options, num_beams=2).shape[1] > 8


@pytest.mark.ecosystem
@torch.no_grad()
def test_a_quantised_cache_of_quanto_keeps_what_it_has_not_rounded_yet():
    pytest.importorskip("optimum.quanto")
    model = noisy("ouro-1.4b-tiny", hidden_size=64, num_attention_heads=1, num_key_value_heads=1)
    ids = ids_of(model, 1, 70)
    out = model.generate(ids, cache_implementation="quantized", cache_config={"nbits": 4}, **GREEDY)
    assert out.shape == (1, 78) and torch.equal(out[:, 70], model.generate(ids, **GREEDY)[:, 70])


@pytest.mark.parametrize("case", ["ouro-1.4b", "ouroboros-qwen2.5-3b", "window"])
def test_gradients_reach_whoever_is_held(case):
    """As through any cache of transformers that grows: two passes with gradients are one."""
    model = noisy(**CASES[case]).double()
    ids, held = ids_of(model, 2, 7), DynamicCache(config=model.config)
    parts = [model(part, past_key_values=held).logits for part in ids.split([4, 3], 1)]
    weights = [w for w in model.parameters() if w.requires_grad]
    found, wanted = (
        torch.autograd.grad(logits.square().sum(), weights, allow_unused=True)
        for logits in (torch.cat(parts, 1), model(ids).logits)
    )
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None) and (a is None or gap(a, b) <= TOLERANCE * max(1.0, b.abs().max().item()))


# refusals

IDS = torch.tensor([[3, 4, 5]])


def filled(case: str = "huginn", depth: int | None = None) -> tuple[lw.LoopedForCausalLM, DynamicCache]:
    model, held = model_of(case), DynamicCache()
    with torch.no_grad():
        model(IDS, depth=depth, past_key_values=held)
    return model, held


@torch.no_grad()
def test_steps_and_readings_that_were_never_run_are_refused():
    """A pass less deep is read elsewhere by the coda; nothing is taken for what it is not."""
    model, held = filled()
    before = [layer.keys.clone() for layer in held.layers]
    for depth, line in ((6, "step 4 holds 0 of 3 earlier tokens"), (2, "the coda read 0 of 3 earlier tokens at depth 2")):
        with pytest.raises(ValueError, match=line):
            model(IDS, depth=depth, past_key_values=held)
    assert all(torch.equal(a, layer.keys) for a, layer in zip(before, held.layers, strict=True))
    assert gap(model(IDS, past_key_values=held).logits, model(torch.cat([IDS, IDS], 1)).logits[:, 3:]) < TOLERANCE
    model, held = filled("ouro-1.4b")
    model(IDS, depth=2, past_key_values=held)
    for _ in range(2):  # also after a crop, which takes as many tokens from the steps that lag behind
        with pytest.raises(ValueError, match="step 2 holds"):
            model(IDS, depth=4, past_key_values=held)
        held.crop(-1)


def test_a_planted_mix_of_steps_is_caught(monkeypatch):
    """Without the notes of where a reading begins, the coda of a pass less deep would read keys of the core."""
    monkeypatch.setattr(BorrowedCache, "_find", planted_find)
    with pytest.raises(pytest.fail.Exception):
        test_steps_and_readings_that_were_never_run_are_refused()


def planted_find(self: BorrowedCache, name: Any, count: int) -> tuple[int, bool]:
    self.book.pop(name, None)
    self.book[name] = sum(number for _, number in self.book.values()), count
    return self.book[name][0], False


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"position_ids": torch.tensor([[0, 1, 2]])}, "DynamicCache knows one document a row, of one number in all; others"),
        ({"segment_ids": torch.tensor([[0, 1, 1]])}, "DynamicCache knows one document a row"),
        ({"attention_mask": torch.tensor([[0, 1, 1]])}, "attention_mask: 3 entries; DynamicCache does not know padding"),
    ],
)
def test_what_it_cannot_hold_is_refused(said, line):
    model, held = filled("ouro-1.4b")
    with torch.no_grad(), pytest.raises(ValueError, match=line) as caught:
        model(IDS, past_key_values=held, **said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_a_document_may_have_any_number(padded):
    """Every row is one document, whatever its number is; later tokens of another number are another document."""
    model = model_of("ouro-1.4b")
    ids, sevens = ids_of(model, 2, 6), torch.full((2, 6), 7)
    mask = torch.ones(2, 6, dtype=torch.long)
    if padded:
        mask[0, :2] = 0
    full = model(ids, attention_mask=mask).logits
    held = DynamicCache()
    first = model(ids[:, :4], attention_mask=mask[:, :4], segment_ids=sevens[:, :4], past_key_values=held).logits
    assert gap(first[mask[:, :4].bool()], full[:, :4][mask[:, :4].bool()]) < TOLERANCE
    for other in (torch.zeros(2, 2, dtype=torch.long), torch.tensor([[7, 7], [7, 8]])):
        with pytest.raises(ValueError, match="knows one document a row"):
            model(ids[:, 4:], attention_mask=mask, segment_ids=other, past_key_values=deepcopy(held))
    for said in ({}, {"segment_ids": sevens[:, 4:]}):
        again = model(ids[:, 4:], attention_mask=mask, past_key_values=deepcopy(held), **said).logits
        assert gap(again, full[:, 4:]) < TOLERANCE


@torch.no_grad()
def test_caches_that_cannot_be_taken_are_refused():
    model, (_, held) = model_of("ouro-1.4b"), filled("ouro-1.4b")
    other = EncoderDecoderCache(DynamicCache(), DynamicCache())
    with pytest.raises(TypeError, match="past_key_values: EncoderDecoderCache; allowed: a LoopCache, or a dynamic"):
        model(IDS, past_key_values=other)
    with pytest.raises(TypeError, match="past_key_values: tuple; allowed"):
        model(IDS, past_key_values=((IDS, IDS),))
    with pytest.raises(ValueError, match="cache: 3 tokens do not fit; this StaticCache is fixed at 2"):
        model(IDS, past_key_values=StaticCache(config=model.config, max_cache_len=2))
    with pytest.raises(ValueError, match="cache: it holds 1 rows, the pass has 2"):
        model(IDS.expand(2, -1), past_key_values=held)
    delattr(held, BOOK)
    with pytest.raises(ValueError, match="DynamicCache holds 3 tokens that no looped model has put there"):
        model(IDS, past_key_values=held)
    recomputed = noisy("ouro-1.4b-tiny").train()
    recomputed.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="past_key_values: DynamicCache would take the keys of a layer that is recomputed twice"):
        recomputed(IDS, past_key_values=DynamicCache())
    model = model_of("window")
    mask, held = torch.tensor([[1, 0, 1]]), DynamicCache(config=model.config)
    with pytest.raises(ValueError, match="keeps the last places of a window, padding among them; pad on the left"):
        model(IDS, attention_mask=mask, past_key_values=held)
    with pytest.raises(
        ValueError, match="cache_implementation 'offloaded' moves keys between a GPU and the host; here take 'dynamic'"
    ):
        model.generate(IDS, cache_implementation="offloaded", **GREEDY)
    with pytest.raises(ValueError, match="cache_implementation 'offloaded_static'; allowed: dynamic, static, offloaded, quantized"):
        model.generate(IDS, cache_implementation="offloaded_static", **GREEDY)


@pytest.mark.parametrize("pooling", ["prefix", "chunk"])
def test_a_halting_value_that_asks_for_a_running_sum_again(pooling: str) -> None:
    controller = {"kind": "controller", "pooling": pooling, "rank": 2, "style": 4, **({"chunk": 2} if pooling == "chunk" else {})}
    model = noisy("universal-tiny", adapters=[controller], max_steps=4).double().eval()
    ids, cache = torch.tensor([[3, 5, 7, 2, 9, 4]]), DynamicCache()
    with torch.no_grad():
        parts = [model(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 3), (3, 4), (4, 6))]
        assert (torch.cat(parts, 1) - model(ids, use_cache=False).logits).abs().max() < 1e-9
