"""What a completion is worth: a number for each one that the model has sampled. `lw.register("reward", name)` takes a function or a
class of the user's own; what it raises, or a number that is not finite, ends the run with one line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from loopwright.settings import Kinds
from loopwright.untrusted import first_line, shown
from loopwright.values import check_number

NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
MARK = "####"  # before the last number of an answer of GSM8K


@dataclass(frozen=True)
class Sample:
    """One completion to be judged, as text without control tokens: the `prompt`, what the model wrote, the `answer` of the data.

    `ended` says whether the model wrote its end token, or ran into the largest length.
    """

    prompt: str
    completion: str
    answer: str
    ended: bool = True


class Reward:
    """Judges completions. Abstract: a kind is (sample) → number."""

    def __call__(self, sample: Sample) -> float:
        """Returns what a completion is worth."""
        raise NotImplementedError


class Exact(Reward):
    """1 where the completion is the answer, letter by letter (blanks at its ends aside), and has ended: for algorithmic tasks."""

    def __call__(self, sample: Sample) -> float:
        return float(sample.ended and sample.completion.strip() == sample.answer.strip())


class Number(Reward):
    """1 where the final numbers of completion and answer are equal; 18, 18.00 and 18.0 are, and 1,000 is 1000.

    The final number is the first one after the last "####" (GSM8K), where there is one, else the last one. A completion that has
    a number but not the right one gets `near`.
    """

    def __init__(self, near: float = 0.0) -> None:
        check_number("reward (number): near", near, least=0, most=1)
        self.near = near

    def __call__(self, sample: Sample) -> float:
        wanted, got = final_number(sample.answer), final_number(sample.completion)
        if wanted is None:
            raise ValueError(f"the answer {shown(sample.answer)} has no number")
        return 1.0 if got == wanted else 0.0 if got is None else self.near


def final_number(text: str) -> Decimal | None:
    """Returns the number that a text ends with or marks as its answer; None where it has none."""
    _, mark, after = text.rpartition(MARK)
    numbers = NUMBER.findall(after)
    if not numbers:
        return None
    try:
        return Decimal((numbers[0] if mark else numbers[-1]).replace(",", ""))
    except InvalidOperation:
        return None


def from_function(function: Callable[[Sample], float]) -> type[Reward]:
    """Returns the kind of reward that calls a function of (sample)."""

    class Called(Reward):
        def __call__(self, sample: Sample) -> float:
            return function(sample)

    Called.__name__ = Called.__qualname__ = getattr(function, "__name__", "reward")
    Called.__module__, Called.__doc__ = function.__module__, function.__doc__
    return Called


def judge(name: str, reward: Reward, samples: Sequence[Sample]) -> list[float]:
    """Returns what each completion is worth; one that raises, or gives no finite number, is a ValueError of one line."""
    return [_judged(name, reward, sample) for sample in samples]


def _judged(name: str, reward: Reward, sample: Sample) -> float:
    where = f"reward ({name}), prompt {shown(sample.prompt)}, completion {shown(sample.completion)}"
    try:
        value: Any = reward(sample)
    except Exception as error:  # the user's own code raises what it likes
        raise ValueError(f"{where}: {type(error).__name__}: {first_line(error)}") from error
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{where}: gave {shown(value)}; a reward must be finite") from None
    except (TypeError, ValueError):
        raise ValueError(f"{where}: gave {shown(value)}; a reward must be a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{where}: gave {number}; a reward must be finite")
    return number


REWARDS = Kinds("reward", {"exact": Exact, "number": Number}, inherits=Reward, offers=["__call__"], from_function=from_function)
