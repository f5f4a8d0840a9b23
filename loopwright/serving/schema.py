"""What a request may ask for: one table of fields each for chat, text and tokenizing, the server's limits, and refusals.

A field that is not in the table is refused by name; null counts as left out, because clients send it for what they do not set. A
refusal tells the client a status, one line and the name of the field.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from loopwright.errors import one_line
from loopwright.generation.constraints import checked_kind
from loopwright.generation.exit_rules import parse_exit
from loopwright.schema import is_number, is_whole, refuse_unknown
from loopwright.untrusted import NotPlainError, parse_json, shown

LONGEST_LINE, LONGEST_NAME = 1000, 100  # characters of a message and of a field in it; hostile requests hold longer names
MOST_REPORTED = 2**19  # words beside the tokens of one answer: about 30 MB of JSON
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
MOST_TOP = 20  # likeliest tokens beside each, as OpenAI has it
MOST_STOPS, LONGEST_STOP, MOST_BIASES, LARGEST_BIAS = 16, 200, 1024, 100
WHOLE = 2**63
ROLES = ("system", "developer", "user", "assistant")

Check = Callable[[str, Any], Any]


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
class ServerLimits:
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

    def check_reported(self, tokens: int, words: int, field: str) -> None:
        """Refuses an answer that would tell of too many likeliest tokens: all of it is kept until it is sent."""
        if tokens * words > MOST_REPORTED:
            raise Refusal(
                f"{field}: {tokens:,} tokens of prompts and answers with {words} words each are more than {MOST_REPORTED:,}; ask "
                "for fewer likeliest tokens, or send fewer prompts",
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


def _refuse(name: str, value: Any, allowed: str) -> Refusal:
    return Refusal(f"{name}: {shown(value)}; allowed: {allowed}", param=name)


def whole(low: int, high: int = WHOLE) -> Check:
    """Returns the check of a whole number."""

    def check(name: str, value: Any) -> int:
        if not is_whole(value, low, high):
            most = f" and at most {high:,}" if high < WHOLE else ""
            raise _refuse(name, value, f"a whole number of at least {low}{most}")
        return value

    return check


def number(low: float, high: float) -> Check:
    """Returns the check of a finite number."""

    def check(name: str, value: Any) -> float:
        if not is_number(value, low, high):
            raise _refuse(name, value, f"a number from {low:g} to {high:g}")
        return value

    return check


def flag(name: str, value: Any) -> bool:
    """Checks a truth value."""
    if not isinstance(value, bool):
        raise _refuse(name, value, "true or false")
    return value


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Checks a mapping."""
    if not isinstance(value, Mapping):
        raise _refuse(name, value, "a mapping")
    return value


def only(allowed: Any) -> Check:
    """Returns the check of a field that may say one thing alone."""

    def check(name: str, value: Any) -> Any:
        if value != allowed or isinstance(value, bool) != isinstance(allowed, bool):
            raise _refuse(name, value, repr(allowed))
        return value

    return check


def _no_tools(*allowed: Any) -> Check:
    """Returns the check of a field about tools: it may say that there are none."""

    def check(name: str, value: Any) -> None:
        if value not in allowed:
            raise Refusal(f"{name}: {shown(value)}; there are no tools here, so leave it out", param=name)

    return check


def text(name: str, value: Any) -> str:
    """Checks a string."""
    if not isinstance(value, str):
        raise _refuse(name, value, "text")
    return value


def _top_k(name: str, value: Any) -> int:
    return max(whole(-1)(name, value), 0)  # 0 and -1: off, as other servers have it


def _ids(name: str, value: Any) -> list[int]:
    if not isinstance(value, list) or not all(is_whole(token) for token in value):
        raise _refuse(name, value, "a list of token ids")
    return value


def _stop(name: str, value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) and 0 < len(one) <= LONGEST_STOP for one in stops):
        raise _refuse(name, value, f"a string, or a list of strings, of 1 to {LONGEST_STOP} characters each")
    if len(stops) > MOST_STOPS:
        raise _refuse(name, f"{len(stops)} strings", f"at most {MOST_STOPS}")
    return stops


def _bias(name: str, value: Any) -> dict[int, float]:
    allowed = f"at most {MOST_BIASES} token ids with numbers from -{LARGEST_BIAS} to {LARGEST_BIAS}"
    if not isinstance(value, Mapping) or len(value) > MOST_BIASES:
        raise _refuse(name, value, allowed)
    bias: dict[int, float] = {}
    for token, amount in value.items():  # JSON has no names but strings
        if not (token.isascii() and token.isdigit() and len(token) < 19):
            raise _refuse(name, token, allowed)
        bias[int(token)] = number(-LARGEST_BIAS, LARGEST_BIAS)(f"{name}.{token}", amount)
    return bias


def _prompts(name: str, value: Any) -> list[str | list[int]]:
    allowed = "text, a list of token ids, or a list of either"
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise _refuse(name, value, allowed)
    if all(isinstance(one, int) for one in value):
        return [_ids(name, value)]
    if not all(isinstance(one, str | list) for one in value):
        raise _refuse(name, value, allowed)
    return [one if isinstance(one, str) else _ids(name, one) for one in value]


def _messages(name: str, value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise _refuse(name, value, "a list of messages with role and content")
    return [_message(f"{name}[{place}]", message) for place, message in enumerate(value)]


def _message(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _refuse(name, value, "a message with role and content")
    given = {key: one for key, one in value.items() if one is not None}
    for key, without in (("tool_calls", []), ("annotations", []), ("function_call", None)):
        if key in given:
            _no_tools(without)(f"{name}.{key}", given.pop(key))
    if given.get("role") in ("tool", "function"):
        _no_tools()(f"{name}.role", given["role"])
    refuse_unknown(name, given, ("role", "content", "name"))
    if given.get("role") not in ROLES:
        raise _refuse(f"{name}.role", given.get("role"), ", ".join(ROLES))
    # an assistant's may be empty: so it comes back from a client that was sent no text
    content = given.get("content", "" if given["role"] == "assistant" else None)
    if isinstance(content, list):  # OpenAI's form in parts, of which text is the only one here
        parts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        texts = [part for part in parts if isinstance(part, str)]
        content = "".join(texts) if len(texts) == len(content) else None
    if not isinstance(content, str):
        raise _refuse(f"{name}.content", value.get("content"), 'text, or a list of {"type": "text", "text": …}')
    role = "system" if given["role"] == "developer" else given["role"]
    return {"role": role, "content": content} | ({"name": text(f"{name}.name", given["name"])} if given.get("name") else {})


def _stream_options(name: str, value: Any) -> bool:
    if not isinstance(value, Mapping):
        raise _refuse(name, value, '{"include_usage": true}')
    refuse_unknown(name, value, ("include_usage", "include_obfuscation"))
    only(False)(f"{name}.include_obfuscation", value.get("include_obfuscation", False))  # noise that hides lengths: there is none
    return flag(f"{name}.include_usage", value.get("include_usage", False))


def _exit(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return parse_exit(value)
    if not isinstance(value, Mapping):
        raise _refuse(name, value, 'a rule such as "change:0.05" or {"kind": "change", "threshold": 0.05}')
    for option, amount in value.items():
        if isinstance(amount, float) and not math.isfinite(amount):
            raise _refuse(f"{name}.{option}", amount, "a finite number")
    return dict(value)


def _keys(name: str, value: Any) -> str:
    if value not in ("backfill", "copy"):
        raise _refuse(name, value, "backfill, copy")
    return value


def _response_format(name: str, value: Any) -> dict[str, Any] | None:
    """Returns the constraint of OpenAI's field; None for plain text."""
    if not isinstance(value, Mapping) or value.get("type") not in ("text", "json_object", "json_schema"):
        raise _refuse(name, value, 'a mapping of type "text", "json_object" or "json_schema"')
    refuse_unknown(name, value, ("type", "json_schema") if value["type"] == "json_schema" else ("type",))
    if value["type"] != "json_schema":
        return None if value["type"] == "text" else {"json": {"type": "object"}}
    inner, field = value.get("json_schema"), f"{name}.json_schema"
    if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping):
        raise _refuse(field, inner, '{"name": …, "schema": …}')
    # every answer keeps to its schema, strict or not
    refuse_unknown(field, inner, ("name", "description", "schema", "strict"))
    return {"json": inner["schema"]}


def _structured(name: str, value: Any) -> dict[str, Any]:
    """Returns the constraint of vLLM's field, whose kinds are the engine's."""
    try:
        kind, form = checked_kind(value)
    except ValueError as error:
        raise Refusal(str(error).replace("constrain", name, 1), param=name) from None
    return {kind: form}


# what goes to the engine as it is
ENGINE: dict[str, Check] = {
    "temperature": number(0, 1e6),
    "top_p": number(0, 1),
    "top_k": _top_k,
    "min_p": number(0, 1),
    "repetition_penalty": number(1e-6, 1e6),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "logit_bias": _bias,
    "depth": whole(1),
    "exit": _exit,
    "exit_keys": _keys,
    "draft_depth": whole(1),
    "draft_tokens": whole(2, 64),
    "state_seed": whole(0),
    "step_tokens": whole(0, MOST_TOP),
    "ignore_eos": flag,
    "skip_special_tokens": flag,
}
# what cannot change a token is taken and not read
UNREAD: dict[str, Check] = {
    "user": text, "store": flag, "metadata": mapping, "service_tier": text, "safety_identifier": text, "prompt_cache_key": text,
    "tools": _no_tools([]), "functions": _no_tools([]), "tool_choice": _no_tools("none", "auto"),
    "function_call": _no_tools("none", "auto"), "parallel_tool_calls": flag,
}  # fmt: skip
SHARED: dict[str, Check] = {
    **ENGINE,
    **UNREAD,
    "model": text,
    "max_tokens": whole(0),
    "min_tokens": whole(0),
    "stop": _stop,
    "stop_token_ids": _ids,
    "n": whole(1, 2**20),
    "seed": whole(-WHOLE, WHOLE - 1),
    "stream": flag,
    "stream_options": _stream_options,
    "return_depth_used": flag,
    "return_token_ids": flag,
    "response_format": _response_format,
    "structured_outputs": _structured,
}
TEXT = {**SHARED, "prompt": _prompts, "echo": flag, "logprobs": whole(0, MOST_TOP), "best_of": only(1)}
CHAT = {
    **SHARED, "messages": _messages, "max_completion_tokens": whole(1), "logprobs": flag, "top_logprobs": whole(0, MOST_TOP),
    "add_generation_prompt": flag, "modalities": only(["text"]),
}  # fmt: skip
TOKENIZE: dict[str, Check] = {
    "model": text, "prompt": text, "messages": _messages, "add_special_tokens": flag, "add_generation_prompt": flag,
}  # fmt: skip


@dataclass(frozen=True)
class ParsedRequest:
    """A checked request: what to submit, and how to answer."""

    chat: bool
    model: str | None
    prompts: list[str | list[int]]
    messages: list[dict[str, str]]
    options: dict[str, Any] = field(default_factory=dict)  # of engine.submit
    n: int = 1
    seed: int | None = None
    max_tokens: int | None = None
    tokens_field: str = "max_tokens"  # the one that was given, for messages
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    logprobs: int | None = None  # likeliest tokens beside each; None: no scores at all
    opening: bool = True  # of the answer, after messages
    return_depth_used: bool = False
    return_token_ids: bool = False
    form_field: str = "structured_outputs"  # the one that gives the answer a form, for messages

    @property
    def reported(self) -> int:
        """The words that are reported beside each token: the likeliest ones, and those of each step."""
        scored = 0 if self.logprobs is None else 1 + self.logprobs
        return scored + self.options.get("step_tokens", 0) * self.options.get("depth", 1)


def read_fields(body: bytes, table: Mapping[str, Check]) -> dict[str, Any]:
    """Returns the fields of a JSON body that are not null, checked one by one."""
    with _about(None):
        data = parse_json(body, "body", "send a JSON object")
    if not isinstance(data, dict):
        raise Refusal(f"body: {shown(data)}; allowed: a JSON object")
    given = {name: value for name, value in data.items() if value is not None}
    with _about(next((name for name in given if name not in table), None)):
        refuse_unknown("body", given, table)
    fields = {}
    for name, value in given.items():
        with _about(name):
            fields[name] = table[name](name, value)
    return fields


@contextlib.contextmanager
def _about(param: str | None) -> Iterator[None]:
    """Refuses what the block finds wrong, with the name of the field that it is about."""
    try:
        yield
    except ValueError as error:
        raise Refusal(str(error), param=error.field if isinstance(error, NotPlainError) else param) from None


def engine_refusal(error: ValueError) -> Refusal:
    """Returns what the engine finds wrong with a request; it begins with a name, mostly that of the field."""
    word = str(error).partition(":")[0].partition(" ")[0]
    return Refusal(str(error), param=word if word in TEXT or word in CHAT else None)


def parse_request(body: bytes, *, chat: bool) -> ParsedRequest:
    """Returns what a body of /v1/chat/completions or /v1/completions asks for; refuses fields that do not go together."""
    fields = read_fields(body, CHAT if chat else TEXT)
    main = "messages" if chat else "prompt"
    if main not in fields:
        raise Refusal(f"{main}: missing", param=main)
    if "max_tokens" in fields and "max_completion_tokens" in fields:
        raise Refusal("max_completion_tokens: given with max_tokens, its older name; keep one", param="max_completion_tokens")
    tokens_field = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    tokens, echo = fields.get(tokens_field), fields.get("echo", False)
    if tokens == 0 and not echo:
        raise Refusal("max_tokens: 0 asks for nothing without echo; allowed: a whole number of at least 1", param="max_tokens")
    if "stream_options" in fields and not fields.get("stream"):
        raise Refusal("stream_options: given without stream", param="stream_options")
    if fields.get("top_logprobs") and not fields.get("logprobs"):
        raise Refusal("top_logprobs: given without logprobs", param="top_logprobs")
    logprobs = fields.get("logprobs")
    if chat:
        logprobs = fields.get("top_logprobs", 0) if logprobs else None
    options = {name: fields[name] for name in ENGINE if fields.get(name) is not None}
    if "min_tokens" in fields:
        options["min_new_tokens"] = fields["min_tokens"]
    form = fields.get("response_format") or fields.get("structured_outputs")
    if fields.get("response_format") and fields.get("structured_outputs"):
        raise Refusal("structured_outputs: given with response_format; keep one", param="structured_outputs")
    if form is not None:
        options["constrain"] = form
    return ParsedRequest(
        chat, fields.get("model"), fields.get("prompt", []), fields.get("messages", []),
        options | {
            "stop": [*fields.get("stop", []), *fields.get("stop_token_ids", [])], "logprobs": logprobs is not None,
            "top_logprobs": logprobs or 0, "prompt_logprobs": echo and logprobs is not None,
        },
        fields.get("n", 1), fields.get("seed"), tokens, tokens_field, fields.get("stream", False),
        fields.get("stream_options", False), echo, logprobs, fields.get("add_generation_prompt", True),
        fields.get("return_depth_used", False), fields.get("return_token_ids", False),
        form_field="response_format" if fields.get("response_format") else "structured_outputs",
    )  # fmt: skip
