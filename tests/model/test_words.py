"""What trainers and collators hand over beside a model's own arguments: heeded or refused, never passed by."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DataCollatorWithFlattening

import loopwright as lw
from loopwright.model.causal_lm import LOSS, TOKENS, read_extra
from tests.cases import TINY_CASES, UNLIKE, gap, noisy


def documents(model: lw.LoopedForCausalLM, *lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, model.config.vocab_size, (1, n), generator=generator) for n in lengths]


def flattened(parts: list[Tensor]) -> dict[str, Tensor]:
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    return collate([{"input_ids": part[0].tolist(), "labels": part[0].tolist()} for part in parts])


@pytest.mark.parametrize("name", TINY_CASES)
@pytest.mark.parametrize("words", ["position_ids", "cu_seq_lens", "seq_idx", "both"])
def test_rows_of_a_collator_equal_their_documents_apart(name, words):
    """Logits and gradients of a row that says so by positions, by sums of lengths, or by both."""
    model = noisy(name)
    parts = documents(model, 5, 1, 4)
    row = flattened(parts)
    kept = {k: v for k, v in row.items() if words == "both" or k in ("input_ids", "labels") or k.startswith(words[:6])}
    assert len(kept) > 2
    packed = model(**kept)
    alone = [model(part) for part in parts]
    assert gap(packed.logits, torch.cat([one.logits for one in alone], 1)) < 1e-5
    targets = sum(part.shape[1] - 1 for part in parts)
    apart = sum(model(part, labels=part).loss * (part.shape[1] - 1) for part in parts if part.shape[1] > 1) / targets
    assert gap(packed.loss, apart) < 1e-5
    found, wanted = (
        [*torch.autograd.grad(x, [w for w in model.parameters() if w.requires_grad], allow_unused=True)]
        for x in (packed.loss, apart)
    )
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None) and (a is None or gap(a, b) < 1e-4 * max(1.0, b.abs().max().item()))
    blind = model(row["input_ids"]).logits  # planted: nobody says that there are three
    assert gap(blind, packed.logits) > 1e-2


def test_the_loss_is_a_mean_over_the_items_of_all_batches():
    """So that accumulated gradients are those of one large batch, however many targets each part has."""
    model = noisy("ouro-1.4b-tiny")
    rows = documents(model, 4, 9)
    labels = [rows[0].clone(), rows[1].masked_fill(torch.arange(9) < 5, -100)]
    items = sum(int((one[:, 1:] != -100).sum()) for one in labels)
    parts = [model(ids, labels=one, num_items_in_batch=torch.tensor(items)).loss for ids, one in zip(rows, labels, strict=True)]
    padded = torch.cat([torch.nn.functional.pad(rows[0], (0, 5)), rows[1]])
    whole = torch.cat([torch.nn.functional.pad(labels[0], (0, 5), value=-100), labels[1]])
    mask = torch.tensor([[1] * 4 + [0] * 5, [1] * 9])
    assert gap(parts[0] + parts[1], model(padded, attention_mask=mask, labels=whole).loss) < 1e-5
    assert gap(parts[0], model(rows[0], labels=labels[0], num_items_in_batch=items).loss) == 0


def test_labels_may_be_shifted_already():
    model = noisy("ouro-1.4b-tiny")
    (ids,) = documents(model, 6)
    shifted = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    assert gap(model(ids, shift_labels=shifted).loss, model(ids, labels=ids).loss) < 1e-6
    assert gap(model(ids, labels=ids, shift_labels=shifted).loss, model(ids, labels=ids).loss) < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"select": "expected"}, {"output_steps": True}])
def test_logits_of_named_places(options):
    model = noisy("ouro-1.4b-tiny")
    (ids,) = documents(model, 6)
    places = torch.tensor([4, 0, 2])
    full = model(ids, **options).logits
    assert gap(model(ids, logits_to_keep=places, **options).logits, full[:, places]) < 1e-6
    order = torch.tensor([5, 4, 3, 2, 1, 0])  # as many as there are
    out = model(ids, logits_to_keep=order, output_hidden_states=True, **options)
    assert gap(out.logits, full[:, order]) < 1e-6
    assert gap(out.hidden_states[-1], model(ids, output_hidden_states=True, **options).hidden_states[-1]) == 0
    with pytest.raises(ValueError, match="logits_to_keep"):
        model(ids, labels=ids, logits_to_keep=places)


@torch.no_grad()
def test_what_says_nothing_changes_nothing():
    model = noisy("ouro-1.4b-tiny")
    (ids,) = documents(model, 6)
    plain = model(ids).logits
    empty = dict.fromkeys((*TOKENS, *LOSS))
    assert torch.equal(model(ids, **empty).logits, plain)
    assert torch.equal(model(ids, token_type_ids=torch.zeros_like(ids), cache_position=torch.arange(6)).logits, plain)
    cache = lw.LoopCache(model.config)
    model(ids[:, :4], past_key_values=cache, cache_position=torch.arange(4))
    later = model(ids[:, 4:], past_key_values=cache, cache_position=torch.tensor([4, 5])).logits
    assert gap(later, plain[:, 4:]) < 1e-5


@pytest.mark.parametrize(
    ("said", "error", "line"),
    [
        ({"token_type_ids": torch.tensor([[0, 1, 1]])}, ValueError, "token_type_ids: not all 0; a looped model has no token types"),
        ({"cache_position": torch.tensor([4, 5, 6])}, ValueError, r"cache_position: \[4, 5, 6\]; allowed: 3 places from 0 on"),
        (
            {"cu_seq_lens_q": torch.tensor([0, 2])},
            ValueError,
            r"cu_seq_lens_q: \[0, 2\] for 1 rows of 3 tokens; allowed: sums",
        ),
        ({"cu_seq_lens_k": torch.tensor([0, 3])}, ValueError, "cu_seq_lens_k: not cu_seq_lens_q"),
        ({"cu_seq_lens_q": torch.tensor([0, 3]), "cu_seq_lens_k": torch.tensor([0, 1, 3])}, ValueError, "cu_seq_lens_k: not"),
        ({"head_mask": torch.ones(2)}, TypeError, "forward: 'head_mask' is no argument of a looped model; beside its own it takes"),
    ],
)
def test_what_cannot_be_heeded_is_refused_by_name(said, error, line):
    model = noisy("ouro-1.4b-tiny")
    for run in (model, model.model):
        with pytest.raises(error, match=line) as caught:
            run(torch.tensor([[1, 2, 3]]), **said)
        assert "\n" not in str(caught.value)
    with pytest.raises(TypeError, match="'shift_labels' is no argument"):
        model.model(torch.tensor([[1, 2, 3]]), shift_labels=torch.tensor([[2, 3, -100]]))


COMPILED = ["ouro-1.4b-tiny", *(pytest.param(f"{name}-tiny", marks=pytest.mark.slow) for name in sorted(UNLIKE - {"ouro-1.4b"}))]


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_pass_reads_no_values(name):
    model = noisy(name)
    row = flattened(documents(model, 3, 4))
    eager = model(**row)
    compiled = torch.compile(model, fullgraph=True, backend="eager")(**{k: v for k, v in row.items() if not k.startswith("max")})
    assert gap(compiled.logits, eager.logits) < 1e-5
    assert read_extra({}, None, 0).segment_ids is None


class InOrder(torch.nn.Module):
    """A model that takes the words of one call in order, as `torch.jit.trace` has them."""

    def __init__(self, model: lw.LoopedForCausalLM, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Tensor) -> Tensor:
        return self.model(use_cache=False, **dict(zip(self.names, values, strict=True))).logits


@torch.no_grad()
def test_a_traced_pass_reads_no_values():
    """What was recorded of one row of documents is right for another."""
    model = noisy("ouro-1.4b-tiny", depth=2)

    def row(*lengths: int) -> dict[str, Tensor]:
        ids, ends = torch.cat(documents(model, *lengths), 1), torch.tensor([0, *lengths]).cumsum(0)
        numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]
        words = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "seq_idx": numbers, "token_type_ids": 0 * ids}
        return {"input_ids": ids, **words, "cache_position": torch.arange(7)}

    other = row(5, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = torch.jit.trace(InOrder(model, list(other)), tuple(row(3, 4).values()), check_trace=False)
    assert not [warning for warning in caught if Path(warning.filename).name == "words.py"]
    assert gap(traced(*other.values()), model(**other).logits) < 1e-5
    assert gap(model(**other).logits, model(other["input_ids"]).logits) > 1e-2
