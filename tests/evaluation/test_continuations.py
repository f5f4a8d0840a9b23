"""Scores of continuations at all depths from one pass = those of a pass for each pair and depth."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import loopwright as lw
from loopwright.evaluation import harness as continuations
from loopwright.evaluation.exits import _score
from loopwright.evaluation.harness import Pair, score_continuations
from tests.cases import noisy, some
from tests.generation.tiny import DENSE

PRESETS = some(["huginn-tiny", "ouro-1.4b-tiny"], ["huginn-tiny"])
TOKENS = st.lists(st.integers(0, 30), min_size=1, max_size=6)


@pytest.fixture(scope="module", params=PRESETS)
def model(request: pytest.FixtureRequest) -> lw.LoopedForCausalLM:
    return noisy(request.param).double()


@torch.no_grad()
def alone(model: lw.LoopedForCausalLM, pair: Pair, depth: int | None, longest: int) -> tuple[float, bool]:
    context, continuation = pair
    ids = [*context, *continuation][-longest - 1 : -1]
    logs = model(torch.tensor([ids]), depth=depth).logits[0, -len(continuation) :].log_softmax(-1)
    wanted = torch.tensor(continuation)
    return logs.gather(1, wanted[:, None]).sum().item(), bool((logs.argmax(-1) == wanted).all())


@pytest.mark.long
@given(
    pairs=st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=4),
    depths=st.sets(st.integers(1, 3), min_size=1),
    longest=st.integers(6, 12),
    batch=st.one_of(st.none(), st.integers(1, 4)),
)
@example(pairs=[([1, 2, 3, 4, 5, 6], [7, 8, 9]), ([1], [2])], depths={1, 3}, longest=6, batch=2)  # too long, and a depth left out
@settings(max_examples=4)
def test_one_pass_is_a_pass_for_each_pair_and_depth(
    model: lw.LoopedForCausalLM, pairs: list[Pair], depths: set[int], longest: int, batch: int | None
) -> None:
    pairs = [*pairs, (pairs[0][0], [5]), (pairs[0][0], [6])]  # answers of one token after the same context
    scores, greedy = score_continuations(model, pairs, list(depths), longest=longest, batch=batch)
    for row, pair in enumerate(pairs):
        for column, depth in enumerate(sorted(depths)):
            value, likeliest = alone(model, pair, depth, longest)
            assert scores[row, column].item() == pytest.approx(value, abs=1e-9) and greedy[row, column].item() == likeliest


def test_what_greedy_decoding_gives_is_greedy(model: lw.LoopedForCausalLM) -> None:
    prompt = torch.tensor([[3, 4, 5]])
    told = model.generate(prompt, max_new_tokens=3, do_sample=False, depth=3, eos_token_id=None, pad_token_id=0)[0, 3:].tolist()
    pairs = [([3, 4, 5], told), ([3, 4, 5], [*told[:2], (told[2] + 1) % 96])]
    assert score_continuations(model, pairs, [3])[1].tolist() == [[True], [False]]


def test_logits_that_are_all_the_same_give_nothing_right(model: lw.LoopedForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm that overflowed leaves zeros, of which token 0 is no answer."""
    monkeypatch.setattr(type(model), "head", lambda self, x, p: torch.zeros(*x.shape[:-1], self.config.vocab_size))
    assert not score_continuations(model, [([3], [0]), ([3, 4], [0, 0])], [1])[1].any()
    assert not _score(torch.zeros(2, 5), torch.tensor([0, 1]))[1].any()


def test_a_head_read_in_blocks_is_the_head_read_at_once(model: lw.LoopedForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [([1, 2], [3, 4, 5]), ([1, 2], [7]), ([1, 2], [8]), ([9], [1, 2])]
    whole = score_continuations(model, pairs, [1, 2])
    monkeypatch.setattr(continuations, "LOGITS_AT_ONCE", {"cpu": 2 * model.config.vocab_size})
    blocks = score_continuations(model, pairs, [1, 2])
    assert torch.allclose(whole[0], blocks[0], atol=1e-12) and torch.equal(whole[1], blocks[1])


def test_rows_that_pairs_share_run_once_and_a_depth_costs_no_pass(
    model: lw.LoopedForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    embed = model.embed
    monkeypatch.setattr(model, "embed", lambda ids, **options: rows.append(len(ids)) or embed(ids, **options))
    score_continuations(model, [([1, 2], [token]) for token in range(20)], [1, 2, 4])
    assert rows == [1]


def test_a_dense_model_has_one_depth() -> None:
    dense = noisy("ouroboros-qwen2.5-3b-tiny", **DENSE).double()
    scores, _ = score_continuations(dense, [([1, 2], [3, 4])], [1])
    assert scores.item() == pytest.approx(alone(dense, ([1, 2], [3, 4]), None, 64)[0], abs=1e-9)


@pytest.mark.parametrize(
    ("pair", "said"), [(([], [1]), "0 tokens of context"), (([1], []), "0 to score"), (([1], [2] * 9), "9 to")]
)
def test_what_cannot_be_scored_is_told(pair: Pair, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        score_continuations(noisy("huginn-tiny"), [pair], [1], longest=8)


def test_a_model_in_training_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="training mode"):
        score_continuations(noisy("huginn-tiny").train(), [([1], [2])], [1])
