"""Tokens to text, as an answer grows: a few tokens are decoded at a time, and joined, the pieces are the text of all tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

HALF_LETTER = "�"  # what a tokenizer decodes the first bytes of a letter to


class GrowingText:
    """Decodes new tokens after those right before them: a tokenizer may write a token otherwise where a text begins.

    The `DecodeStream` of tokenizers does the same for fast tokenizers alone. It knows no `waiting`, and where the tokens before end
    within a letter, their text comes once more.
    """

    def __init__(self, decode: Callable[[list[int]], str], *, before: int = 0) -> None:
        """`before` tokens of every list are not new, but are what the others are decoded after."""
        self._decode = decode
        self._first, self._read = 0, before  # tokens from `first` to `read` are the context in which later ones are decoded
        self._context: str | None = None  # their text, once it is known
        self.waiting = ""  # the text of tokens that end within a letter, up to that letter

    def more(self, tokens: list[int]) -> str:
        """Returns what is new of a list that has come to `tokens`; nothing while its last letter is not whole."""
        if self._read >= len(tokens):
            return ""
        if self._context is None:
            self._context = self._decode(tokens[self._first : self._read])
        now = self._decode(tokens[self._first :])
        fresh = now[len(self._context) :]
        if now.endswith(HALF_LETTER):
            self.waiting = fresh.rstrip(HALF_LETTER)
            return ""
        own = self._decode(tokens[self._read :])
        # a token without text of its own, such as a control word, would be no context for the next
        if own:
            self._first = self._read
        self._context, self._read, self.waiting = own or now, len(tokens), ""
        return fresh


class AnswerPieces:
    """Text that is safe to send: no half letters, and nothing that a stop string may still cut off."""

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = (), *, before: int = 0) -> None:
        """`before` tokens of every list are not of the answer, but are what it is decoded after (an echoed prompt)."""
        self._text, self._stop = GrowingText(decode, before=before), stop
        self._held = ""
        self.sent = ""

    def more(self, tokens: list[int]) -> str:
        """Returns what can be sent of an answer that has come to `tokens`."""
        self._held += self._text.more(tokens)
        return self._send(len(self._held) - self._risk())

    def end(self, text: str) -> str:
        """Returns the rest, where the whole answer is `text`."""
        rest = text[len(self.sent) :] if text.startswith(self.sent) else ""
        self.sent += rest
        return rest

    def _risk(self) -> int:
        """Returns how many characters at the end may belong to a stop string."""
        cuts = [self._held.find(stop) for stop in self._stop]
        lengths = [len(self._held) - cut for cut in cuts if cut >= 0]
        if lengths:
            return max(lengths)
        beginnings = (size for stop in self._stop for size in range(1, len(stop)) if self._held.endswith(stop[:size]))
        return max(beginnings, default=0)

    def _send(self, count: int) -> str:
        piece, self._held = self._held[:count], self._held[count:]
        self.sent += piece
        return piece


def text_of(tokenizer: Any, *, skip: bool = True, silent: Collection[int] = ()) -> Callable[[list[int]], str]:
    """Returns how tokens become text, without control words where these are to be skipped, and without those that are `silent`.

    The library below transformers is asked where transformers would pass its answer on as it is: that takes a tenth of the time.
    """
    if silent:
        whole = text_of(tokenizer, skip=skip)
        return lambda ids: whole([one for one in ids if one not in silent])
    kind, fast = type(tokenizer), PreTrainedTokenizerFast
    passed_on = issubclass(kind, fast) and kind.decode is fast.decode and kind._decode is fast._decode  # type: ignore[attr-defined]
    if passed_on and not tokenizer.clean_up_tokenization_spaces:
        below = tokenizer.backend_tokenizer
        return lambda ids: str(below.decode(ids, skip_special_tokens=skip))
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=skip))
