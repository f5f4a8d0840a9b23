"""How templates tell numbers: filters over a difference of two rows (`Pooled`), a number, or several of either.

Of several, numbers stand one after the other ("0.071 and 0.054") and a word must be the same of all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from experiments import seeds as seeds_of
from experiments.pages import difference, number, words
from experiments.seeds import DECIDED, Pooled, paired_p, stay_decided, verdict

WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


@dataclass(frozen=True)
class Gaps:
    """One thing less another, paired by seed; `other` is a second interval that has to agree, where there is one."""

    of_seeds: tuple[float, ...]
    other: tuple[float, float] | None = None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, by number."""
        return tuple(range(len(self.of_seeds)))

    @property
    def difference(self) -> float:
        """The mean over seeds."""
        return statistics.mean(self.of_seeds)

    @property
    def over_seeds(self) -> tuple[float, float]:
        """The 95 % interval of that mean."""
        return seeds_of.over_seeds(self.of_seeds)

    @property
    def verdict(self) -> str:
        """What is decided of the first: "lower", "higher" or "not resolved"."""
        return verdict(self.over_seeds, *([self.other] if self.other else []))


Amount = Pooled | Gaps | float
Amounts = Amount | Iterable[Amount]
T = TypeVar("T")


def size(value: Amounts, digits: int = 3) -> str:
    """Returns how large it is, without its sign: "0.071 and 0.054"."""
    return " and ".join(number(abs(each), digits) for each in amounts(value))


def signed(value: Amounts, digits: int = 3) -> str:
    """Returns it with its sign: "+0.000 and −0.004"."""
    return " and ".join(difference(each, digits) for each in amounts(value))


def by_seed(value: Pooled | Iterable[float], digits: int = 3) -> str:
    """Returns differences seed by seed, with their signs: "−0.001 / +0.005 / +0.026"."""
    return " / ".join(difference(each, digits) for each in getattr(value, "of_seeds", value))


def plain_by_seed(values: Iterable[float], digits: int = 3) -> str:
    """Returns numbers seed by seed: "0.34 / 0.29 / 0.47"."""
    return " / ".join(number(each, digits) for each in values)


def alike(values: Iterable[float], digits: int = 3) -> str:
    """Returns what several numbers are, which must be the same when rounded."""
    return same(number(each, digits) for each in values)


def span(interval: tuple[float, float], digits: int = 3) -> str:
    """Returns from where to where an interval goes: unsigned, the smaller size first, where it leaves 0 out."""
    low, high = sorted(interval, key=abs)
    tell = difference if low * high < 0 else size
    low, high = sorted(interval) if low * high < 0 else (low, high)
    return f"{tell(low, digits)} to {tell(high, digits)}"


def from_to(values: Amounts, digits: int = 3) -> str:
    """Returns from where to where the sizes of several go, "0.021 to 0.058", or the one number that these are when rounded."""
    sizes = [abs(each) for each in amounts(values)]
    ends = number(min(sizes), digits), number(max(sizes), digits)
    return " to ".join(dict.fromkeys(ends))


def far(value: Amount) -> float:
    """Returns how large it is, as a number."""
    (found,) = amounts(value)
    return abs(found)


def percents(values: Iterable[float]) -> list[float]:
    """Returns shares in percent."""
    return [100 * each for each in values]


def ends(interval: Iterable[float], digits: int = 3) -> str:
    """Returns the ends of an interval, with a sign where they are below 0."""
    return " to ".join(number(end, digits) for end in interval)


def stands(value: Amounts) -> str:
    """Returns how the first of two rows stands, by its loss: "ahead" where it is the lower one."""
    return same("ahead" if each < 0 else "behind" for each in amounts(value))


def higher(value: Amounts) -> str:
    """Returns on which side of 0 a difference lies: "higher" or "lower"."""
    return same("higher" if each > 0 else "lower" for each in amounts(value))


def decided(value: Pooled | Iterable[Pooled]) -> str:
    """Returns "decided" or "undecided"."""
    return same(DECIDED[each.verdict] for each in several(value))


def agree(value: Pooled | Iterable[Pooled]) -> str:
    """Returns on how many seeds of each, at the least, a difference has the sign of its mean: "three of three"."""
    found = several(value)
    counts = [sum(math.copysign(1, seed) == math.copysign(1, each.difference) for seed in each.of_seeds) for each in found]
    return f"{WORDS[min(counts)]} of {WORDS[len(found[0].seeds)]}"


def seeds(value: Pooled | Iterable[Pooled]) -> str:
    """Returns of how many seeds it is: "one seed"."""
    count = same(len(each.seeds) for each in several(value))
    return f"{word(count)} seed{'s' * (count > 1)}"


def told(pair: Pooled | None, digits: int = 3) -> str:
    """Returns a difference with its interval over seeds and how the first stands, bold where that is decided; a dash for none."""
    if pair is None:
        return "–"
    if len(pair.seeds) == 1:
        return f"{signed(pair, digits)} (one seed)"
    word = "undecided" if decided(pair) == "undecided" else f"**{stands(pair)}**"
    return f"{signed(pair, digits)} ({interval(pair.over_seeds, digits)}), {word}"


def interval(bounds: tuple[float, float], digits: int = 3) -> str:
    """Returns the ends of an interval, with their signs."""
    return f"{difference(bounds[0], digits)} to {difference(bounds[1], digits)}"


def over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval over seeds of the mean."""
    return seeds_of.over_seeds(values)


def mean(values: Iterable[float]) -> float:
    """Returns the mean."""
    return statistics.mean(values)


def open_(values: Sequence[float]) -> bool:
    """Whether the interval over seeds holds 0."""
    low, high = seeds_of.over_seeds(values)
    return low <= 0 <= high


def turned(pair: Pooled) -> tuple[float, float]:
    """Returns the interval over seeds of the difference the other way round."""
    low, high = pair.over_seeds
    return -high, -low


def apart(values: Iterable[float]) -> float:
    """Returns how far apart the least and the largest lie."""
    found = list(values)
    return max(found) - min(found)


def p(pair: Pooled | Gaps) -> float:
    """Returns the p of the paired t-test over three seeds."""
    return paired_p(pair.of_seeds)


def shares(values: Iterable[float]) -> str:
    """Returns percents seed by seed, with no more digits than they need, two at most: "100 / 99.91 / 99.9"."""
    return " / ".join(map(shortly, values))


def shortly(value: float) -> str:
    """Returns one of them."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def word(count: float) -> str:
    """Returns a small number as a word, a larger one in digits."""
    whole = round(count)
    return WORDS[whole] if whole < len(WORDS) else f"{whole:,}"


def count(value: float) -> str:
    """Returns a whole number with commas, or the nearest one."""
    return f"{value:,.0f}"


def small(values: Iterable[float] | float) -> str:
    """Returns numbers of any size with two digits each, seed by seed: "0.049 / 1.2e-7"."""
    return " / ".join(f"{each:.2g}".replace("e-0", "e-") for each in several(values))


def rate(value: float) -> str:
    """Returns a learning rate: 1.2e-2."""
    mantissa, power = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(power)}"


def holds(so: object, *more: object) -> str:
    """Returns nothing where the rows bear a sentence out, and fails otherwise: for what no filter can say."""
    if not all((so, *more)):
        raise ValueError("the rows do not bear this sentence out")
    return ""


def same(values: Iterable[T]) -> T:
    """Returns what all values are; it is an error where they differ."""
    found = set(values)
    if len(found) != 1:
        raise ValueError(f"several values where one sentence tells them all: {sorted(map(str, found))}")
    return found.pop()


def several(value: T | Iterable[T]) -> list[T]:
    """Returns one or several as a list."""
    return list(value) if isinstance(value, Iterable) else [value]


def amounts(value: Amounts) -> Sequence[float]:
    """Returns the differences, or the numbers themselves."""
    return [each if isinstance(each, int | float) else each.difference for each in several(value)]


NUMBERS = (size, signed, by_seed, plain_by_seed, alike, span, ends, interval, from_to)
SHORT = (percents, word, count, rate, shares, shortly, small)
VALUES = (far, mean, over_seeds, apart, turned, p)
SAID = (stands, higher, decided, agree, seeds, told)
OTHERS = {"listed": words, "open": open_, "stay": stay_decided}  # by names that mean something else in Python or here
FILTERS: dict[str, Callable[..., object]] = {each.__name__: each for each in (*NUMBERS, *SHORT, *VALUES, *SAID)} | OTHERS
