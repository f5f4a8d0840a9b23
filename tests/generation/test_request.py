"""The handle of a request: tokens as they come, one end, errors for its own caller; and where it stands, in tokens and steps."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.rows import AsyncHostCopy, Running, SampledTokens
from loopwright.generation.scores import TokenScore
from loopwright.model.keys.pool import Row
from tests.generation.tiny import byte_tokenizer

BYTES, LETTERS = byte_tokenizer(), st.sampled_from("ab é漢.")


def request_of(**options: object) -> Request:
    return Request(RequestOptions((1, 2), 3, 4, **options))  # type: ignore[arg-type]


def test_tokens_come_while_others_wait() -> None:
    request, seen = request_of(), []

    def read() -> None:
        seen.extend(request)

    reader = threading.Thread(target=read)
    reader.start()
    for token in (5, 6, 7, 8):
        request.push(token, 3)
    reader.join(5)
    assert seen == [5, 6, 7, 8] == list(request)
    result = request.result()
    assert (result.tokens, result.depths, result.finish_reason, result.logprobs) == ([5, 6, 7, 8], [3] * 4, "length", None)


def test_an_end_token_stops() -> None:
    request = request_of(ends=frozenset({6}), logprobs=True)
    request.push(5, 3, TokenScore(-1.0))
    assert not request.done
    request.push(6, 3, TokenScore(-2.0))
    assert request.result().finish_reason == "stop" and request.result().logprobs == [-1.0, -2.0]


def test_stop_strings_end_and_are_cut_off() -> None:
    def decode(ids: list[int]) -> str:
        return "".join(chr(96 + i) for i in ids)

    request = Request(RequestOptions((1,), 1, 9, stop=("zz", "bc")), decode)
    for token in (1, 2):
        request.push(token, 1)
        assert not request.done
    request.push(3, 1)
    result = request.result()
    assert (result.text, result.tokens, result.finish_reason) == ("a", [1, 2, 3], "stop")


def test_stop_strings_are_looked_for_behind_the_least_tokens() -> None:
    request = Request(RequestOptions((1,), 1, 9, stop=("ab",), min_new_tokens=3), lambda ids: "".join(chr(96 + i) for i in ids))
    for token in (1, 2, 1, 2, 1, 2):  # the first is whole before the third token, and the second begins there
        if not request.done:
            request.push(token, 1)
    assert (request.text, len(request.tokens), request.finish_reason) == ("abab", 6, "stop")


@settings(max_examples=40)
@given(
    st.text(st.sampled_from("ab é漢."), max_size=12),
    st.lists(st.text(st.sampled_from("ab é漢."), min_size=1, max_size=3), max_size=2),
)
def test_stop_strings_end_at_the_token_that_completes_them(text: str, stop: list[str]) -> None:
    tokens = BYTES(text).input_ids
    grown = [BYTES.decode(tokens[: end + 1]) for end in range(len(tokens))]
    expected = next((end for end, so_far in enumerate(grown) if any(one in so_far for one in stop)), None)
    request = Request(RequestOptions((1,), 1, 99, stop=tuple(stop)), BYTES.decode)
    ended = next((end for end, token in enumerate(tokens) if request.push(token, 1) or request.done), None)
    assert ended == expected and (ended is None or request.finish_reason == "stop")


def test_cancelling_twice_changes_nothing() -> None:
    request = request_of()
    request.push(5, 3)
    assert request.cancel() and not request.cancel()
    request.finish("cancelled")
    request.finish("length")
    assert request.result().finish_reason == "cancelled" and request.result().tokens == [5]
    assert not request.cancel()


def test_an_error_reaches_its_caller() -> None:
    def fails(token: int) -> None:
        raise RuntimeError("mine")

    request = request_of(on_token=fails)
    request.push(5, 3)
    with pytest.raises(RuntimeError, match="mine"):
        request.result()
    with pytest.raises(RuntimeError, match="mine"):
        list(request)
    assert request.finish_reason == "error"


def test_waiting_has_an_end() -> None:
    with pytest.raises(TimeoutError, match=r"not done after 0.01 seconds \(0 tokens so far\)"):
        request_of().result(0.01)


def test_a_request_is_counted_as_done_before_its_end_is_seen() -> None:
    """Who sees the end may ask again at once, and is not counted twice."""
    seen: list[bool] = []
    request = Request(request_of().options, on_done=lambda: seen.append(request.done))
    request.finish("cancelled")
    assert seen == [False] and request.done


def test_the_end_is_told_once_and_a_failure_there_is_the_callers() -> None:
    told: list[int] = []

    def end() -> None:
        told.append(1)
        raise RuntimeError("mine too")

    request = request_of(on_done=end)
    for token in (5, 6, 7, 8):
        request.push(token, 3)
    request.finish("cancelled")
    assert told == [1] and request.finish_reason == "length"
    with pytest.raises(RuntimeError, match="mine too"):
        request.result()


def test_what_is_new_is_read_without_waiting() -> None:
    request = request_of(logprobs=True)
    assert request.since(0).tokens == [] and not request.since(0).done
    for token in (5, 6, 7, 8):
        request.push(token, 3, TokenScore(-token))
    fresh = request.since(2)
    assert (fresh.tokens, fresh.depths, [one.logprob for one in fresh.scores], fresh.done) == ([7, 8], [3, 3], [-7, -8], True)


def running(asked: RequestOptions, **fields: object) -> Running:
    return Running(Request(asked), Row(20, asked.depth, asked.readings, {}, ("core",)), 0, asked.depth, None, **fields)  # type: ignore[arg-type]


def test_a_plain_request_prefills_its_prompt_and_runs_to_its_depth() -> None:
    run = running(RequestOptions((1, 2, 3), 4, 5), drawn=2)
    assert (run.to_prefill, run.base, run.offset, run.limit, run.drafting) == (3, 4, 4, 4, False)


def test_drafts_stand_after_what_is_verified() -> None:
    options = RequestOptions((1, 2, 3), 4, 6, draft_depth=2, draft_tokens=3)
    now = {"draft_depth": 2, "draft_tokens": 3}  # of the round, as the scheduler sets them
    assert (running(options, drawn=1, **now).limit, running(options, drawn=1, **now).drafting) == (2, True)
    assert (running(options, drawn=1).limit, running(options, drawn=1).drafting) == (4, False)  # a round without drafts
    second = running(options, drawn=1, drafts=[7], **now)
    assert (second.base, second.offset, second.drafting) == (3, 4, True)
    third = running(options, drawn=1, drafts=[7, 8], **now)  # the third token verifies all three
    assert (third.offset, third.limit, third.drafting) == (5, 4, False)
    assert not running(options, drawn=5, **now).drafting  # one token is left: nothing to draft


def test_inside_a_prompt_the_present_token_is_one_of_it() -> None:
    run = running(RequestOptions((1, 2, 3), 4, 5))
    assert [(run.in_prompt, run.offset) for run.prefilled in range(4)] == [(True, 0), (True, 1), (True, 2), (False, 2)]


def test_what_was_fetched_is_what_it_was() -> None:
    numbers = torch.arange(3)
    drawn = SampledTokens([], AsyncHostCopy(numbers, numbers > 1), None, [], places=[2, 0])
    numbers.zero_()  # the next tick writes to the same place
    assert drawn.read() == [[2, 0], [True, False]]
