"""The run folder: its checkpoints, the log of a resumed run, the lock, and a full disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from loopwright.storage import run as run_module
from loopwright.storage.run import RunFolder, origin, saved, update_of
from loopwright.version import VERSION

ROOT = Path(__file__).parents[2]


# its checkpoints


def test_checkpoints_are_listed_newest_first_and_one_that_was_replaced_after_what_replaced_it(tmp_path: Path) -> None:
    for name in ("00000002", "00000060.replaced", "00000060", "100000000", ".00000070.12.tmp", "notes"):
        (tmp_path / name).mkdir()
    assert [path.name for path in saved(tmp_path)] == ["100000000", "00000060", "00000060.replaced", "00000002"]
    assert update_of(tmp_path / "00000060.replaced") == 60 and update_of(tmp_path / "notes") == -1
    assert saved(tmp_path / "absent") == []


# the folder and its lock


def test_paths(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    names = [path.name for path in (run.recipe, run.origin, run.log, run.checkpoints, run.eval, run.figures)]
    assert names == ["recipe.yaml", "origin.json", "log.jsonl", "checkpoints", "eval", "figures"]


def hold(folder: Path, said: Any, stay: bool) -> None:
    try:
        with RunFolder(folder).locked():
            worker = os.fork() if stay else 0
            if stay:
                said.send(worker) if worker else None
                time.sleep(60)
            else:
                said.send("held")
    except ValueError as error:
        said.send(str(error))


def test_one_process_at_a_time_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / ".log.0a1b2c3d.tmp").write_text("left by a killed write")
    forks = multiprocessing.get_context("fork")
    here, there = forks.Pipe()
    first = forks.Process(target=hold, args=(folder, there, True))
    first.start()
    assert here.poll(60), "the child said nothing"
    worker = here.recv()
    try:
        assert not (folder / ".log.0a1b2c3d.tmp").exists()
        with pytest.raises(ValueError, match=f"process {first.pid} on .* is training into this run folder; allowed: one"):
            RunFolder(folder).locked().__enter__()
        first.kill()
        first.join()
        # the worker that outlives it, as one that reads data may, holds nothing
        with RunFolder(folder).locked() as run:
            assert run.path == folder
            second = forks.Process(target=hold, args=(folder, there, False))
            second.start()
            assert here.poll(60) and here.recv().startswith(f"{folder}: process {os.getpid()} on ")
            second.join()
        last = forks.Process(target=hold, args=(folder, there, False))
        last.start()
        assert here.poll(60) and here.recv() == "held"
        last.join()
    finally:
        os.kill(worker, signal.SIGKILL)


def fail(folder: Path, **writes: str) -> list[str] | None:
    """What a folder holds after a start that wrote these files into it, and failed; None where it is not there."""
    with suppress(KeyError), RunFolder(folder).locked() as run:
        for name, text in writes.items():
            path = run.path / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        raise KeyError
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")) if folder.exists() else None


START = {"recipe.yaml": "a: b", "origin.json": "{}", "tracking.json": "{}", "log.jsonl": ""}


def test_a_start_that_failed_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert fail(tmp_path / "new") is None and fail(tmp_path / "there") == []
    assert fail(tmp_path / "new", **START) is None and fail(tmp_path / "there", **START) == []
    assert fail(tmp_path / "new", **{"data/.train.lock": ""}) is None and fail(tmp_path / "there", **{"data/.train.lock": ""}) == []
    assert fail(tmp_path / "a" / "b" / "c", **START) is None and not (tmp_path / "a").exists()
    tracked = {"tensorboard/events.1": "", "wandb/run-1/logs/debug.log": ""}
    assert fail(tmp_path / "new", **START, **tracked) is None and fail(tmp_path / "there", **START, **tracked) == []


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file", "{}/file is a file"),
        ("file/inner", "{}/file is a file"),
        ("/dev/null/run", ".*"),
        ("x" * 300, "file name too long"),
    ],
)
def test_a_folder_that_cannot_be_made_is_named_with_the_reason_and_what_to_do(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "file").write_text("mine")
    reason = reason.format(tmp_path)
    message = rf"^out: cannot write into {tmp_path / place} \({reason}\); give another folder$"
    with pytest.raises(OSError, match=message), RunFolder(tmp_path / place).locked():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_start_that_failed_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert fail(tmp_path, **START) == ["notes.txt"]
    (tmp_path / "recipe.yaml").write_text("mine")
    assert fail(tmp_path) == ["notes.txt", "recipe.yaml"] and (tmp_path / "recipe.yaml").read_text() == "mine"
    assert fail(tmp_path / "a" / "b", **START, mine="while it ran") == ["mine"]
    (tmp_path / "c" / "wandb").mkdir(parents=True)
    (tmp_path / "c" / "log.jsonl").symlink_to("elsewhere")
    (tmp_path / "c" / ".notes.tmp").touch()
    assert fail(tmp_path / "c") == [".notes.tmp", "log.jsonl", "wandb"]


def test_another_start_cannot_begin_before_what_a_failed_one_made_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the shards that it writes would go."""
    remove, locks = shutil.rmtree, []

    def watched(path: Path, **options: Any) -> None:
        locks.append((tmp_path / "new" / ".lock").exists())
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", watched)
    assert fail(tmp_path / "new", **START, **{"data/.train.lock": "", "wandb/a": ""}) is None and locks == [True, True]


def test_what_goes_wrong_is_told_where_what_was_written_cannot_be_removed(tmp_path: Path) -> None:
    def start() -> None:
        with RunFolder(tmp_path / "new").locked() as run:
            run.recipe.mkdir()  # no file can be removed there
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        start()


def test_a_lock_that_no_run_wrote_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("of another program")
    with pytest.raises(ValueError, match=r"\.lock: is there, and no run wrote it; move it away"):
        RunFolder(tmp_path).locked().__enter__()
    assert (tmp_path / ".lock").read_text() == "of another program"
    (tmp_path / ".lock").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"\.lock: is there, and no run wrote it; move it away"):
        RunFolder(tmp_path).locked().__enter__()
    assert (tmp_path / ".lock").read_bytes() == b"\xff\xfe"


def test_one_process_trains_one_run_into_a_folder(tmp_path: Path) -> None:
    """The lock of the operating system is the process's: it would let a second run in, and end with it."""
    (tmp_path / "same").symlink_to(tmp_path / "run")
    with RunFolder(tmp_path / "run").locked():
        for name in ("run", "same"):
            with pytest.raises(ValueError, match="this process is training into this run folder already; allowed: one run"):
                RunFolder(tmp_path / name).locked().__enter__()
        assert (tmp_path / "run" / ".lock").exists()
    with RunFolder(tmp_path / "run").locked():
        pass


def test_what_no_run_wrote_is_told_from_what_a_start_left(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.not_ours is None
    for path in (run.checkpoints, run.tracking, run.log, run.recipe):
        path.write_text("mine")
        assert run.not_ours == path
    for text in ("mine", "[]", '{"mine": 1}'):
        run.origin.write_text(text)
        assert run.not_ours == run.recipe
    run.origin.write_text('{"loopwright": "0.1"}')
    assert run.not_ours is None


def test_a_start_that_failed_leaves_token_shards_and_what_has_updates(tmp_path: Path) -> None:
    assert fail(tmp_path / "new", **START, **{"data/x.bin": "1"}) == ["data", "data/x.bin"]
    assert fail(tmp_path / "new", **START) == ["data", "data/x.bin"]
    after = {**START, "log.jsonl": '{"update": 0}'}
    assert fail(tmp_path / "run", **after) == sorted([".lock", *START]) and fail(tmp_path / "run") == sorted([".lock", *START])


def test_a_folder_that_went_before_its_lock_was_opened_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another start that failed took it away."""
    tries: list[Path] = []

    def late(path: Path, mode: str, **options: Any) -> Any:
        tries.append(path)
        if len(tries) < often:
            path.parent.rmdir()
        return open(path, mode, **options)

    monkeypatch.setattr(run_module, "open", late, raising=False)
    often = 2
    with RunFolder(tmp_path / "run").locked() as run:
        assert run.path.is_dir() and len(tries) == 2
    often = 9
    with pytest.raises(FileNotFoundError), RunFolder(tmp_path / "run").locked():
        pass


def test_a_lock_that_went_while_it_was_waited_for_lets_nobody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that failed takes its lock away: who opened it before holds a file that nobody else sees."""
    import fcntl

    take = fcntl.lockf

    def late(file: Any, how: int) -> None:
        (tmp_path / ".lock").unlink()
        take(file, how)

    monkeypatch.setattr(fcntl, "lockf", late)
    with pytest.raises(ValueError, match="is training into this run folder"), RunFolder(tmp_path).locked():
        pass
    (tmp_path / ".lock").touch()
    monkeypatch.setattr(fcntl, "lockf", lambda file, how: (late(file, how), (tmp_path / ".lock").touch()))
    with pytest.raises(ValueError, match="is training into this run folder"), RunFolder(tmp_path).locked():
        pass


# where it came from


def test_origin_says_what_made_a_run() -> None:
    facts = origin(["loopwright", "train", "a b"])
    assert facts["loopwright"] == VERSION and facts["command"] == "loopwright train 'a b'" and facts["devices"]
    assert json.loads(json.dumps(facts)) == facts
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    if commit.returncode == 0 and (ROOT / ".git").exists():
        assert facts["commit"] == commit.stdout.strip() and isinstance(facts["changed"], bool)


def test_a_package_that_lies_in_a_strangers_checkout_has_the_commit_of_its_archive_alone(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "loopwright"
    package.mkdir(parents=True)
    (package / "version.py").write_text("")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    try:
        subprocess.run([*git, "init", "-q"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git")
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True, capture_output=True)
    assert run_module._commit(package) == {"commit": None, "changed": None}
    archived = package / "archived.txt"
    archived.write_text("$Format:%H$\n")
    assert run_module._commit(package) == {"commit": None, "changed": None}
    archived.write_text(f"{'0a' * 20}\n")
    assert run_module._commit(package) == {"commit": "0a" * 20, "changed": None}
    subprocess.run([*git, "add", "-f", "."], check=True, capture_output=True)
    subprocess.run([*git, "commit", "-q", "-m", "ours"], check=True, capture_output=True)
    facts = run_module._commit(package)
    assert len(facts["commit"]) == 40 and facts["changed"] is False
    for place in ("study", "study/results"):  # code of another's that a row hangs on as well, and what it writes
        (tmp_path / place).mkdir()
        (tmp_path / place / "row.py").write_text("")
    alone, all_but_results = run_module._commit(package), (":(top)study", ":(top,exclude)study/results")
    assert alone["changed"] is False and run_module._commit(package, all_but_results)["changed"] is True
    (tmp_path / "study" / "row.py").unlink()
    assert run_module._commit(package, all_but_results)["changed"] is False
    (package / "more.py").write_text("")
    assert run_module._commit(package)["changed"] is True
