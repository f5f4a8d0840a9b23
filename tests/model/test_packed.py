"""Packed = apart, in float64: a document in a row gives the logits, states, losses and gradients that it gives alone, however the
row says where its documents begin, for every preset and every part that looks along the row."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.model import span as spans
from loopwright.model.passes import rules_of
from loopwright.model.presets import PRESETS
from loopwright.model.span import Span
from loopwright.training.objectives.jacobian import JacobianProbe, PenaltySite
from loopwright.training.objectives.losses import OBJECTIVES
from loopwright.training.objectives.penalties import StateChange
from loopwright.training.rollout import Plan, rollout
from tests.cases import gap, noisy

CONTROLLER = {"kind": "controller", "rank": 4, "style": 8, "init": "linear"}
# every preset, and what looks along a row in ways that no preset does
CASES: dict[str, dict[str, Any]] = {
    **{name: {"name": f"{name}-tiny"} for name in PRESETS},
    "window": {"name": "ouro-1.4b-tiny", "sliding_window": 3},
    "window and coda": {"name": "huginn-tiny", "sliding_window": 2},
    "window and pooling": {"name": "ouroboros-qwen2.5-3b-tiny", "sliding_window": 3},
    "pooling by chunks": {
        "name": "ouroboros-qwen2.5-3b-tiny", "adapters": [{**CONTROLLER, "pooling": "chunk", "chunk": 2}],
    },
    "pooling by token": {"name": "ouroboros-qwen2.5-3b-tiny", "adapters": [{**CONTROLLER, "pooling": "token"}]},
    "controllers on all stacks": {
        "name": "ouroboros-qwen2.5-3b-tiny",
        "adapters": [CONTROLLER, {**CONTROLLER, "stack": "prelude"}, {**CONTROLLER, "stack": "coda"}],
    },
    "exit gate": {"name": "ouro-1.4b-tiny", "halting": {"kind": "exit", "threshold": 0.6}, "coda_layers": 1},
    "act": {"name": "ouro-1.4b-tiny", "halting": {"kind": "act"}},
    "halter": {"name": "huginn-tiny", "halting": {"kind": "halter", "width": 8}},
    "universal-act and coda": {"name": "universal-tiny", "coda_layers": 1},
    "learned positions": {"name": "stars-addition-tiny", "halting": {"kind": "universal-act"}},
}  # fmt: skip
TOLERANCE = 1e-8


@cache
def model_of(case: str) -> lw.LoopedForCausalLM:
    return noisy(**CASES[case]).double()


def documents(model: lw.LoopedForCausalLM, lengths: list[int], seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, model.config.vocab_size, (1, n), generator=generator) for n in lengths]


def said(word: str, lengths: list[int]) -> dict[str, Tensor]:
    """Returns how a row of documents says where they begin."""
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    numbers = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])[None]
    return {
        "position_ids": {"position_ids": positions},
        "cu_seq_lens": {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": max(lengths), "max_length_k": max(lengths)},
        "seq_idx": {"seq_idx": numbers.int()},
        "segment_ids": {"segment_ids": numbers},
        "collator": {"position_ids": positions, "cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "seq_idx": numbers.int()},
    }[word]


WORDS = ["position_ids", "cu_seq_lens", "seq_idx", "segment_ids", "collator"]


def labels_of(parts: list[Tensor]) -> Tensor:
    """Returns the labels of a packed row: the first token of a document follows nothing."""
    return torch.cat([part.masked_fill(torch.arange(part.shape[1], device=part.device) == 0, -100) for part in parts], 1)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor | None]:
    return [*torch.autograd.grad(loss, [w for w in model.parameters() if w.requires_grad], allow_unused=True)]


def check_equal(found: list[Tensor | None], wanted: list[Tensor | None]) -> None:
    for a, b in zip(found, wanted, strict=True):
        a, b = (torch.zeros(()) if a is None else a.cpu(), torch.zeros(()) if b is None else b.cpu())
        assert (a - b).abs().max() <= TOLERANCE * max(1.0, b.abs().max().item())


def check_packed(model: lw.LoopedForCausalLM, lengths: list[int], word: str, seed: int = 1, **options: Any) -> None:
    """Compares one packed row with its documents apart: everything that a pass returns, and the gradient of its loss."""
    device = next(model.parameters()).device
    parts = [part.to(device) for part in documents(model, lengths, seed)]
    row, labels = torch.cat(parts, 1), labels_of(parts)
    words = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in said(word, lengths).items()}
    packed = model(row, labels=labels, output_steps=True, output_hidden_states=True, **words, **options)
    alone = [model(part, output_steps=True, output_hidden_states=True, **options) for part in parts]
    names = ("logits", "last_hidden_state", "exit_probs", "states", "step_logits", "hidden_states")
    for name in names:
        values = [getattr(one, name) for one in alone]
        if values[0] is None:
            continue
        if isinstance(values[0], Tensor):
            assert gap(getattr(packed, name), torch.cat(values, 1)) < TOLERANCE, name
            continue
        for found, *wanted in zip(getattr(packed, name), *values, strict=True):
            assert gap(found, torch.cat(wanted, 1)) < TOLERANCE, name
    targets = sum(n - 1 for n in lengths)
    if not targets:
        return
    apart = sum(model(part, labels=part, num_items_in_batch=targets, **options).loss for part in parts if part.shape[1] > 1)
    assert gap(packed.loss, apart) < TOLERANCE
    check_equal(gradients(model, packed.loss), gradients(model, apart))


LENGTHS = st.lists(st.integers(1, 7), min_size=2, max_size=5)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_a_packed_row_equals_its_documents_apart_on_a_gpu(case):
    model = deepcopy(model_of(case)).cuda()
    for word in ("position_ids", "collator"):
        check_packed(model, [3, 1, 100, 7], word, depth=min(3, model.config.max_steps or 3))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_a_packed_row_by_kernels_equals_its_documents_apart(case):
    """In bfloat16 without a gradient, where the fused kernels run."""
    model = deepcopy(model_of(case)).to("cuda", torch.bfloat16)
    lengths, depth = [3, 1, 30, 7], min(2, model.config.max_steps or 2)
    parts = [part.cuda() for part in documents(model, lengths)]
    positions = said("position_ids", lengths)["position_ids"].cuda()
    with torch.no_grad():
        packed = model(torch.cat(parts, 1), position_ids=positions, depth=depth).logits.float()
        alone = torch.cat([model(part, depth=depth).logits for part in parts], 1).float()
        together = model(torch.cat(parts, 1), depth=depth).logits.float()
    assert (packed - alone).norm() < 0.1 * (together - alone).norm()


DRAWN = {"lengths": LENGTHS, "word": st.sampled_from(WORDS), "seed": st.integers(0, 99), "depth": st.integers(1, 3)}


def check_drawn(case: str, data: Any, lengths: list[int], word: str, seed: int, depth: int) -> None:
    model = model_of(case)
    rule = data.draw(st.sampled_from(rules_of(model.halting)))
    check_packed(model, lengths, word, seed, depth=min(depth, model.config.max_steps or depth), select=rule)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=4)
@given(data=st.data(), **DRAWN)
def test_a_packed_row_equals_its_documents_apart(case, data, lengths, word, seed, depth):
    check_drawn(case, data, lengths, word, seed, depth)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=100)
@given(data=st.data(), **DRAWN)
def test_many_packed_rows_equal_their_documents_apart(case, data, lengths, word, seed, depth):
    check_drawn(case, data, lengths, word, seed, depth)


def seen_by_all(self: Span, x: Tensor, carried: Tensor | None) -> Tensor:
    return x.cumsum(1) if carried is None else x.cumsum(1) + carried[:, None]


LEAKS: dict[str, tuple[str, Any, str, Any]] = {
    "documents are not told apart": ("ouro-1.4b", spans, "_restarts", lambda *given: False),
    "a window looks back into the last document": ("window", Span, "mask", lambda self, window: (None, True)),
    "pooling runs on": ("ouroboros-qwen2.5-3b", Span, "document_sum", seen_by_all),
    "chunks are counted along the row": ("pooling by chunks", Span, "ordinal", lambda self: self.places() + 1),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_between_documents_is_caught(leak, monkeypatch):
    case, place, name, planted = LEAKS[leak]
    check_packed(model_of(case), [3, 5], "position_ids")
    monkeypatch.setattr(place, name, planted)
    with pytest.raises(AssertionError):
        check_packed(model_of(case), [3, 5], "position_ids")


@pytest.mark.long
@pytest.mark.parametrize("case", ["ouro-1.4b", "huginn", "ouroboros-qwen2.5-3b", "window and pooling", "pooling by chunks"])
@torch.no_grad()
def test_rows_of_a_batch_are_packed_each_in_its_own_way(case):
    """Also between padding, which is no document."""
    model = model_of(case)
    lengths = [[2, 4, 1], [1, 5], [7]]
    parts = [documents(model, row, seed) for seed, row in enumerate(lengths)]
    blank = torch.zeros(1, 2, dtype=torch.long)
    rows, positions, mask = [], [], []
    for row, each in zip(lengths, parts, strict=True):
        left, right = (blank[:, :0], blank[:, : 7 - sum(row)])
        rows.append(torch.cat([blank, left, *each, right], 1))
        positions.append(torch.cat([blank, left, *(torch.arange(n)[None] for n in row), right], 1))
        mask.append(torch.cat([blank, left, torch.ones(1, sum(row), dtype=torch.long), right], 1))
    found = model(torch.cat(rows), position_ids=torch.cat(positions), attention_mask=torch.cat(mask)).logits
    for row, each in zip(found, parts, strict=True):
        alone = torch.cat([model(part).logits for part in each], 1)[0]
        assert gap(row[2 : 2 + len(alone)], alone) < TOLERANCE


# training


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_recomputed_layers_keep_documents_apart(case):
    """transformers' gradient checkpointing, in training mode; one start for all tokens, where it is drawn."""
    model = noisy(**CASES[case]).double().train()
    model.gradient_checkpointing_enable()
    check_packed(model, [4, 1, 3], "position_ids", state_seed=5)


TRAINED = {
    "final": ("huginn", "tree"),
    "every-step": ("asura", "step"),
    "expected-exit": ("exit gate", "step"),
    "ponder": ("universal", "step"),
    "exit-gate": ("ouro-1.4b", "none"),
}


@pytest.mark.long
@pytest.mark.parametrize("objective", TRAINED)
def test_objectives_and_penalties_of_the_loop_keep_documents_apart(objective):
    """Losses over every step and rematerialised loops: the mean over the targets of a packed row is that of its documents."""
    case, remat = TRAINED[objective]
    model, kind = noisy(**CASES[case]).double(), OBJECTIVES[objective]()
    lengths = [4, 2, 5]
    parts = documents(model, lengths)
    row = Batch(torch.cat(parts, 1), labels_of(parts), segment_ids=said("segment_ids", lengths)["segment_ids"])
    plan, keeps = Plan(3, 3), kind.reads

    def losses(batch: Batch) -> tuple[Tensor, Tensor]:
        run = rollout(model, batch, plan, remat=remat, keeps=keeps)
        return kind(model, run)[0], StateChange()(model, run)

    found = losses(row)
    apart = zip(*(losses(Batch(part, part)) for part in parts), strict=True)
    counted = [[n - 1 for n in lengths], lengths]  # a loss counts targets, the change of a state every token
    wanted = [
        sum(one * n for one, n in zip(ones, counts, strict=True)) / sum(counts) for ones, counts in zip(apart, counted, strict=True)
    ]
    for a, b in zip(found, wanted, strict=True):
        assert gap(a, b) < TOLERANCE
    check_equal(gradients(model, sum(found)), gradients(model, sum(wanted)))


@pytest.mark.parametrize("case", ["ouro-1.4b", "huginn", "asura", "ouroboros-qwen2.5-3b", "universal", "window"])
def test_the_derivative_of_a_step_has_no_entry_between_documents(case):
    """What the Jacobian penalty squares: along one direction, the product of a packed row is those of its documents."""
    model = noisy(**CASES[case]).double()
    lengths = [3, 1, 4]
    parts = documents(model, lengths)

    def products(run: Any, v: Tensor) -> Tensor:
        return PenaltySite(model.step, run.before, run.e, run.last_step, run.p, JacobianProbe(None, v, None)).exact()[1]

    v = torch.randn(1, sum(lengths), model.config.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    row, numbers = torch.cat(parts, 1), said("segment_ids", lengths)
    found = products(rollout(model, Batch(row, row, **numbers), Plan(2, 2)), v)
    apart = [
        products(rollout(model, Batch(part, part), Plan(2, 2)), piece)
        for part, piece in zip(parts, v.split(lengths, 1), strict=True)
    ]
    assert gap(found, torch.cat(apart, 1)) < TOLERANCE * found.abs().max()
    blind = products(rollout(model, Batch(row, row), Plan(2, 2)), v)  # planted: nobody says that there are three
    assert gap(blind, found) > 1e-3


# on a cache


@st.composite
def cut_rows(draw: Callable[..., Any]) -> tuple[list[int], list[int]]:
    """Lengths of documents, and where the row that holds them is cut into passes."""
    lengths = draw(LENGTHS)
    return lengths, sorted(draw(st.sets(st.integers(1, max(sum(lengths) - 1, 1)), max_size=4)) - {sum(lengths)})


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=4)
@given(case_=cut_rows(), word=st.sampled_from(["position_ids", "segment_ids", "both"]))
@torch.no_grad()
def test_a_packed_row_in_passes_on_a_cache_equals_its_documents_apart(case, case_, word):
    """Documents may begin and end anywhere in a pass; a position that restarts after the tokens held begins one."""
    lengths, cuts = case_
    model = model_of(case)
    parts = documents(model, lengths)
    names = ["position_ids", "segment_ids"] if word == "both" else [word]
    row, ways = torch.cat(parts, 1), {k: v for name in names for k, v in said(name, lengths).items()}
    cache, found = lw.LoopCache(model.config), []
    for start, end in zip([0, *cuts], [*cuts, row.shape[1]], strict=True):
        given_ = {name: value[:, start:end] for name, value in ways.items()}
        found.append(model(row[:, start:end], past_key_values=cache, **given_).logits)
    assert gap(torch.cat(found, 1), torch.cat([model(part).logits for part in parts], 1)) < TOLERANCE


@pytest.mark.parametrize("word", ["cu_seq_lens", "seq_idx"])
@torch.no_grad()
def test_documents_counted_from_the_start_of_a_row_are_refused_after_cached_tokens(word):
    """Whether the first of them goes on with what the cache holds, nobody says."""
    model = model_of("ouro-1.4b")
    first, second = documents(model, [4, 3])
    cache = lw.LoopCache(model.config)
    model(first, past_key_values=cache)
    with pytest.raises(ValueError, match=f"{word}.*: after 4 cached tokens; say .* by position_ids or segment_ids") as caught:
        model(second, past_key_values=cache, **said(word, [1, 2]))
    assert "\n" not in str(caught.value) and cache.length == 4
    assert gap(model(second, past_key_values=cache, **said("position_ids", [3])).logits, model(second).logits) < TOLERANCE


@pytest.mark.parametrize("ends", [[1, 4, 7], [0, 5, 3, 7], [0], []])
def test_sums_of_lengths_that_are_none_are_refused(ends):
    (row,) = documents(model_of("ouro-1.4b"), [7])
    with pytest.raises(ValueError, match="cu_seq_lens_q: "):
        model_of("ouro-1.4b")(row, cu_seq_lens_q=torch.tensor(ends))


def test_words_that_disagree_are_refused():
    (row,) = documents(model_of("ouro-1.4b"), [7])
    other = said("seq_idx", [3, 4])
    with pytest.raises(ValueError, match="seq_idx: other documents than those of cu_seq_lens_q"):
        model_of("ouro-1.4b")(row, **said("cu_seq_lens", [4, 3]), **other)


WRITTEN = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}


@pytest.mark.parametrize(
    "options",
    [{}, {"use_cache": False}, {"num_beams": 2}, {"cache_implementation": "static"}, {"prompt_lookup_num_tokens": 2}]
    + [{"prefill_chunk_size": n} for n in (1, 2, 3, 4)],
)
@pytest.mark.parametrize("case", ["ouro-1.4b", "ouroboros-qwen2.5-3b"])
@torch.no_grad()
def test_generate_goes_on_with_the_last_document_of_a_packed_prompt(case, options):
    model = model_of(case)
    parts = [part.clamp(min=1) for part in documents(model, [4, 3])]
    beams = {name: value for name, value in options.items() if name == "num_beams"}
    alone = model.generate(parts[1], **WRITTEN, **beams)[0, 3:]
    found = model.generate(torch.cat(parts, 1), **said("position_ids", [4, 3]), **WRITTEN, **options)[0, 7:]
    assert torch.equal(found, alone)
