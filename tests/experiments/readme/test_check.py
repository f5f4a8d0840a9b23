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
        ("README.md", "96.2 / 85 / 99.2 %", "96.2 / 95 / 99.2 %"),
        ("README.md", "three of three seeds are 100 % right", "two of three seeds are 100 % right"),
        ("README.md", "p = 0.38", "p = 0.03"),
        ("README.md", "(*blind*) is not decided at best", "(*blind*) is decided at best"),
        ("README.md", "0.07 to 0.08 nats behind a static", "0.07 to 0.08 nats ahead of a static"),
        ("README.md", "that read by 0.26 to 0.35", "that read by 0.26 to 0.36"),
        ("README.md", "token shows no decided difference from it in either", "token shows a decided difference from it in either"),
        ("README.md", "at depths 1, 2 and 16 it is ahead (decided", "at depths 1, 2, 4 and 16 it is ahead (decided"),
        ("README.md", "the loop is 0.019 ahead at equal tokens", "the loop is 0.019 behind at equal tokens"),
        ("README.md", "still orbit after 128 steps in seven", "still orbit after 64 steps in seven"),
        ("docs/stars.md", "all 250 states measured are at rest", "all 1,000 states measured are at rest"),
        ("docs/stars.md", "without the penalty from steps 35 and 7", "without the penalty from steps 36 and 7"),
        ("docs/stars.md", "with a coda, 3.2 % with both", "with a coda, 32 % with both"),
        ("docs/ouroboros.md", "is 0.023 to 0.035 above its first run", "is 0.013 to 0.035 above its first run"),
        ("docs/ouroboros.md", "lie at most 0.006 apart at depths", "lie at most 0.060 apart at depths"),
        ("docs/ouroboros.md", "at depth 4 and at best depths it is behind", "at depth 4 and at best depths it is ahead"),
        ("docs/ouroboros.md", "on one of 155 documents", "on none of 155 documents"),
        ("README.md", "being behind in the second", "being ahead in the second"),
        ("README.md", "only the tables' lead over the running mean stays", "only the tables' lead over each token stays"),
        ("README.md", "weights (decided for two, after", "weights (decided for three, after"),
        ("README.md", "for 1.3 to 2.8 times the FLOPs", "for 1.3 to 1.8 times the FLOPs"),
        ("docs/ouroboros.md", "static diagonal stay behind low-rank", "static diagonal stay ahead of low-rank"),
        ("docs/ouroboros.md", "0.05 to 0.06 ahead (not decided) |", "0.05 to 0.06 ahead (decided) |"),
        ("docs/stars.md", "three of three seeds learned it", "two of three seeds learned it"),
        ("docs/stars.md", "13 of 24 runs learn", "14 of 24 runs learn"),
        ("docs/stars.md", "+0.6 points (−0.4 to +1.6, undecided", "+0.6 points (−0.4 to +1.6, decided"),
        ("docs/training.md", "0.007 nats in one arm", "0.070 nats in one arm"),
        ("docs/ouroboros.md", "at depth 8 by 0.02 to 0.03 (decided)", "at depth 8 by 0.02 to 0.03 (not decided)"),
        ("docs/ouroboros.md", "nats ahead of the running mean (not decided)", "nats behind the running mean (not decided)"),
        ("docs/ouroboros.md", "on one of three at depth 8", "on two of three at depth 8"),
        ("docs/ouroboros.md", "there by 0.54 nats (two seeds, not decided)", "there by 0.54 nats (two seeds, decided)"),
        ("docs/ouroboros.md", "at depth 1 it is ahead by 1.29 to 1.34", "at depth 1 it is behind by 1.29 to 1.34"),
        ("README.md", "behind by 0.029", "behind by 0.009"),
        ("README.md", "0.029 at the small size (decided)", "0.029 at the small size (not decided)"),
        ("README.md", "solves what eight layers solve, with 1/8", "solves what eight layers solve, with 1/4"),
        ("README.md", "0.004 and 0.057 with random depth", "0.004 and 0.017 with random depth"),
        ("README.md", "on answers and 0.173 on text", "on answers and 0.152 on text"),
        ("docs/stars.md", "(0.023 to 0.029, decided) off", "(0.023 to 0.029, undecided) off"),
        ("docs/stars.md", "| 99.68 / 99.78 / 99.96 | 96.2 / 85 / 99.2 | 0.99", "| 99.68 / 99.78 / 99.96 | 96.2 / 95 / 99.2 | 0.99"),
        ("docs/stars.md", "by at most 0.052 % with it", "by at most 0.52 % with it"),
        ("docs/ouroboros.md", "**86.7 %** (85.9", "**87.6 %** (85.9"),
        ("docs/ouroboros.md", "run once (three seeds, not decided)", "run once (three seeds, decided)"),
        ("README.md", "for six rows on one of two texts only", "for six rows on both texts"),
        ("README.md", "is 0.07 behind plain layers", "is 0.07 ahead of plain layers"),
        ("README.md", "at both sizes (0.02 and 0.04;", "at both sizes (0.02 and 0.05;"),
        ("docs/stars.md", "| 1.179 | 1.180 |", "| 1.179 | 1.181 |"),
        ("README.md", "with 1.2 times the FLOPs of ASURA", "with 1.0 times the FLOPs of ASURA"),
        ("README.md", "0.24 nats at equal updates (decided)", "0.24 nats at equal updates (undecided)"),
        ("README.md", "too, by 0.09 at their rate (decided)", "too, by 0.09 at their rate (undecided)"),
        ("README.md", "it is ahead at both (one seed)", "it is behind at both (one seed)"),
        ("README.md", "On a looped SmolLM2 it does, and less", "On a looped SmolLM2 it does not, and less"),
        ("README.md", "random depth no difference is decided", "random depth a difference is decided"),
        ("README.md", "0.033 behind at equal training FLOPs (decided)", "0.033 behind at equal training FLOPs (undecided)"),
        ("docs/stars.md", "70.4 % with 0.2", "98.4 % with 0.2"),
        ("docs/stars.md", "of the logarithm p = 0.003", "of the logarithm p = 0.300"),
        ("docs/ouroboros.md", "at own rates 56.5 of 59.6 %", "at own rates 45.8 of 59.6 %"),
        ("docs/ouroboros.md", "ahead of blind at every depth, decided at 1 and 2", "ahead of blind at every depth, decided at all"),
        ("README.md", "run once, by 0.010 (decided;", "run once, by 0.013 (decided;"),
        ("README.md", "adapters one is ahead of the same layers", "adapters one is behind the same layers"),
        ("docs/ouroboros.md", "**−0.010 / −0.013**", "**+0.010 / −0.013**"),
        ("docs/ouroboros.md", "| +0.008 / +0.006, not decided |", "| **+0.008 / +0.006** |"),
        ("docs/ouroboros.md", "by 0.020 to 0.058 (decided)", "by 0.020 to 0.058 (not decided)"),
        ("docs/ouroboros.md", "The core of one loses 0.016", "The core of one gains 0.016"),
        ("docs/ouroboros.md", "They have 3.940 on `test` and", "They have 3.940 on `ood` and"),
        ("docs/ouroboros.md", "lead is decided on the first text and not on", "lead is decided on the first text and on"),
        ("docs/ouroboros.md", "three are behind (decided) and two", "two are behind (decided) and three"),
        ("docs/speed.md", "4,082 tokens/s", "4,802 tokens/s"),
        ("README.md", "On text it is not shown that the loop pays", "On text it is shown that the loop pays"),
        ("README.md", "running mean beat the static diagonal", "running mean lost to the static diagonal"),
        ("README.md", "**For accuracy that is not shown, and the penalty as printed was not run.**", "**For accuracy, yes.**"),
        ("README.md", "`addition-stable` (three seeds)", "`addition-stable` (five seeds)"),
        ("README.md", "all four fail (one seed)", "all four fail (three seeds)"),
        ("docs/ouroboros.md", "| +0.063 (+0.027 to +0.099), **behind** |", "| −0.063 (−0.099 to −0.027), **ahead** |"),
        ("docs/ouroboros.md", "averaged, 46.8 / 8.3 / 31.8 % per", "averaged, 46.8 / 83 / 31.8 % per"),
        ("docs/ouroboros.md", "low-rank tables 63.7, LoRA", "low-rank tables 67.3, LoRA"),
        ("docs/stars.md", "from 300 on it rests", "from 100 on it rests"),
        ("docs/stars.md", "the third is not decided", "the third is decided"),
        ("docs/stars.md", "**one seed**, so no difference here", "**three seeds**, so each difference here"),
        ("docs/ouroboros.md", "no verdict of the twelve pairs changes", "one verdict of the twelve pairs changes"),
        ("README.md", "leads four plain layers by 0.06, and its", "leads four plain layers by 0.04, and its"),
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
