"""The demo: its verdict can fail, and its page is whole. The real one runs for minutes: `loopwright demo`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from loopwright.cli.demonstration import BEYOND, MARK, REPORT, Story, _path, demo, judge, plain_sum, tell, write
from loopwright.data.tasks.task import Table
from loopwright.storage.run import RunFolder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return tell("plain", tmp_path_factory.mktemp("demo"), toy=True)


@pytest.fixture(scope="module")
def stories(plain: Story, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Story]:
    return {"plain": plain, "stable": tell("stable", tmp_path_factory.mktemp("demo"), toy=True)}


def with_accuracy(story: Story, near: float, far: float) -> Story:
    exact = tuple(far if depth > 2 * story.median else near for depth in story.report.depth)
    return replace(story, report=replace(story.report, exact=exact))


@pytest.mark.slow
def test_the_verdict_needs_collapse_and_hold(stories: dict[str, Story]) -> None:
    plain, stable = stories["plain"], stories["stable"]
    assert judge(stories).holds is None and "Before more depth can do harm" in judge(stories).sentence  # two updates teach nothing
    shown = {"plain": with_accuracy(plain, 1.0, 0.0), "stable": with_accuracy(stable, 0.999, 0.999)}
    assert judge(shown).holds
    assert judge({**shown, "plain": with_accuracy(plain, 1.0, 0.9)}).holds is False
    assert judge({**shown, "plain": with_accuracy(plain, 0.6, 0.0)}).holds is None
    assert judge({**shown, "stable": with_accuracy(stable, 1.0, 0.98)}).holds is False
    assert stable.report.accuracy().keys() >= {BEYOND * stable.median}


@pytest.mark.slow
def test_the_page_holds_every_figure_and_no_link(stories: dict[str, Story], tmp_path: Path) -> None:
    text = write(tmp_path, stories, 1.0).read_text()
    assert text.count("<svg") >= 5 and "http://" not in text.replace("http://www.w3.org", "") and "<script" not in text
    for heading in ("Accuracy against depth", "Does a step contract?", "Where the state goes", "Learning"):
        assert heading in text


@pytest.mark.long
def test_a_sum_is_written_as_people_write_it(plain: Story) -> None:
    sums = cast(Table, plain.trained.splits.tests["test"])
    for row in range(8):
        a, b, total = map(int, re.fullmatch(r"(\d+) \+ (\d+) = (\d+)", plain_sum(sums.show(row))).groups())
        assert a + b == total, sums.show(row)
    _, caption = _path(plain, "plain")
    assert caption == f"The plain model on {plain_sum(sums.show(0))}."


def test_a_toy_does_not_replace_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[Path] = []

    def stop(name: str, folder: Path, *, toy: bool) -> Story:
        made.append(folder)
        raise KeyboardInterrupt

    monkeypatch.setattr("loopwright.cli.demonstration.tell", stop)
    for toy in (False, True):
        with pytest.raises(KeyboardInterrupt):
            demo(toy=toy)
    assert made == [Path("runs/demo"), Path("runs/demo-toy")]


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        demo(str(tmp_path), toy=True)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_an_earlier_demo_makes_room_but_for_what_is_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(name: str, folder: Path, *, toy: bool) -> Story:
        raise KeyboardInterrupt

    monkeypatch.setattr("loopwright.cli.demonstration.tell", stop)
    for name in (MARK, REPORT, "notes.txt", "plain/log.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"holds other files \(notes.txt\); allowed: a new folder"):
        demo(str(tmp_path))
    assert (tmp_path / "notes.txt").exists() and (tmp_path / "plain" / "log.jsonl").exists()
    (tmp_path / "notes.txt").unlink()
    with RunFolder(tmp_path / "plain").locked(), pytest.raises(ValueError, match="is training into this run folder"):
        demo(str(tmp_path))
    assert (tmp_path / REPORT).exists()
    with pytest.raises(KeyboardInterrupt):
        demo(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [MARK]
