"""A report is one file that needs nothing else, says what it was given, and lets no text become markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from loopwright.analysis.report.page import Grid, Outcome, Picture, Section, Slider, count, render_report, write_report

SVG = '<?xml version="1.0"?>\n<svg viewBox="0 0 1 1" xmlns="http://www.w3.org/2000/svg"><path d="M 0 0"/></svg>'
SECTIONS = [
    Section("Accuracy", "Higher is better.", [Picture(SVG, "Bands are intervals.")]),
    Section(
        "States",
        pictures=[Picture(SVG), Picture(SVG)],
        tables=[Grid(["model", "ρ"], [["plain", "1.4"], ["stable", "0.3"]], "On test.")],
    ),
]
OUTCOME = Outcome(True, "The stable one holds.", [("100 %", "stable at depth 64"), ("0 %", "plain at depth 64")])
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Reader(HTMLParser):
    """Collects tags and text, and fails where tags do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def test_the_file_needs_nothing_else(tmp_path: Path) -> None:
    path = write_report(tmp_path / "run" / "report.html", "Demo", SECTIONS, outcome=OUTCOME, lead="Two models.", footer="torch")
    html = path.read_text(encoding="utf-8")
    reader = read(html)
    assert html.startswith("<!doctype html>") and html.count("<svg") == 3 and "<?xml" not in html
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"script", "link", "img", "iframe"}
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org/)", html)
    assert "script-src &#39;none&#39;" in html and "default-src 'none'" in html
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in reader.tags
    assert "prefers-color-scheme: dark" in html


def test_everything_given_is_said() -> None:
    text = " ".join(read(render_report("Demo", SECTIONS, outcome=OUTCOME, lead="Two models.", footer="torch 2")).text)
    wanted = [
        "Demo",
        "Two models.",
        "✓ Holds.",
        "The stable one holds.",
        "100 %",
        "stable at depth 64",
        "Accuracy",
        "Higher is better.",
    ]
    wanted += ["Bands are intervals.", "States", "model", "ρ", "plain", "1.4", "On test.", "torch 2"]
    assert [word for word in wanted if word not in text] == []


def test_a_failure_is_said_as_one() -> None:
    html = render_report("Demo", [], outcome=Outcome(False, "It fell to 3 %."))
    assert "✗ Does not hold." in html and 'class="outcome fails"' in html and "✓ Holds" not in html
    assert 'class="outcome' not in render_report("Demo", [])


def test_what_was_not_shown_is_neither_a_yes_nor_a_no() -> None:
    html = render_report("Demo", [], outcome=Outcome(None, "Too few steps were run."))
    assert "? Not shown." in html and 'class="outcome open"' in html
    assert "✓ Holds" not in html and "✗ Does" not in html


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write_report(tmp_path / name, "Demo", SECTIONS, outcome=OUTCOME).read_bytes() for name in ("a.html", "b.html"))
    assert first == second


def test_text_does_not_become_markup() -> None:
    evil = '<script>alert("x")</script>'
    outcome = Outcome(True, evil, [(evil, evil)])
    section = Section(
        evil, evil, [Picture(SVG, evil)], [Grid([evil], [[evil]], evil)], more=[Picture(SVG, evil, evil)], words=[(evil, evil)]
    )
    html = render_report(evil, [section], outcome=outcome, lead=evil, footer=evil, made=[(evil, evil)])
    assert "<script" not in html and '"x"' not in html and read(html)
    moved = render_report("t", [Section(evil, sliders=[Slider(["", evil], [evil], [1], [[(evil, True)]], 0, evil)])])
    assert moved.count("<script") == 2 and "alert(&#34;" in moved and "<script>alert" not in moved and read(moved)


def slider(**changes: Any) -> Slider:
    cells = [[("7", False), ("8", True)], [("8", True), ("8", True)]]
    return replace(Slider(["sum", "plain", "stable"], ["3 + 5 ="], [1, 4], cells, 1, "by depth"), **changes)


def test_a_slider_shows_its_first_depth_without_a_script_and_holds_the_others() -> None:
    html = render_report("t", [Section("Ask", sliders=[slider()])])
    reader = read(html)
    assert [attrs["class"] for tag, attrs in reader.tags if tag == "td"] == ["right", "right"]
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', html)[1])
    assert data == {"depths": [1, 4], "cells": [[["7", False], ["8", True]], [["8", True], ["8", True]]]}
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html.replace("&#39;", "'")  # no other script runs


@pytest.mark.parametrize("changes", [{"start": 2}, {"depths": [1]}, {"cells": [[("7", None)], [("8", None)]]}])
def test_a_slider_that_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a slider of 'Ask' has"):
        render_report("t", [Section("Ask", sliders=[slider(**changes)])])


def test_long_pages_have_contents_folds_and_words() -> None:
    named = [Section(f"Part {i}", more=[Picture(SVG, "seen", "One more")], words=[("ρ", "radius")]) for i in range(3)]
    html = render_report("t", named, made=[("command", "loopwright demo")])
    assert [attrs["href"] for tag, attrs in read(html).tags if tag == "a"] == ["#part-0", "#part-1", "#part-2"]
    assert all(f'<section id="part-{i}">' in html for i in range(3)) and html.count("<details>") == 3
    assert "<summary>One more</summary>" in html and "<dt>ρ</dt><dd>radius</dd>" in html and "loopwright demo" in html
    assert "<nav" not in render_report("t", named[:2])


def test_pictures_and_tables_are_checked() -> None:
    with pytest.raises(ValueError, match=r"a picture of 'A' begins 'figure\.svg'; allowed: SVG text"):
        render_report("Demo", [Section("A", pictures=[Picture("figure.svg")])])
    with pytest.raises(ValueError, match="a picture of 'A' holds a script"):
        render_report("Demo", [Section("A", pictures=[Picture("<svg><SCRIPT></SCRIPT></svg>")])])
    with pytest.raises(ValueError, match="a row of 'A' has 1 cells; allowed: 2, one per column"):
        render_report("Demo", [Section("A", tables=[Grid(["x", "y"], [["1"]])])])


def test_a_section_shows_its_numbers():
    page = render_report("t", [Section("a", "b", numbers=[("97 %", "of <tokens>")])])
    assert "<dt>of &lt;tokens&gt;</dt><dd>97 %</dd>" in page


def test_counts_have_their_ending():
    assert [count(1, "step"), count(2, "step"), count(1234, "token")] == ["1 step", "2 steps", "1,234 tokens"]


@pytest.mark.browser
def test_a_line_is_read_out_under_the_pointer_and_nothing_complains(tmp_path: Path) -> None:
    from loopwright.plot.figures import Curve, accuracy_by_depth
    from tests.serving.explore.browser import chromium

    drawing = accuracy_by_depth({"<b>plain": Curve([1, 2, 4, 8], [0.1, 0.9, 0.5, 0.1])})
    page = write_report(tmp_path / "report.html", "Depth", [Section("Accuracy", pictures=[Picture(drawing)])])
    with chromium() as browser:
        browser.resize(1280)
        browser.driver.get(page.as_uri())
        browser.run(
            "const svg = document.querySelector('svg'), [[l, t, r, b]] = JSON.parse(svg.dataset.axes)[0];"
            "const to = svg.getScreenCTM(), x = l + (r - l) * 0.345;"  # near depth 2 on the logarithmic axis
            "svg.dispatchEvent(new PointerEvent('pointermove', {clientX: to.a * x + to.e, clientY: to.d * (t + b) / 2 + to.f}));"
        )
        assert browser.text(".readout b") == "depth (steps) 2" and browser.text(".readout div") == "<b>plain: 90"
        browser.resize(390)  # on a phone one panel is seen whole, its letters not much smaller than those around it
        assert browser.run("const box = document.querySelector('.picture'); return box.scrollWidth <= box.clientWidth")
        assert browser.run("return document.querySelector('svg text').getBoundingClientRect().height") >= 11
        assert browser.complaints() == []
