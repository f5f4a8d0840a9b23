"""Nothing that is shown steers a terminal: names of runs and models, tokens, warnings; in pages and drawings neither."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loopwright.analysis.report.page import Grid, Outcome, Picture, Section, Slider, render_report
from loopwright.checkpoints.save import is_edited, model_card
from loopwright.cli.console import console, show, table, warn
from loopwright.errors import ending, one_line, visible_warnings
from loopwright.model.presets import preset
from loopwright.plot import html_of
from loopwright.plot.figures import Curve, loss_curves
from loopwright.process import Screen, say, stream_out
from loopwright.serving.explore.passes import TokenTexts
from loopwright.storage.run import RunFolder
from loopwright.training.report import Progress, Terminal
from loopwright.untrusted import STEERING, visible
from tests.training.runs import small

# a title set, a screen cleared, text hidden; bells, overwritten lines, C1's own CSI, text turned around; and a rich tag that closes
HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x00\rb\x7fc\x9b31m\u202edcba\u2066[/red]"
SHOWN = r"a\x1b]0;owned\x07\x1b[2J\x00\rb\x7fc\x9b31m\u202edcba\u2066[/red]"
TEXT = st.text(st.characters(codec="utf-16"), max_size=30) | st.text(st.sampled_from(HOSTILE), max_size=12)


def check_shown(text: str, *, whole: bool = True) -> None:
    """The name is there, written out, and nothing of it raw."""
    assert STEERING.search(text) is None
    assert (SHOWN if whole else r"\x1b]0;owned") in "".join(text.splitlines())


@given(st.text(max_size=30))
def test_what_steers_is_written_out_and_nothing_else(text: str) -> None:
    found = visible(text)
    assert STEERING.search(found) is None and visible(found) == found
    found.encode()  # no half of a character is left
    kept = [letter for letter in text if not STEERING.match(letter)]
    assert all(letter in found for letter in kept)
    if len(kept) == len(text):
        assert found == text


def test_letters_of_every_language_tabs_and_lines_stay() -> None:
    text = "zero‍width joiner, naïve café\u00a0日本語　مرحبا 👩‍🚀\n\tß"
    assert visible(text) == text and visible(HOSTILE) == SHOWN


@given(TEXT)
def test_a_screen_shows_it_wherever_it_stands(name: str) -> None:
    stream = io.StringIO()
    screen = Screen(file=stream, width=60, force_terminal=True, color_system=None)
    made = Table(name, name, title=name, caption=name)
    made.add_row(name, Text(name))
    for renderable in (name, Text(name), made, Group(name, Panel(name, title=name))):
        screen.print(renderable, soft_wrap=True)
    assert STEERING.search(stream.getvalue()) is None


def test_the_styles_of_a_screen_are_its_own() -> None:
    stream = io.StringIO()
    screen = Screen(file=stream, force_terminal=True, color_system="standard")
    screen.print(Text(HOSTILE, style="red"))
    screen.print(Text("x", style="bold"))
    text, shown = stream.getvalue(), SHOWN.replace(r"\x07", "").replace(r"\r", "")  # which rich's own text leaves out
    assert text == f"\x1b[31m{shown}\x1b[0m\n\x1b[1mx\x1b[0m\n"


def test_verbs_print_names_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(HOSTILE, markup=False, soft_wrap=True)
    made = table("runs", "name")
    made.add_row(Text(HOSTILE))
    console().print(made)
    say(HOSTILE)
    warn(f"first\n{HOSTILE}")
    with visible_warnings():
        told = warnings.formatwarning(UserWarning(HOSTILE), UserWarning, f"{HOSTILE}.py", 1)
    printed = capsys.readouterr()
    check_shown(printed.out)
    check_shown(printed.err, whole=False)
    check_shown(told)
    assert printed.err.count("\n") == 2 and "loopwright: warning: first a" in printed.err


def test_json_is_the_same_data(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"name": HOSTILE, "größe": [HOSTILE, "ß"], HOSTILE: 1}
    show(lambda: found, as_json=True)
    printed = capsys.readouterr().out
    assert STEERING.search(printed) is None and json.loads(printed) == found and "größe" in printed


def test_a_mistake_and_what_nobody_foresaw_are_one_visible_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert one_line(f"{HOSTILE}\n") == SHOWN.replace(r"\r", " ").replace("\n", "")
    for error in (ValueError(HOSTILE), FileNotFoundError(2, HOSTILE, HOSTILE), RuntimeError(HOSTILE)):

        def work(error: Exception = error) -> None:
            raise error

        with pytest.raises(SystemExit):
            ending(work, KeyError)
        line = capsys.readouterr().err
        assert STEERING.search(line) is None and line.count("\n") == 1 and r"\x1b]0;owned\x07" in line


def test_what_a_model_says_is_raw_in_a_file_and_visible_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream_out(HOSTILE)
    assert capsys.readouterr().out == HOSTILE
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    stream_out(HOSTILE)
    assert capsys.readouterr().out == SHOWN


def test_the_lines_of_a_run_show_its_name_written_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    row: dict[str, Any] = {"update": 2, "loss": 1.5, "depth": [3], "grad_norm": 0.5, "lr": 1e-3, "targets": 8, "tokens": 40}
    reporter = Terminal(HOSTILE, every=0.0)
    reporter.start(small(), RunFolder(tmp_path), Progress())
    reporter.note(HOSTILE)
    reporter.update(row, Progress(update=3), 0.5)
    reporter.end(Progress(update=3), Path(HOSTILE), stopped=True)
    check_shown(capsys.readouterr().err, whole=False)


def test_the_bar_of_a_run_shows_its_name_written_out() -> None:
    """Also where it looks like rich's own tags."""
    stream = io.StringIO()
    reporter = Terminal(HOSTILE)
    reporter.bar.disable = False
    reporter.bar.live.console = Screen(file=stream, width=200, force_terminal=True, color_system=None)
    task = reporter.bar.add_task(HOSTILE, total=3, words=HOSTILE)
    reporter.bar.live.console.print(reporter.bar.get_renderable())
    reporter.bar.remove_task(task)
    check_shown(stream.getvalue(), whole=False)


def test_pages_drawings_cards_and_cells_hold_it_written_out(tmp_path: Path) -> None:
    drawing = loss_curves({HOSTILE.replace("[/red]", ""): Curve([0, 1], [2.0, 1.0])})
    svg = drawing.save(tmp_path / "loss.svg").read_text()
    section = Section(
        HOSTILE, HOSTILE, [Picture(svg, HOSTILE)], [Grid([HOSTILE], [[HOSTILE]], HOSTILE)], [(HOSTILE, HOSTILE)],
        [Slider([HOSTILE, HOSTILE], [HOSTILE], [1, 2], [[(HOSTILE, None)], [(HOSTILE, True)]], 0, HOSTILE)], [],
        [(HOSTILE, HOSTILE)],
    )  # fmt: skip
    page = render_report(
        HOSTILE, [section], outcome=Outcome(None, HOSTILE, [(HOSTILE, HOSTILE)], HOSTILE), lead=HOSTILE, footer=HOSTILE,
        made=[(HOSTILE, HOSTILE)],
    )  # fmt: skip
    card = model_card(preset("huginn-tiny"), title=HOSTILE, sections={HOSTILE: HOSTILE})
    for text in (svg, page, card, html_of(Text(HOSTILE))):
        check_shown(text, whole=False)
    assert not is_edited(card.encode())


def test_tokens_of_the_explorer_are_written_out() -> None:
    pieces = ["", "x", HOSTILE]
    tokenizer = SimpleNamespace(all_special_ids=[0], decode=lambda ids: "".join(pieces[i] for i in ids))
    texts = TokenTexts(
        type("Words", (), {**vars(tokenizer), "__len__": lambda self: 3, "decode": staticmethod(tokenizer.decode)})()
    )
    assert texts(2) == SHOWN and texts(1) == "x"
