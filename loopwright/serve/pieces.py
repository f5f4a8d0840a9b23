"""The text of a growing answer, piece by piece. Joined, the pieces are the text of the whole answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

HALF_LETTER = "�"  # what a tokenizer decodes the first bytes of a letter to


class TextPieces:
    """Text that is safe to send: no half letters, and nothing that a stop string may still cut off."""

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = (), *, before: int = 0) -> None:
        """`before` tokens of every list are not of the answer, but are what it is decoded after (an echoed prompt)."""
        self._decode, self._stop = decode, stop
        self._first, self._read = 0, before  # tokens from `first` to `read` are the context in which later ones are decoded
        self._context: str | None = None  # their text, once it is known
        self._held = ""
        self.sent = ""

    def more(self, tokens: list[int]) -> str:
        """Returns what can be sent of an answer that has come to `tokens`."""
        if self._read < len(tokens):
            if self._context is None:
                self._context = self._decode(tokens[self._first : self._read])
            now = self._decode(tokens[self._first :])
            if now.endswith(HALF_LETTER):
                return ""
            self._held += now[len(self._context) :]
            own = self._decode(tokens[self._read :])
            # a token without text of its own, such as a control word, would be no context for the next
            if own:
                self._first = self._read
            self._context = own or now
            self._read = len(tokens)
        return self._send(len(self._held) - self._risk())

    def end(self, text: str) -> str:
        """Returns the rest, where the whole answer is `text`."""
        rest = text[len(self.sent) :] if text.startswith(self.sent) else ""
        self.sent += rest
        return rest

    def _risk(self) -> int:
        """Returns how many characters at the end may belong to a stop string."""
        cuts = [self._held.find(stop) for stop in self._stop]
        found = [len(self._held) - cut for cut in cuts if cut >= 0]
        if found:
            return max(found)
        beginnings = (size for stop in self._stop for size in range(1, len(stop)) if self._held.endswith(stop[:size]))
        return max(beginnings, default=0)

    def _send(self, count: int) -> str:
        piece, self._held = self._held[:count], self._held[count:]
        self.sent += piece
        return piece
