"""A report as one HTML file: a verdict with its numbers, then figures and tables, and what can be moved: answers by depth under a
slider. It needs no network and no other file; without scripts it shows all but the moving. Its policy lets no other script run."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path

from loopwright.storage.files import write_whole
from loopwright.untrusted import visible

TEMPLATE, SCRIPT = "report.html.j2", "report.js"
CONTENTS = 3  # headings from which a page has a table of contents


@dataclass(frozen=True)
class Picture:
    """A figure as SVG text, and what it shows in one sentence."""

    svg: str
    caption: str = ""
    title: str = ""  # what the fold says that holds it


@dataclass(frozen=True)
class Grid:
    """A table: the heads of its columns, and rows of as many cells; the first column names the row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Slider:
    """Rows of text that change with the depth of a slider: `cells[i]` are all cells at `depths[i]`, row by row, each as (text,
    whether it is right; None where nobody knows). `start` is the place of the depth that is shown first."""

    head: Sequence[str]
    rows: Sequence[str]
    depths: Sequence[int]
    cells: Sequence[Sequence[tuple[str, bool | None]]]
    start: int = 0
    caption: str = ""

    @property
    def shown(self) -> list[Sequence[tuple[str, bool | None]]]:
        """The cells of the first depth to be seen, a list per row."""
        across = len(self.head) - 1
        now = self.cells[self.start]
        return [now[i : i + across] for i in range(0, len(now), across)]


@dataclass(frozen=True)
class Section:
    """A heading, one sentence that says how to read what follows, its numbers as (value, what it is), then what can be moved,
    pictures and tables. `more` pictures are folded away under their titles."""

    heading: str
    prose: str = ""
    pictures: Sequence[Picture] = ()
    tables: Sequence[Grid] = ()
    numbers: Sequence[tuple[str, str]] = ()
    sliders: Sequence[Slider] = ()
    more: Sequence[Picture] = ()
    words: Sequence[tuple[str, str]] = ()

    @property
    def anchor(self) -> str:
        """What a link to the section is called."""
        return re.sub(r"\W+", "-", self.heading.lower()).strip("-") or "section"


@dataclass(frozen=True)
class Outcome:
    """The verdict on a claim: it holds (True), it does not hold (False), or neither was shown (None); the reason in a sentence, and
    the numbers behind it as (value, what it is). Where nothing was claimed, `word` says what the sentence is about."""

    holds: bool | None
    sentence: str
    numbers: Sequence[tuple[str, str]] = ()
    word: str = ""


def write_report(
    path: str | Path,
    title: str,
    sections: Sequence[Section],
    *,
    outcome: Outcome | None = None,
    lead: str = "",
    footer: str = "",
    made: Sequence[tuple[str, str]] = (),
) -> Path:
    """Writes the report and returns where; the same input gives the same bytes. `lead` stands under the title, `made` says
    how the page came to be: (what, value)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, render_report(title, sections, outcome=outcome, lead=lead, footer=footer, made=made))
    return path


def render_report(
    title: str,
    sections: Sequence[Section],
    *,
    outcome: Outcome | None = None,
    lead: str = "",
    footer: str = "",
    made: Sequence[tuple[str, str]] = (),
) -> str:
    """Returns the HTML text of a report. Text is escaped; pictures are drawn as they are and must be SVG."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    for section in sections:
        _check(section)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown)
    environment.filters["drawing"] = lambda svg: Markup(svg[svg.index("<svg") :])  # without an XML prolog, which HTML refuses
    template, script = (
        files("loopwright.analysis.report").joinpath(name).read_text(encoding="utf-8") for name in (TEMPLATE, SCRIPT)
    )
    moves = any(s.sliders or "data-line" in p.svg for s in sections for p in (*s.pictures, *s.more, Picture("")))
    headings = [section for section in sections if section.heading]
    return environment.from_string(template).render(
        title=title, sections=sections, pairs=partial(zip, strict=True), outcome=outcome, lead=lead, footer=footer, made=made,
        contents=headings if len(headings) >= CONTENTS else [],
        script=Markup(script) if moves else "", digest=_digest(script) if moves else "",
    ) + "\n"  # fmt: skip


def _shown(value: object) -> object:
    """Text as a page shows it; what is markup was made here."""
    return visible(value) if type(value) is str else value


def _digest(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def count(number: int, what: str) -> str:
    """Returns a number with what it counts, as "1 step" or "8 steps"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _check(section: Section) -> None:
    for picture in [*section.pictures, *section.more]:
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
    for slider in section.sliders:
        across, cells = len(slider.head) - 1, len(slider.rows) * (len(slider.head) - 1)
        uneven = [len(found) for found in slider.cells if len(found) != cells]
        if uneven or len(slider.cells) != len(slider.depths) or not 0 <= slider.start < len(slider.depths):
            raise ValueError(
                f"report: a slider of {section.heading!r} has {len(slider.cells)} sets of {uneven[0] if uneven else cells} cells "
                f"for {len(slider.depths)} depths; allowed: one set per depth of {len(slider.rows)} rows × {across} columns"
            )
