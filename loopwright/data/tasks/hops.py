"""p-hop induction: follow the trail "what stood after this letter the last time it came" p times.

Sanford, Hsu, Telgarsky 2024 (arXiv 2402.09268); Saunshi et al. 2025 (arXiv 2502.17416).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loopwright.data.tasks.task import ANSWERS, EOS, PAD, Alphabet, Matrix, Task, TaskRows, below, stream
from loopwright.schema import check_choice, check_count, check_number

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MARK, NOWHERE, START = ">", "-", "^"
COUNTS = ("marks", "symbol")
PROBES, SCARCE = 4096, 0.01


class Hops(Task):
    """A row of letters x₁ … xₙ, no two neighbours equal, then p marks `>`, then the answer (one letter) and EOS.

    With find(i) = 1 + the last place before i that holds the letter xᵢ, the answer is the letter at findᵖ(n), and all p hops
    exist. Two hops: in `badcbac>>a§` x₇ = c stood last at place 4, and after it b, at place 5; b stood last at place 1, and after
    it a. Letters and marks together are `length`, so that all rows have one shape, without padding.

    With `answers` "every" the question comes first and every letter is asked: `^>>badcbac§`, and at xᵢ the letter at findᵖ(i), or
    `-` where the trail from i ends before (here `------a`). Answers stand in place, never in the row. A row then
    has some hundred answers; Sanford et al. define the task so. `^` makes the marks differ: alone, they would all have the
    same state.

    With `count` "symbol" one symbol asks for p hops (`2badcbac§`) in place of p marks: easier to read, and it says nothing of
    numbers that were not trained. `rising` orders the training rows for a curriculum: where it is r, rows of the j-th of G
    numbers of hops begin to come after r · j/G of them (j from 0). It needs `order: {shuffled: false}`, and one epoch.

    Needed depth: p, one hop a step (`required_depth`); pairs of hops can be joined, so that about 2 + log₂ p layers are enough,
    and fewer than that order are not, if a common conjecture holds (Sanford et al.). Marks are unary, so that more hops than
    were trained need nothing new but depth: each mark asks for one hop more from where its left neighbour has come.
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
        answers: str = "last",
        count: str = "marks",
        rising: float = 0.0,
        train: int = 100_000,
        valid: int = 1_000,
        test: int = 5_000,
        seed: int = 0,
    ) -> None:
        where = self.configure("hops", {"hops": hops}, {"harder": harder}, test=test, valid=valid, train=train, seed=seed)
        self.symbols = check_count(where, "symbols", symbols, least=3)
        if symbols > len(LETTERS):
            raise ValueError(f"{where}: symbols is {symbols}; allowed: 3 to {len(LETTERS)}")
        self.length = check_count(where, "length", length, least=max(*self.trained, *self.beyond, 1) + 3)
        self.in_place = check_choice(where, "answers", answers, ANSWERS) == "every"
        self.counted = check_choice(where, "count", count, COUNTS) == "marks"
        if self.beyond and not self.counted:
            raise ValueError(
                f"{where}: harder must be empty with count 'symbol' (got {list(harder)}): their symbols are not trained"
            )
        check_number(f"{where}: rising", rising, least=0, below=1)
        self.rising = rising
        questions = [MARK, *([START] if self.in_place else [])] if self.counted else [str(group) for group in self.trained]
        self.alphabet = Alphabet([*LETTERS[:symbols], *questions, *([NOWHERE] if self.in_place else []), PAD, EOS])
        for group in (*self.trained, *self.beyond):
            share = len(self.draw(group, stream(self.seed), PROBES)) / PROBES
            if share < SCARCE:
                raise ValueError(
                    f"{where}: {group} hops are found in {share:.1%} of rows with length {length} and {symbols} symbols; "
                    "allowed: fewer hops, a longer row or fewer symbols"
                )

    def draw(self, group: int, bits: np.random.PCG64, count: int) -> Matrix:
        """Returns random rows of letters whose trail has `group` hops at least."""
        apart = below(bits, self.symbols - 1, count, self.letters(group)) + 1  # from the letter before: never 0
        apart[:, 0] = below(bits, self.symbols, count)
        letters = apart.cumsum(1) % self.symbols
        return letters[self.follow(letters, group) >= 0]

    def capacity(self, group: int, held: Matrix | None) -> int:
        rows = self.symbols * (self.symbols - 1) ** (self.letters(group) - 1)  # with or without a trail
        return rows - (0 if held is None else len(held))

    def letters(self, group: int) -> int:
        """Returns the letters of a row."""
        return self.length - (group if self.counted else 1)

    def extent(self, group: int) -> int:
        return self.length + (1 + self.counted if self.in_place else 2)

    def write(self, group: int, problems: Matrix, bits: np.random.PCG64, extent: int) -> TaskRows:
        count = len(problems)
        (asked,) = self.alphabet.encode_all([MARK if self.counted else str(group)])
        question, end = np.full((count, self.length - problems.shape[1]), asked), np.full((count, 1), self.alphabet.eos_id)
        lengths, required_depth = np.full(count, extent), np.full(count, group)
        if not self.in_place:
            answer = np.take_along_axis(problems, self.follow(problems, group)[:, None], axis=1)
            ids = np.concatenate([problems, question, answer, end], axis=1)
            return TaskRows(ids, np.full(count, self.length), lengths, required_depth)
        if self.counted:
            question = np.pad(question, ((0, 0), (1, 0)), constant_values=self.alphabet.encode_all([START])[0])
        places, nowhere = self.follow_all(problems, group), self.alphabet.encode_all([NOWHERE])[0]
        ids = np.concatenate([question, problems, end], axis=1)
        answers, first = np.full_like(ids, self.alphabet.pad_id), question.shape[1] + 1  # one place on: the model shifts labels
        answers[:, first:] = np.where(places < 0, nowhere, np.take_along_axis(problems, places, axis=1))
        return TaskRows(ids, np.full(count, first), lengths, required_depth, answers)

    def arrange(self, required_depth: np.ndarray, bits: np.random.PCG64) -> np.ndarray:
        """Returns an order of rows in which harder ones come later, as `rising` says."""
        begin = self.rising * np.searchsorted(np.unique(required_depth), required_depth) / len(np.unique(required_depth))
        share = bits.random_raw(len(required_depth)) / 2.0**64
        return np.argsort(begin + (1 - begin) * share, kind="stable")

    def follow(self, letters: Matrix, hops: int) -> np.ndarray:
        """Returns where the trail from the last letter of each row [N, n] leads after `hops` hops [N]; −1 where it ends before."""
        find, each = self.find(letters), np.arange(len(letters))
        place = np.full(len(letters), letters.shape[1] - 1)
        for _ in range(hops):
            place = find[each, place]
        return place

    def follow_all(self, letters: Matrix, hops: int) -> Matrix:
        """Returns where the trail from each letter leads after `hops` hops [N, n]; −1 where it ends before."""
        find = self.find(letters)
        places = np.broadcast_to(np.arange(letters.shape[1]), letters.shape)
        for _ in range(hops):
            places = np.take_along_axis(find, places, axis=1)
        return places

    def find(self, letters: Matrix) -> Matrix:
        """Returns the place after the last one before it with the same letter, for each place [N, n + 1]; −1 where there is none.

        What has left the row stays outside: −1 is the last column, which holds −1.
        """
        count, n = letters.shape
        each = np.arange(count)
        last = np.full((count, self.symbols), -2)  # + 1 = −1: nowhere
        find = np.full((count, n + 1), -1)
        for i in range(n):
            find[:, i] = last[each, letters[:, i]] + 1
            last[each, letters[:, i]] = i
        return find
