"""OpenAI's JSON: chunks of a stream and whole answers, for text and for chat."""

from __future__ import annotations

import asyncio
import json
import math
import time
import uuid
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring as quoted
from typing import Any

from loopwright.generation.scores import Ranked, TokenScore
from loopwright.serving.answer import Answer, Delta, ServedRequest

JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
PIECES = 4096  # of JSON, numbers or words, that are written in one turn of the event loop


def event(data: Any) -> bytes:
    """Returns one event of a stream."""
    return b"data: " + JSON.encode(data).encode() + b"\n\n"


class Shape:
    """Writes one response: its id, its name for the model, and the form that its request asked for."""

    def __init__(self, job: ServedRequest) -> None:
        self.job, self.parsed, self._word = job, job.parsed, job.model.word
        self.id = f"{'chatcmpl' if self.parsed.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self._around: tuple[bytes, bytes] | None = None  # what stands before and after the choice of an event
        extras = self.parsed.return_token_ids, self.parsed.return_depth_used, self.parsed.options.get("step_tokens")
        self._tells_more = self.parsed.logprobs is not None or any(extras)
        self._opened: set[int] = set()  # choices whose role was told
        self._offsets: dict[int, int] = {}  # characters of each choice so far
        self._kept: dict[int, dict[str, Any]] = {}  # of the whole response, by choice

    def events(self, fresh: Iterable[tuple[Answer, Delta]]) -> bytes:
        """Returns what is new of some answers as it is sent."""
        return b"".join([self.event(answer, delta) for answer, delta in fresh])

    def event(self, answer: Answer, delta: Delta) -> bytes:
        """Returns one event of a stream as it is sent. What is the same in all of them is written once."""
        if self._around is None:
            after = b'], "usage": null}\n\n' if self.parsed.include_usage else b"]}\n\n"
            self._around = event(self._frame("chunk")).removesuffix(b"}\n\n") + b', "choices": [', after
        return self._around[0] + self._written(answer, delta).encode() + self._around[1]

    def _written(self, answer: Answer, delta: Delta) -> str:
        """Returns `choice` as JSON. Most events tell of nothing but text: there only that is encoded."""
        if delta.finish_reason is not None or self._tells_more or (self.parsed.chat and answer.index not in self._opened):
            return JSON.encode(self.choice(answer, delta))
        before, after = ('"delta": {"content": ', "}") if self.parsed.chat else ('"text": ', "")
        return f'{{"index": {answer.index}, {before}{quoted(delta.text)}{after}, "logprobs": null, "finish_reason": null}}'

    def choice(self, answer: Answer, delta: Delta) -> dict[str, Any]:
        """Returns what an event of a stream tells of an answer."""
        choice: dict[str, Any] = {"index": answer.index}
        if self.parsed.chat:
            role = {} if answer.index in self._opened else {"role": "assistant"}
            self._opened.add(answer.index)
            choice["delta"] = role | {"content": delta.text}
        else:
            choice["text"] = delta.text
        choice |= self._scores(answer.index, delta)
        choice |= self._extras(delta)
        choice["finish_reason"] = delta.finish_reason
        return choice

    def last(self) -> dict[str, Any]:
        """Returns the event that tells the usage of the whole stream."""
        return self._frame("chunk") | {"choices": [], "usage": self.job.usage}

    def keep(self, answer: Answer, delta: Delta) -> None:
        """Adds what is new of an answer to the whole response."""
        kept = self._kept.setdefault(answer.index, {"text": []})
        _extend(kept, {"text": [delta.text]} | self._scores(answer.index, delta) | self._extras(delta))
        kept["finish_reason"] = delta.finish_reason

    def whole(self) -> dict[str, Any]:
        """Returns the response of a request without a stream, from all that was kept."""
        choices = []
        for index, kept in sorted(self._kept.items()):
            text = "".join(kept.pop("text"))
            said = {"message": {"role": "assistant", "content": text}} if self.parsed.chat else {"text": text}
            reason = {"finish_reason": kept.pop("finish_reason")}
            choices.append({"index": index} | said | kept | reason)
        return self._frame("whole") | {"choices": choices, "usage": self.job.usage}

    def _frame(self, kind: str) -> dict[str, Any]:
        chat = "chat.completion.chunk" if kind == "chunk" else "chat.completion"
        name = chat if self.parsed.chat else "text_completion"
        return {"id": self.id, "object": name, "created": self.created, "model": self.job.model.name}

    def _extras(self, delta: Delta) -> dict[str, Any]:
        """Returns what only a looped model has, and the ids, where they were asked for."""
        extras: dict[str, Any] = {}
        if self.parsed.return_token_ids:
            extras["token_ids"] = (delta.prompt or []) + delta.tokens
        if self.parsed.return_depth_used:
            extras["depth_used"] = delta.depths
        if self.parsed.options.get("step_tokens"):
            extras["step_tokens"] = [[self._listed(step) for step in steps] for steps in delta.step_tokens]
        return extras

    # log-probabilities

    def _scores(self, index: int, delta: Delta) -> dict[str, Any]:
        if self.parsed.logprobs is None:
            return {"logprobs": None}
        if self.parsed.chat:
            rows = zip(delta.tokens, delta.scores, strict=True)
            content = [self._entry(token, score.logprob) | {"top_logprobs": self._listed(score.top)} for token, score in rows]
            return {"logprobs": {"content": content}}
        tokens, scores = list(delta.tokens), list[TokenScore | None](delta.scores)
        if delta.prompt is not None and delta.prompt_scores is not None:
            tokens, scores = delta.prompt + tokens, delta.prompt_scores + scores
        words = [self._word(token) for token in tokens]
        offsets = []
        for word in words:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(word)
        return {
            "logprobs": {
                "tokens": words,
                "token_logprobs": [None if score is None else _finite(score.logprob) for score in scores],
                "top_logprobs": [self._tops(token, score) for token, score in zip(tokens, scores, strict=True)],
                "text_offset": offsets,
            }
        }

    def _tops(self, token: int, score: TokenScore | None) -> dict[str, float | None] | None:
        """Returns the likeliest tokens by their text, and the token itself; two that read alike are told once, the likelier."""
        if score is None or not self.parsed.logprobs:
            return None
        tops: dict[str, float | None] = {}
        for one, logprob in (*score.top, (token, score.logprob)):
            tops.setdefault(self._word(one), _finite(logprob))
        return tops

    def _listed(self, top: Ranked) -> list[dict[str, Any]]:
        return [self._entry(token, logprob) for token, logprob in top]

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        word = self._word(token)
        # the bytes of half a letter are not to be had from its text
        return {"token": word, "id": token, "logprob": _finite(logprob), "bytes": None if "�" in word else list(word.encode())}


async def written(data: Any) -> bytes:
    """Returns JSON, written in pieces between which the event loop goes on with the others."""
    pieces = []
    for count, piece in enumerate(JSON.iterencode(data), start=1):
        pieces.append(piece)
        if count % PIECES == 0:
            await asyncio.sleep(0)
    return "".join(pieces).encode()


def _extend(kept: dict[str, Any], told: Mapping[str, Any]) -> None:
    """Puts lists behind those that are kept, at every level."""
    for name, value in told.items():
        if isinstance(value, Mapping):
            _extend(kept.setdefault(name, {}), value)
        elif isinstance(value, list):
            kept.setdefault(name, []).extend(value)
        else:
            kept[name] = value


def _finite(value: float) -> float | None:
    """JSON has no infinity; a probability of 0 is told as null."""
    return value if math.isfinite(value) else None
