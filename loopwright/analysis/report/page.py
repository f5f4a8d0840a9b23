"""A report as one HTML file: a verdict with its numbers, then figures and tables. It needs no script, no network, no other file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from loopwright.storage.files import write_whole

TEMPLATE = "report.html.j2"


@dataclass(frozen=True)
class Picture:
    """A figure as SVG text, and what it shows in one sentence."""

    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Grid:
    """A table: the heads of its columns, and rows of as many cells; the first column names the row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A heading, one sentence that says how to read what follows, its numbers as (value, what it is), then pictures and tables."""

    heading: str
    prose: str = ""
    pictures: Sequence[Picture] = ()
    tables: Sequence[Grid] = ()
    numbers: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Outcome:
    """The verdict on a claim: it holds (True), it does not hold (False), or neither was shown (None); the reason in a sentence, and
    the numbers behind it as (value, what it is)."""

    holds: bool | None
    sentence: str
    numbers: Sequence[tuple[str, str]] = ()


def write_report(
    path: str | Path,
    title: str,
    sections: Sequence[Section],
    *,
    outcome: Outcome | None = None,
    lead: str = "",
    footer: str = "",
) -> Path:
    """Writes the report and returns where; the same input gives the same bytes. `lead` stands under the title."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, render_report(title, sections, outcome=outcome, lead=lead, footer=footer))
    return path


def render_report(
    title: str, sections: Sequence[Section], *, outcome: Outcome | None = None, lead: str = "", footer: str = ""
) -> str:
    """Returns the HTML text of a report. Text is escaped; pictures are drawn as they are and must be SVG."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    for section in sections:
        _check(section)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["drawing"] = lambda svg: Markup(svg[svg.index("<svg") :])  # without an XML prolog, which HTML refuses
    template = environment.from_string(files("loopwright.analysis.report").joinpath(TEMPLATE).read_text(encoding="utf-8"))
    return template.render(title=title, sections=sections, outcome=outcome, lead=lead, footer=footer) + "\n"


def count(number: int, what: str) -> str:
    """Returns a number with what it counts, as "1 step" or "8 steps"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _check(section: Section) -> None:
    for picture in section.pictures:
        if "<svg" not in picture.svg:
            raise ValueError(f"report: a picture of {section.heading!r} begins {picture.svg[:20]!r}; allowed: SVG text")
        if "<script" in picture.svg.lower():
            raise ValueError(f"report: a picture of {section.heading!r} holds a script; allowed: drawings alone")
    for grid in section.tables:
        uneven = [len(row) for row in grid.rows if len(row) != len(grid.head)]
        if uneven:
            raise ValueError(
                f"report: a row of {section.heading!r} has {uneven[0]} cells; allowed: {len(grid.head)}, one per column"
            )
