"""The text of a growing answer, piece by piece. Joined, the pieces are the text of the whole answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loopwright.generate.growing_text import GrowingText


class TextPieces:
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
