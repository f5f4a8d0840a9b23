"""Holds the README's result sections to the rows: every claim stands there word for word, and no other number does.

A claim is a piece of text made from the rows. A setting is a piece of text with numbers that no row decides (sizes, depths, the
names of columns). What is left of a section without its claims and settings has no digit in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from experiments.readme import asura, hops, ouroboros, speed, stars

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
# a target, an image and a code span hold no result
NOT_PROSE = r"!\[[^\]]*\]\([^)]*\)|(?<=\])\([^)]*\)|`[^`]*`"
AROUND = 40  # letters shown on each side of a number that no row explains


@dataclass(frozen=True)
class Section:
    """A section of the README: how its heading begins, what the rows say in it, and what its numbers are apart from results."""

    heading: str
    claims: Callable[[], Iterable[str]]
    settings: tuple[str, ...]


SECTIONS = (
    Section("Does more depth hurt?", stars.claims, stars.SETTINGS),
    Section("Does conditioning on the input pay?", lambda: [*ouroboros.claims(), *asura.claims()], ouroboros.SETTINGS),
    Section("When does looping pay?", hops.claims, hops.SETTINGS),
    Section("Speed, so far", speed.claims, speed.SETTINGS),
)


@cache
def claims_of(section: Section) -> tuple[str, ...]:
    """Returns what the rows say in a section, longest first, so that no claim is looked for in the place of another."""
    return tuple(sorted(map(plain, section.claims()), key=len, reverse=True))


def problems(readme: str) -> list[str]:
    """Returns one line for each claim that the README does not hold and for each number that no row explains."""
    return [line for section in SECTIONS for line in problems_of(readme, section)]


def problems_of(readme: str, section: Section) -> list[str]:
    """Returns the problems of one section."""
    parts = [part for part in re.split(r"^## ", readme, flags=re.MULTILINE) if part.startswith(section.heading)]
    if len(parts) != 1:
        return [f"README.md: {len(parts)} sections begin with {section.heading!r}; allowed: one"]
    text, found = plain(parts[0]), []
    for kind, pieces in (("the rows say", claims_of(section)), ("the settings are", map(plain, section.settings))):
        for piece in pieces:
            if piece not in text:
                found.append(f"README.md, {section.heading!r}: {kind} {piece!r}, which is not there")
            text = text.replace(piece, " … ", 1)
    for number in re.finditer(r"[\d][\d.,]*", text):
        near = text[max(0, number.start() - AROUND) : number.end() + AROUND].strip()
        found.append(f"README.md, {section.heading!r}: no row explains {number[0].rstrip('.,')} in {near!r}")
    return found


def plain(text: str) -> str:
    """Returns a text without targets, images, code and bold marks, its white space as single spaces."""
    return " ".join(re.sub(NOT_PROSE, " ", text).replace("**", "").split())
