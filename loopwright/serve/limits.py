"""What a request may ask for, and what a client is told where it asks for more: a status, one line, the name of the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loopwright.exits import one_line

LONGEST_LINE, LONGEST_NAME = 1000, 100  # characters of a message and of a field in it; hostile requests hold longer names
MOST_TOLD = 2**19  # words beside the tokens of one answer: about 30 MB of JSON
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refusal(Exception):  # noqa: N818 - not an error of ours
    """Why a request is not served, as the client sees it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(one_line(message)[:LONGEST_LINE])
        self.param = None if param is None else one_line(param)[:LONGEST_NAME]
        self.status, self.code, self.headers = status, code, dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Returns OpenAI's form of an error."""
        kind = "server_error" if self.status >= 500 else KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Limits:
    """The most that one request, and all that wait together, may take. Each is named, with its option, where it is hit."""

    body_bytes: int = 2**20
    new_tokens: int = 4096
    choices: int = 64  # prompts times n
    depth: int | None = None  # None: what the model allows
    queue: int = 64  # sequences that wait beside those that run

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name == "queue" else 1
            if value is not None and value < least:
                raise ValueError(f"{name} must be a whole number >= {least} (got {value})")

    def check_body(self, size: int) -> None:
        """Refuses a body of more bytes than allowed."""
        if size > self.body_bytes:
            raise Refusal(
                f"body: more than {self.body_bytes:,} bytes, this server's limit (--max-body)", status=413, code="body_too_large",
                headers={"connection": "close"},
            )  # fmt: skip

    def check_choices(self, prompts: int, n: int) -> None:
        """Refuses more answers in one request than allowed."""
        if prompts * n > self.choices:
            at = f"{n}" if prompts == 1 else f"{n} for each of {prompts:,} prompts"
            raise Refusal(f"n: {at} is more than {self.choices} answers, this server's limit (--max-choices)", param="n")

    def check_new_tokens(self, field: str, count: int) -> None:
        """Refuses a longer answer than allowed."""
        if count > self.new_tokens:
            raise Refusal(
                f"{field}: {count:,} is more than {self.new_tokens:,}, this server's limit (--max-new-tokens)", param=field
            )

    def check_told(self, tokens: int, words: int, field: str) -> None:
        """Refuses an answer that would tell of too many likeliest tokens: all of it is kept until it is sent."""
        if tokens * words > MOST_TOLD:
            raise Refusal(
                f"{field}: {tokens:,} tokens of prompts and answers with {words} words each are more than {MOST_TOLD:,}; ask for "
                "fewer likeliest tokens, or send fewer prompts",
                param=field,
            )  # fmt: skip

    def check_depth(self, depth: int, most: int) -> None:
        """Refuses more steps than allowed."""
        if depth > most:
            raise Refusal(f"depth: {depth:,} is more than {most:,}, this server's limit (--max-depth)", param="depth")

    def check_queue(self, coming: int, held: int, rows: int, seconds: float) -> None:
        """Refuses what finds the queue full; `seconds` is what a request took of late."""
        if held + coming > rows + self.queue:
            wait = min(max(math.ceil(seconds * (held / rows)), 1), 60)
            raise Refusal(
                f"queue: {max(held - rows, 0)} of {self.queue} sequences wait (--max-queue), and {coming} more do not fit; "
                f"try again in {wait} s",
                status=429, code="queue_full", headers={"retry-after": str(wait)},
            )  # fmt: skip
