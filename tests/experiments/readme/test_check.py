"""The results of the README and of the study pages are those of the committed rows, and a wrong number does not pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pytest

from experiments.readme.check import PLACES, ROOT, Place, claims_of, plain, problems, problems_in, problems_of, text_of
from experiments.readme.retrofit import own_rates, rates_again
from experiments.readme.rows import when

TEXTS = {place.page: (ROOT / place.page).read_text() for place in PLACES}


def test_the_results_are_those_of_the_rows() -> None:
    assert problems() == []


@pytest.mark.studies  # whether the check finds errors; that there are none is checked above
@pytest.mark.parametrize(
    ("page", "right", "wrong"),
    [
        ("docs/inside-training.md", "trained again four have orbits again", "trained again five have orbits again"),
        ("docs/inside-training.md", "−0.004 to +0.004 | undecided |", "−0.004 to +0.004 | **behind**, decided |"),
        ("docs/inside-training.md", "| +0.080 | +0.064 to +0.095", "| −0.080 | +0.064 to +0.095"),
        ("docs/inside-training.md", "it is not (p = 0.12)", "it still is (p = 0.12)"),
        ("docs/inside-training.md", "at neither of two rates did the model learn", "at one of two rates the model learned"),
        ("docs/inside-training.md", "fewer than half as many tokens move", "as many tokens move"),
        ("docs/ouroboros.md", "is 0.023 to 0.035 above its first run", "is 0.013 to 0.035 above its first run"),
        ("docs/ouroboros.md", "lie at most 0.006 apart at depths", "lie at most 0.060 apart at depths"),
        ("docs/ouroboros.md", "at depth 4 and at best depths it is behind", "at depth 4 and at best depths it is ahead"),
        ("docs/ouroboros.md", "on one of 155 documents", "on none of 155 documents"),
        ("docs/ouroboros.md", "static diagonal stay behind low-rank", "static diagonal stay ahead of low-rank"),
        ("docs/ouroboros.md", "0.05 to 0.06 ahead (not decided) |", "0.05 to 0.06 ahead (decided) |"),
        ("docs/training.md", "0.007 nats in one arm", "0.070 nats in one arm"),
        ("docs/ouroboros.md", "at depth 8 by 0.02 to 0.03 (decided)", "at depth 8 by 0.02 to 0.03 (not decided)"),
        ("docs/ouroboros.md", "nats ahead of the running mean (not decided)", "nats behind the running mean (not decided)"),
        ("docs/ouroboros.md", "on one of three at depth 8", "on two of three at depth 8"),
        ("docs/ouroboros.md", "there by 0.54 nats (two seeds, not decided)", "there by 0.54 nats (two seeds, decided)"),
        ("docs/ouroboros.md", "at depth 1 it is ahead by 1.29 to 1.34", "at depth 1 it is behind by 1.29 to 1.34"),
        ("docs/ouroboros.md", "**86.7 %** (85.9", "**87.6 %** (85.9"),
        ("docs/ouroboros.md", "run once (three seeds, not decided)", "run once (three seeds, decided)"),
        ("docs/coverage.md", "a gain of more than 0.003 with each", "a gain of more than 0.030 with each"),
        ("docs/ouroboros.md", "at own rates 56.5 of 59.6 %", "at own rates 45.8 of 59.6 %"),
        ("docs/ouroboros.md", "ahead of blind at every depth, decided at 1 and 2", "ahead of blind at every depth, decided at all"),
        ("docs/ouroboros.md", "**−0.010 / −0.013**", "**+0.010 / −0.013**"),
        ("docs/ouroboros.md", "| +0.008 / +0.006, not decided |", "| **+0.008 / +0.006** |"),
        ("docs/ouroboros.md", "by 0.020 to 0.058 (decided)", "by 0.020 to 0.058 (not decided)"),
        ("docs/ouroboros.md", "The core of one loses 0.016", "The core of one gains 0.016"),
        ("docs/ouroboros.md", "They have 3.940 on `test` and", "They have 3.940 on `ood` and"),
        ("docs/ouroboros.md", "lead is decided on the first text and not on", "lead is decided on the first text and on"),
        ("docs/ouroboros.md", "three are behind (decided) and two", "two are behind (decided) and three"),
        ("docs/inside-training.md", "which do not decide it (mean", "which decide it (mean"),
        ("docs/inside-training.md", "| k = 12 | +0.038 | −0.065 |", "| k = 12 | −0.038 | −0.065 |"),
        ("docs/inside-training.md", "| 5.07 / 5.07 / 5.06 | 5.07 / 5.07 / 5.07 |", "| 5.07 / 5.07 / 5.16 | 5.07 / 5.07 / 5.07 |"),
        ("docs/inside.md", "1.000 / 0.638 | 1.000 / 0.515", "1.000 / 0.638 | 0.900 / 0.515"),
        ("docs/ouroboros.md", "| +0.063 (+0.027 to +0.099), **behind** |", "| −0.063 (−0.099 to −0.027), **ahead** |"),
        ("docs/coverage.md", "| halting/runs.jsonl | 12 | 24 |", "| halting/runs.jsonl | 14 | 24 |"),
        ("docs/ouroboros.md", "averaged, 46.8 / 8.3 / 31.8 % per", "averaged, 46.8 / 83 / 31.8 % per"),
        ("docs/ouroboros.md", "low-rank tables 63.7, LoRA", "low-rank tables 67.3, LoRA"),
        ("docs/inside-training.md", "0.034 nats in seven of nine", "0.034 nats in nine of nine"),
        ("docs/ouroboros.md", "no verdict of the twelve pairs changes", "one verdict of the twelve pairs changes"),
        ("docs/coverage.md", "84 rows of `inside` name no device", "48 rows of `inside` name no device"),
    ],
)
def test_a_planted_error_is_found(page: str, right: str, wrong: str) -> None:
    assert TEXTS[page].count(right) == 1
    changed = TEXTS[page].replace(right, wrong)
    assert [line for place in PLACES if place.page == page for line in problems_of(changed, place)]


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        ("docs/ouroboros.md", own_rates.by_depth),
        ("docs/ouroboros.md", rates_again.pairs_by_depth),
    ],
    ids=["first set", "second set"],
)
def test_decided_cells_are_bold(page: str, lines: Callable[[], Iterable[str]]) -> None:
    """Claims are looked for without bold marks, which in these tables say what is decided."""
    assert [line for line in lines() if line not in TEXTS[page]] == []


@pytest.mark.parametrize("place", [place for place in PLACES if place.settings is not None], ids=lambda place: place.name)
def test_every_number_is_held(place: Place) -> None:
    """Each number in turn is made another: all are noticed, settings too."""
    (text,) = text_of(TEXTS[place.page], place)
    assert problems_in(text, place) == []
    numbers = [*re.finditer(r"\d+", text)]
    assert numbers
    for number in numbers:
        changed = f"{text[: number.start()]}{int(number[0]) + 1}{text[number.end() :]}"
        assert problems_in(changed, place), text[number.start() - 30 : number.end() + 30]


@pytest.mark.parametrize("place", [place for place in PLACES if place.settings is None], ids=lambda place: place.name)
def test_no_claim_is_met_by_another_sentence(place: Place) -> None:
    """Where other numbers are free a claim stands as often as claims hold it: no wrong sentence hides behind a right one."""
    (text,) = text_of(TEXTS[place.page], place)
    every = claims_of(place)
    assert [claim for claim in every if text.count(claim) != sum(other.count(claim) for other in every)] == []


def test_a_number_that_no_row_explains_is_named() -> None:
    place = Place("README.md", "Ours", lambda: ["loss 3.5"], ("width 64",))
    assert problems_of("## Ours\nwidth 64, loss\n**3.5** [more](docs/1.md) `9` ![x 7](8.svg)\n## Next\n5", place) == []
    (named,) = problems_of("## Ours\nwidth 64, loss 3.5, time 2.25 s.", place)
    assert named == "README.md, 'Ours': no row explains 2.25 in 'Ours  … ,  … , time 2.25 s.'"
    missing = problems_of("## Ours\nwidth 64, loss 3.6.", place)
    assert missing[0] == "README.md, 'Ours': the rows say 'loss 3.5', which is not there" and len(missing) == 2
    assert problems_of("## Other", place) == ["README.md: 0 sections begin with 'Ours'; there must be one"]


def test_what_the_rows_do_not_bear_out_is_on_no_page() -> None:
    place = Place("docs/x.md", "", lambda: [when(False, "a loop leads"), when(True, "loss 3.5")])
    assert problems_of("# X\n\na loop leads, loss 3.5", place) == [
        "docs/x.md: the rows say 'not so: a loop leads', which is not there"
    ]


def test_a_page_without_settings_is_held_to_its_claims_alone() -> None:
    place = Place("docs/x.md", "", lambda: ["loss 3.5"])
    assert problems_of("# X\n\nwidth 64, loss **3.5**", place) == []
    assert problems_of("# X\n\nwidth 64, loss **3.6**", place) == ["docs/x.md: the rows say 'loss 3.5', which is not there"]
    assert plain("a **b** `c`, 3 on `test`") == "a b , 3 on test", "which text a number is of is part of it"
