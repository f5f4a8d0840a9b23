"""What belongs to the process: a second Ctrl-C, threads of small models, and what a terminal is shown."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import loopwright as lw
from loopwright import process as threads
from loopwright.analysis.report.page import Grid, Outcome, Picture, Section, Slider, render_report
from loopwright.checkpoints.save import is_edited, model_card
from loopwright.cli.console import console, show, table, warn
from loopwright.errors import one_line, run_and_exit, visible_warnings
from loopwright.model.presets import preset
from loopwright.plot import html_of
from loopwright.plot.figures import Curve, loss_curves
from loopwright.process import Screen, fitting_threads, say, second_ends_at_once, stream_out
from loopwright.serving.explore.passes import TokenTexts
from loopwright.storage.run import RunFolder
from loopwright.training.report import Progress, Terminal
from loopwright.untrusted import STEERING, visible
from tests.training.runs import small

ROOT = Path(__file__).parent.parent
# minutes in one call that releases the interpreter's lock and looks at no signal
LONG = "hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9)"
VERB = f"import hashlib\nfrom loopwright.process import *\nwith second_ends_at_once():\n    print('ready', flush=True)\n    {LONG}"
TRAIN = f"""
import hashlib
from loopwright.training.report import StopRequest
with StopRequest():
    print("ready", flush=True)
    {LONG}
"""


def start(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *words], env=environment, text=True, **pipes)  # type: ignore[call-overload]


def interrupted_twice(children: dict[subprocess.Popen[str], int]) -> list[tuple[int, float]]:
    """Returns how children ended, and after how many seconds, when their signals came again."""
    try:
        for wait in (1.0, 0.3):  # from the word that they are ready into the long call; the same key press, told twice
            time.sleep(wait)
            for child, number in children.items():
                child.send_signal(number)
        time.sleep(1.0)
        assert all(child.poll() is None for child in children)
        ends = []
        for child, number in children.items():
            began = time.monotonic()
            child.send_signal(number)
            ends.append((child.wait(20), time.monotonic() - began))
        return ends
    finally:
        for child in children:
            child.kill()
            child.communicate()


@pytest.mark.slow
def test_a_second_signal_ends_a_call_that_does_not_come_back() -> None:
    """A verb and a run, by Ctrl-C and by a polite kill, side by side: most of the time is waiting."""
    cases = ((VERB, signal.SIGINT, 130), (TRAIN, signal.SIGINT, 130), (TRAIN, signal.SIGTERM, 143))
    children = {start("-c", program): number for program, number, _ in cases}
    assert all(child.stdout is not None and child.stdout.readline() == "ready\n" for child in children)
    for (found, seconds), (_, _, code) in zip(interrupted_twice(children), cases, strict=True):
        assert found == code and seconds < 2


def test_what_was_set_before_is_set_again() -> None:
    before = signal.set_wakeup_fd(-1)
    try:
        for _ in range(3):
            with second_ends_at_once():
                assert signal.set_wakeup_fd(-1) != -1
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.set_wakeup_fd(before)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_training_at_an_absurd_depth_ends_at_the_second_signal(tmp_path: Path, number: int) -> None:
    words = ["train", "demo-stable", "--toy", "depth={kind: fixed, depth: 100000}", "validate={every: 0}", "penalties=[]"]
    child = start("-m", "loopwright", *words, "--out", str(tmp_path / "run"))
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "log.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(5)  # inside the first update
    ((found, seconds),) = interrupted_twice({child: number})
    assert found == 128 + number and seconds < 2


def test_small_models_run_on_one_thread_unless_somebody_has_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, model = torch.get_num_threads(), lw.build("huginn-tiny")
    threads._say_once.cache_clear()
    torch.set_num_threads(2)
    try:
        for _ in range(2):
            with fitting_threads(model):
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 2
        said = capsys.readouterr().err
        assert said.count("threads: 1 of 2, for a model of ") == 1 and "OMP_NUM_THREADS" in said
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        with fitting_threads(model):
            assert torch.get_num_threads() == 2
        assert capsys.readouterr().err == ""
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("machine", "left"), [("aarch64", False), ("x86_64", True)])
def test_small_models_do_without_onednn_on_arm(monkeypatch: pytest.MonkeyPatch, machine: str, left: bool) -> None:
    monkeypatch.setattr(threads.platform, "machine", lambda: machine)
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = True
    try:
        with fitting_threads(lw.build("huginn-tiny")):
            assert torch.backends.mkldnn.enabled == left
        assert torch.backends.mkldnn.enabled
        with fitting_threads(torch.nn.Linear(1200, 1000)):
            assert torch.backends.mkldnn.enabled, "a large model keeps it"
    finally:
        torch.backends.mkldnn.enabled = before


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
            run_and_exit(work, KeyError)
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
