"""Limits: each is named, with its option, where it is hit."""

from __future__ import annotations

import pytest

from loopwright.serving.schema import Refusal, ServerLimits

LIMITS = ServerLimits(body_bytes=10, new_tokens=5, choices=4, depth=3, queue=2)


def test_each_limit_admits_what_it_says_and_names_itself_beyond() -> None:
    LIMITS.check_body(10)
    LIMITS.check_new_tokens("max_tokens", 5)
    LIMITS.check_choices(2, 2)
    LIMITS.check_depth(3, 3)
    LIMITS.check_queue(2, 4, 4, 1.0)
    for call, status, named in (
        (lambda: LIMITS.check_body(11), 413, "--max-body"),
        (lambda: LIMITS.check_new_tokens("max_completion_tokens", 6), 400, "max_completion_tokens: 6 .*--max-new-tokens"),
        (lambda: LIMITS.check_choices(1, 5), 400, "n: 5 is more than 4 answers.*--max-choices"),
        (lambda: LIMITS.check_choices(3, 2), 400, "n: 2 for each of 3 prompts"),
        (lambda: LIMITS.check_depth(4, 3), 400, "depth: 4 .*--max-depth"),
        (lambda: LIMITS.check_queue(3, 4, 4, 1.0), 429, "queue: 0 of 2 sequences wait .*--max-queue"),
    ):
        with pytest.raises(Refusal, match=named) as refused:
            call()
        assert refused.value.status == status


@pytest.mark.parametrize(("seconds", "wait"), [(0.0, "1"), (2.5, "4"), (1e9, "60")])
def test_retry_after_is_what_the_queue_takes(seconds: float, wait: str) -> None:
    with pytest.raises(Refusal) as refused:
        LIMITS.check_queue(1, 6, 4, seconds)
    assert refused.value.headers == {"retry-after": wait}


def test_a_refusal_is_one_bounded_line() -> None:
    body = Refusal("a\nb\x1b" + "c" * 5000, status=404, param="x", code="y").body()["error"]
    assert body["message"].startswith("a b\\x1bccc") and len(body["message"]) == 1000
    assert (body["type"], body["param"], body["code"]) == ("not_found_error", "x", "y")
    assert Refusal("x", status=503).body()["error"]["type"] == "server_error"


def test_limits_that_admit_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"choices must be a whole number >= 1 \(got 0\)"):
        ServerLimits(choices=0)
    assert ServerLimits(queue=0).queue == 0
