"""The text of a growing list of tokens, decoded a few tokens at a time. Joined, what is new is the text of all tokens."""

from __future__ import annotations

from collections.abc import Callable

HALF_LETTER = "�"  # what a tokenizer decodes the first bytes of a letter to


class GrowingText:
    """Decodes new tokens after those right before them: a tokenizer may write a token otherwise where a text begins."""

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
