"""p-hop induction: follow the trail "what stood after this letter the last time it came" p times.

Sanford, Hsu, Telgarsky 2024 (arXiv 2402.09268); Saunshi et al. 2025 (arXiv 2502.17416).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loopwright.data.checks import check_count
from loopwright.data.draw import Matrix, below, stream
from loopwright.data.table import EOS, PAD, Alphabet, Rows
from loopwright.data.task import Task

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PROBES, SCARCE = 4096, 0.01


class Hops(Task):
    """A row of letters x₁ … xₙ, no two neighbours equal, then p marks `>`, then the answer (one letter) and EOS.

    With find(i) = 1 + the last place before i that holds the letter xᵢ, the answer is the letter at findᵖ(n), and all p hops
    exist. Two hops: in `badcbac>>a§` x₇ = c stood last at place 4, and after it b, at place 5; b stood last at place 1, and after
    it a. Letters and marks together are `length`, so that all rows have one shape, without padding.

    Needed depth: p, one hop a step (`needs`); pairs of hops can be joined, so that about 2 + log₂ p layers are enough, and fewer
    than that order are not, if a common conjecture holds (Sanford et al.). Marks are unary, so that more hops than were trained
    need nothing new but depth: each mark asks for one hop more from where its left neighbour has come.
    """

    unit = "hops"
    padding = "plain"

    def __init__(
        self,
        *,
        hops: Sequence[int] = (1, 2, 3, 4),
        harder: Sequence[int] = (),
        length: int = 32,
        symbols: int = 4,
        train: int = 100_000,
        valid: int = 1_000,
        test: int = 5_000,
        seed: int = 0,
    ) -> None:
        where = self.hold("hops", {"hops": hops}, {"harder": harder}, test=test, valid=valid, train=train, seed=seed)
        self.symbols = check_count(where, "symbols", symbols, least=3)
        if symbols > len(LETTERS):
            raise ValueError(f"{where}: symbols is {symbols}; allowed: 3 to {len(LETTERS)}")
        self.length = check_count(where, "length", length, least=max(*self.trained, *self.beyond, 1) + 3)
        self.alphabet = Alphabet([*LETTERS[:symbols], ">", PAD, EOS])
        for group in (*self.trained, *self.beyond):
            found = len(self.draw(group, stream(self.seed), PROBES)) / PROBES
            if found < SCARCE:
                raise ValueError(
                    f"{where}: {group} hops are found in {found:.1%} of rows with length {length} and {symbols} symbols; "
                    "allowed: fewer hops, a longer row or fewer symbols"
                )

    def draw(self, group: int, bits: np.random.PCG64, count: int) -> Matrix:
        """Returns random rows of letters whose trail has `group` hops at least."""
        apart = below(bits, self.symbols - 1, count, self.length - group) + 1  # from the letter before: never 0
        apart[:, 0] = below(bits, self.symbols, count)
        letters = apart.cumsum(1) % self.symbols
        return letters[self.follow(letters, group) >= 0]

    def room(self, group: int, held: Matrix | None) -> int:
        rows = self.symbols * (self.symbols - 1) ** (self.length - group - 1)  # with or without a trail
        return rows - (0 if held is None else len(held))

    def extent(self, group: int) -> int:
        return self.length + 2

    def write(self, group: int, problems: Matrix, bits: np.random.PCG64, extent: int) -> Rows:
        count = len(problems)
        answer = np.take_along_axis(problems, self.follow(problems, group)[:, None], axis=1)
        marks, end = np.full((count, group), self.symbols), np.full((count, 1), self.alphabet.eos_id)
        ids = np.concatenate([problems, marks, answer, end], axis=1)
        return Rows(ids, np.full(count, self.length), np.full(count, extent), np.full(count, group))

    def follow(self, letters: Matrix, hops: int) -> np.ndarray:
        """Returns where the trail from the last letter of each row [N, n] leads after `hops` hops [N]; −1 where it ends before."""
        count, n = letters.shape
        each = np.arange(count)
        last = np.full((count, self.symbols), -2)  # + 1 = −1: nowhere
        find = np.empty((count, n + 1), dtype=np.int64)
        find[:, n] = -1  # what has left the row stays outside: −1 is the last column
        for i in range(n):
            find[:, i] = last[each, letters[:, i]] + 1
            last[each, letters[:, i]] = i
        place = np.full(count, n - 1)
        for _ in range(hops):
            place = find[each, place]
        return place
