"""Openings: the question's tokens alone are counted, padding and batches change nothing, and an opening is attended to."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.inside.system_prompt_traces import cosines_to_the_end, limits_behind, plain_counts, settled
from loopwright.analysis.summary import as_list, summarise
from loopwright.analysis.trace.record import pad, trace_prompts
from loopwright.analysis.trace.trace import trace
from loopwright.metrics.limits import FIXED_POINT, LimitCounts, classify_limit, limit_counts
from tests.cases import noisy

DEPTH = 16
QUESTIONS = [[1, 2, 3, 4, 5], [6, 7], [9, 10, 11, 12, 13, 14]]


def looped(std: float = 0.3):
    return noisy("huginn-tiny", std=std)


def alone(model, opening, questions):
    """The definition, row by row: trace opening and question, classify all tokens, count those of the question."""
    counts = None
    for question in questions:
        one = trace(model, torch.tensor([[*opening, *question]]), DEPTH)
        labels = classify_limit(one.core("token_cosine")[0].double()[:-1].permute(1, 2, 0)).label[:, len(opening) :]
        more = limit_counts(labels[:, None])
        counts = more if counts is None else counts + more
    return counts


def same(a: LimitCounts, b: LimitCounts) -> bool:
    tensors = all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("tokens", "examples", "pairs"))
    return tensors and all(getattr(a, name) == getattr(b, name) for name in ("all_tokens", "all_examples", "moving_examples"))


@settings(max_examples=3)
@given(
    opening=st.lists(st.integers(0, 95), max_size=4),
    questions=st.lists(st.lists(st.integers(0, 95), min_size=1, max_size=6), min_size=1, max_size=4),
    batch=st.integers(1, 4),
)
def test_counts_are_those_of_the_questions_tokens_one_by_one(opening, questions, batch):
    model = looped(1.0)
    found = limits_behind(model, opening, questions, depth=DEPTH, batch=batch)
    assert found.all_tokens == sum(map(len, questions)) and found.all_examples == len(questions)
    assert same(found, alone(model, opening, questions))


@pytest.mark.parametrize("name", ["huginn-tiny", "ouro-1.4b-tiny", "retrofit-tinyllama-tiny"])
def test_the_series_are_those_of_a_trace_bit_for_bit(name):
    """`lw.trace` gathers much more on its way; what is taken of it here is the same, padding and all."""
    model = noisy(name, std=1.0)
    ids, mask = pad(QUESTIONS)
    whole = trace(model, ids, DEPTH, attention_mask=mask, collect=("residual", "fixed"))
    series = whole.core("token_cosine").double()[:, :-1].permute(2, 0, 3, 1)
    assert torch.equal(cosines_to_the_end(model.train(), ids, mask, DEPTH), series) and model.training
    ((limits, valid),) = settled(model, QUESTIONS, depth=DEPTH, batch=len(QUESTIONS))
    wanted = classify_limit(series)
    assert torch.equal(valid, whole.valid) and (limits.label != FIXED_POINT).any()
    assert all(torch.equal(getattr(limits, field.name), getattr(wanted, field.name)) for field in fields(wanted))


def test_without_an_opening_they_are_those_of_a_summary(tmp_path):
    model = looped(1.0)
    found = plain_counts(limits_behind(model, [], QUESTIONS, depth=DEPTH, batch=2))
    wanted = summarise(trace_prompts(model, QUESTIONS, tmp_path, depth=DEPTH, batch=2))["limits"]
    assert found["tokens"] == wanted["tokens"] and found["examples"] == wanted["examples"]
    assert found["moving_examples"] == wanted["moving_examples"]


def test_an_opening_is_attended_to():
    """Tokens that were masked away, as padding is, would leave the questions as they are without any."""
    model = looped(1.0)
    seen = [limits_behind(model, opening, QUESTIONS, depth=DEPTH).tokens.tolist() for opening in ([], [0] * 6, [5, 6, 7, 8, 9, 3])]
    assert len({tuple(counts) for counts in seen}) > 1


def test_plain_counts():
    counts = LimitCounts(torch.tensor([6, 1, 0, 1]), 8, torch.tensor([2, 1, 0, 1]), 2, 1, torch.zeros(4, 4))
    found = plain_counts(counts)
    assert found["moving_tokens"] == pytest.approx(0.25) and found["moving_examples"] == 0.5
    assert found["tokens"] == as_list(torch.tensor([0.75, 0.125, 0, 0.125])) and found["examples"] == [1.0, 0.5, 0.0, 0.5]
    assert found["labels"][FIXED_POINT] == "fixed point" and found["all_tokens"] == 8 and found["all_examples"] == 2


def test_progress_counts_questions():
    told = []
    limits_behind(looped(), [], QUESTIONS, depth=DEPTH, batch=2, progress=lambda done, total: told.append((done, total)))
    assert told == [(2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("questions", "given", "words"),
    [
        ([], {}, "prompts: none"),
        ([[1], []], {}, "number 2 has no tokens"),
        ([[1] * 127], {}, "has 129 tokens; the model's context holds 128"),
        ([[1]], {"depth": 4}, "depth: 4; allowed: at least 5"),
        ([[1]], {"batch": 0}, "batch: 0; allowed: at least 1"),
    ],
)
def test_bad_input(questions, given, words):
    with pytest.raises(ValueError, match=words):
        limits_behind(looped(), [1, 2], questions, **{"depth": DEPTH, **given})


def test_a_dense_model_is_refused():
    with pytest.raises(ValueError, match="the model is dense"):
        limits_behind(looped().without_adapters(), [1], QUESTIONS)


def test_every_token_has_a_label_and_padding_is_told_apart():
    model = looped()
    (limits, valid), (last, real) = settled(model, QUESTIONS, depth=DEPTH, batch=2)
    assert valid.sum(1).tolist() == [5, 2] and real.sum(1).tolist() == [6]
    assert limits.label.shape == (model.config.core_layers, 2, 5) and last.label.shape == (model.config.core_layers, 1, 6)
    ((whole, all_real),) = settled(model, QUESTIONS, depth=DEPTH, batch=3)
    assert torch.equal(whole.label[:, 1][:, all_real[1]], limits.label[:, 1][:, valid[1]])
