"""Checkpoints under kills and full disks at every moment of a save, and under damage of every kind."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.storage.files import DiskFull
from loopwright.training import checkpoint as checkpoint_module
from loopwright.training.checkpoint import latest_good
from tests.attack.harness import hurt
from tests.cases import noisy
from tests.training.test_checkpoint import marked, names, save

FORKS = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that it gave to the system; that saves wait for the disk is tested beside."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def model() -> lw.LoopedForCausalLM:
    return noisy("stars-addition-tiny")


def in_child(work: Callable[[], int]) -> int:
    """Runs `work` in a fork and returns how it ended: what it said, 7 for a full disk, 1 for an error, −9 where it was killed."""

    def guarded() -> None:
        try:
            os._exit(work())
        except DiskFull:
            os._exit(7)

    child = FORKS.Process(target=guarded)
    child.start()
    child.join(60)
    ended = child.exitcode
    child.kill()
    child.join()
    assert ended is not None, "the child did not end within a minute"
    return ended


def at_event(number: int, folder: Path, act: Callable[[], None], *, writes_only: bool) -> Callable[[], int]:
    """Acts when this process does something to the files of a folder for the n-th time: open, make, rename, remove, sync.

    Returns what tells in the end whether that came: 0 where it did not, else 5.
    """
    events = {"open", "os.mkdir"} if writes_only else {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
    left = [number]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            act()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in events and str(arguments[0]).startswith(str(folder)):
            count()

    os.fsync = lambda handle: count()  # type: ignore[assignment]
    sys.addaudithook(hook)
    return lambda: 0 if left[0] > 0 else 5


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fill() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.long
@pytest.mark.parametrize(
    ("update", "first"), [pytest.param(2, 1, id="follows", marks=pytest.mark.slow), pytest.param(1, 25, id="replaces")]
)
def test_killed_at_every_event_of_a_save_a_whole_checkpoint_is_there(
    tmp_path: Path, model: lw.LoopedForCausalLM, update: int, first: int
) -> None:
    """`keep` is 1: what is killed between putting the new one in place and removing the old one counts too.

    One that replaces another differs from one that follows it only in the last events.
    """
    base = tmp_path / "base"
    save(base, 1, model)
    ended, number = -9, first - 1
    while ended == -9:
        number += 1
        place = tmp_path / f"{number}"
        shutil.copytree(base, place)

        def work(place: Path = place, number: int = number) -> int:
            came = at_event(number, place, die, writes_only=False)
            save(place, update, model, keep=1, state={"rows": 100 + update})
            return came()

        ended = in_child(work)
        assert ended in (-9, 0)
        found, skipped = latest_good(place)
        assert skipped == [] and found.update in (1, update) and marked(found.folder) == found.update
        assert found.state["rows"] in (1, 100 + update)
        if number % 3 == 0 or ended == 0:
            save(place, 3, model, keep=1)
            assert names(place) == ["00000003"]
        shutil.rmtree(place)
    assert number > 35  # the events were counted at all


@pytest.mark.long
def test_a_disk_that_fills_at_any_write_leaves_the_old_checkpoint_and_no_rubbish(
    tmp_path: Path, model: lw.LoopedForCausalLM
) -> None:
    base = tmp_path / "base"
    save(base, 1, model)
    ended, number = 7, 0
    while ended:
        number += 1
        place = tmp_path / f"{number}"
        shutil.copytree(base, place)

        def work(place: Path = place, number: int = number) -> int:
            came = at_event(number, place, fill, writes_only=True)
            save(place, 2, model, keep=2)
            return came()

        ended = in_child(work)
        assert ended in (7, 5, 0)
        assert names(place) in (["00000001"], ["00000001", "00000002"])
        assert latest_good(place)[1] == []
        shutil.rmtree(place)
    assert number > 10


@pytest.mark.parametrize("where", ["save_file", "save_pretrained"])
def test_a_disk_that_fills_inside_safetensors_is_named(
    tmp_path: Path, model: lw.LoopedForCausalLM, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    from safetensors import SafetensorError

    def full(*arguments: Any, **named: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    save(tmp_path, 1, model)
    monkeypatch.setattr(*((checkpoint_module, where, full) if where == "save_file" else (type(model), where, full)))
    with pytest.raises(DiskFull) as caught:
        save(tmp_path, 2, model)
    line = str(caught.value)
    assert line.startswith(f"{tmp_path / '00000002'}: the disk is full (") and "\n" not in line
    assert line.endswith(" were to be written); the checkpoints that were there are unharmed")
    assert names(tmp_path) == ["00000001"]


def save_on(place: Path, model: lw.LoopedForCausalLM) -> None:
    for update in range(2, 10_000):
        save(place, update, model, keep=1)


def kill_at_random(place: Path, model: lw.LoopedForCausalLM, seed: int) -> None:
    save(place, 1, model)
    child = FORKS.Process(target=save_on, args=(place, model))
    child.start()
    time.sleep(random.Random(seed).uniform(0.005, 0.25))
    child.kill()
    child.join()
    found, skipped = latest_good(place)
    assert skipped == [] and marked(found.folder) == found.update == found.state["rows"]
    assert torch.equal(lw.load(found.folder).lm_head.weight, model.lm_head.weight)
    save(place, found.update + 1, model, keep=1)
    assert names(place) == [f"{found.update + 1:08d}"]
    shutil.rmtree(place)


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_a_random_moment(tmp_path: Path, model: lw.LoopedForCausalLM, seed: int) -> None:
    kill_at_random(tmp_path / "c", model, seed)


@pytest.mark.slow
def test_killed_at_twenty_random_moments(tmp_path: Path, model: lw.LoopedForCausalLM) -> None:
    for seed in range(3, 23):
        kill_at_random(tmp_path / "c", model, seed)


# damage


def damage(folder: Path, rng: random.Random) -> tuple[Path, str, Callable[[], None]]:
    """Damages one file of a folder at random; returns which, how, and what undoes it."""
    path = rng.choice(sorted(folder.iterdir()))
    content = path.read_bytes()
    return path, hurt(path, rng), lambda: (path.write_bytes(content), None)[1]


def damage_often(checkpoints: Path, model: lw.LoopedForCausalLM, times: int) -> None:
    for update in (1, 2, 3):
        save(checkpoints, update, model)
    rng, newest = random.Random(0), checkpoints / "00000003"
    for _ in range(times):
        path, kind, undo = damage(newest, rng)
        found, skipped = latest_good(checkpoints)
        assert found.update == 2 and len(skipped) == 1, (path, kind)
        assert str(newest) in skipped[0] and (path.name in skipped[0] or path.name == "manifest.json"), (path, kind, skipped)
        undo()
    assert latest_good(checkpoints)[0].update == 3 and latest_good(checkpoints)[1] == []


def test_sixty_random_damages_are_all_found_and_the_one_before_is_used(tmp_path: Path, model: lw.LoopedForCausalLM) -> None:
    damage_often(tmp_path, model, 60)


@pytest.mark.slow
def test_a_thousand_random_damages_are_all_found(tmp_path: Path, model: lw.LoopedForCausalLM) -> None:
    damage_often(tmp_path, model, 1000)
