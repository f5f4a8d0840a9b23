"""Holds the result numbers of study pages to the committed rows.

A claim is a piece of text made from the rows; it must stand on its page word for word. Where a place lists its settings (text with
numbers that no row decides: sizes, depths, names of columns), what is left of it without claims and settings has no digit in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from experiments.readme import origins, text
from experiments.readme.inside import orbits, trained, untrained
from experiments.readme.retrofit import (
    cores,
    corrected,
    on_valid,
    ouroboros,
    own_rates,
    rates_again,
    rates_twice,
    sicp,
)

ROOT = Path(__file__).parents[2]
# a target, an image and a code span hold no result, but which text a result is of is written as code
NOT_PROSE = r"!\[[^\]]*\]\([^)]*\)|(?<=\])\([^)]*\)|`[^`]*`"
TEXT = r"`(test|ood|valid)`"
AROUND = 40  # letters shown on each side of a number that no row explains


@dataclass(frozen=True)
class Place:
    """A section of a page (how its heading begins), or a whole page where the heading is empty, with what the rows say there.

    With `settings` every number of the place is held; without (None) the claims alone are.
    """

    page: str
    heading: str
    claims: Callable[[], Iterable[str]]
    settings: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """How problems name it."""
        return f"{self.page}, {self.heading!r}" if self.heading else self.page


PLACES = (
    Place("docs/inside.md", "", untrained.claims),
    Place("docs/inside-training.md", "", trained.claims),
    Place("docs/inside-training.md", "", orbits.claims),
    Place("docs/inside-training.md", "Huginn's norms", text.norms_claims),
    Place("docs/coverage.md", "Rows that name no commit", origins.claims),
    Place("docs/coverage.md", "A mechanistic analysis", orbits.coverage_claims),
    Place("docs/coverage.md", "ASURA", text.depth_claims),
    Place("docs/ouroboros.md", "", ouroboros.claims),
    Place("docs/ouroboros.md", "", own_rates.claims),
    Place("docs/ouroboros.md", "", corrected.claims),
    Place("docs/ouroboros.md", "", on_valid.claims),
    Place("docs/ouroboros.md", "", sicp.claims),
    Place("docs/ouroboros.md", "", rates_again.claims),
    Place("docs/ouroboros.md", "", rates_twice.claims),
    Place("docs/ouroboros.md", "Cores of 1, 3 and 6 layers", cores.claims, cores.SETTINGS),
    Place("docs/ouroboros.md", "", cores.page_claims),
    Place("docs/training.md", "", rates_twice.training_claims),
)


@cache
def claims_of(place: Place) -> tuple[str, ...]:
    """Returns what the rows say at a place, longest first, so that no claim is looked for in the place of another."""
    return tuple(sorted(map(plain, place.claims()), key=len, reverse=True))


def problems() -> list[str]:
    """Returns one line for each claim that its page does not hold and for each number that no row explains."""
    return [line for place in PLACES for line in problems_of((ROOT / place.page).read_text(), place)]


def problems_of(page: str, place: Place) -> list[str]:
    """Returns the problems of one place in the text of its page."""
    parts = text_of(page, place)
    if len(parts) != 1:
        return [f"{place.page}: {len(parts)} sections begin with {place.heading!r}; there must be one"]
    return problems_in(parts[0], place)


def problems_in(text: str, place: Place) -> list[str]:
    """Returns the problems of one place in its plain text."""
    problems = []
    for kind, pieces in (("the rows say", claims_of(place)), ("the settings are", map(plain, place.settings or ()))):
        for piece in pieces:
            if piece not in text:
                problems.append(f"{place.name}: {kind} {piece!r}, which is not there")
            text = text.replace(piece, " … ", 1) if place.settings is not None else text
    for number in re.finditer(r"[\d][\d.,]*", text if place.settings is not None else ""):
        near = text[max(0, number.start() - AROUND) : number.end() + AROUND].strip()
        problems.append(f"{place.name}: no row explains {number[0].rstrip('.,')} in {near!r}")
    return problems


def text_of(page: str, place: Place) -> list[str]:
    """Returns the sections that a place names, as plain text; the whole page where it names none."""
    sections = re.split(r"^## ", page, flags=re.MULTILINE)
    return [plain(part) for part in sections if part.startswith(place.heading)] if place.heading else [plain(page)]


def plain(text: str) -> str:
    """Returns a text without targets, images, code but the names of texts, and bold marks, its white space as single spaces."""
    return " ".join(re.sub(NOT_PROSE, " ", re.sub(TEXT, r"\1", text)).replace("**", "").split())
