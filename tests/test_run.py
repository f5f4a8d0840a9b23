"""The run folder: whole writes, manifests, the log of a resumed run, the lock, and a full disk."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright import run as run_module
from loopwright.run import (
    MANIFEST,
    TIMING_KEYS,
    DiskFull,
    Log,
    RunFolder,
    clear_leftovers,
    origin,
    read_json,
    read_log,
    untimed,
    verify,
    whole_folder,
    write_json,
    write_manifest,
    write_whole,
)
from loopwright.version import VERSION

ROOT = Path(__file__).parent.parent


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# whole writes


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "one")
    write_whole(tmp_path / "a", b"two")
    assert tree(tmp_path) == {"a": b"two"}
    write_json(tmp_path / "b.json", {"x": [1, 2.5, None]})
    assert read_json(tmp_path / "b.json") == {"x": [1, 2.5, None]}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    write_whole(tmp_path / "a", "one")
    monkeypatch.setattr(run_module.os, call, failing(OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"):
        write_whole(tmp_path / "a", "two")
    assert tree(tmp_path) == {"a": b"one"}


def test_a_full_disk_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a", "one")
    monkeypatch.setattr(run_module.os, "fsync", failing(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(DiskFull) as caught:
        write_whole(tmp_path / "a", "x" * 2_500_000)
    assert str(caught.value) == f"{tmp_path / 'a'}: the disk is full (2.5 MB were to be written); what stood there is unharmed"
    assert tree(tmp_path) == {"a": b"one"}


def test_a_folder_appears_whole_with_its_manifest(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "f", needed=3, kept="nothing") as made:
        (made / "a").write_text("one")
        (made / "a").chmod(0o600)
        assert not (tmp_path / "f").exists()
    assert len({path.stat().st_mode for path in (tmp_path / "f").iterdir()}) == 1  # who reads the manifest reads the rest
    assert sorted(tree(tmp_path)) == ["f/a", f"f/{MANIFEST}"] and verify(tmp_path / "f") == []
    with whole_folder(tmp_path / "f", needed=3, kept="nothing") as made:
        (made / "b").write_text("two")
    assert sorted(tree(tmp_path)) == ["f/b", f"f/{MANIFEST}"] and verify(tmp_path / "f") == []


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), RuntimeError("I/O error: No space left (os error 28)")])
def test_a_folder_that_does_not_fit_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(DiskFull, match=r"the disk is full.*; the others are unharmed"):
        write_folder(tmp_path / "f", error)
    assert list(tmp_path.iterdir()) == []


def write_folder(path: Path, error: Exception) -> None:
    with whole_folder(path, needed=0, kept="the others are unharmed") as made:
        (made / "a").write_text("one")
        raise error


def test_a_folder_larger_than_the_disk_is_refused_before_it_is_begun(tmp_path: Path) -> None:
    place = whole_folder(tmp_path / "f", needed=10**15, kept="all is well")
    with pytest.raises(DiskFull, match=r"1e\+03 TB needed, .* free\); all is well"):
        place.__enter__()
    assert list(tmp_path.iterdir()) == []


def test_other_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(KeyError), whole_folder(tmp_path / "f", needed=0, kept=""):
        raise KeyError("x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with whole_folder(tmp_path / "f", needed=3, kept="") as made:
        (made / "a").write_text("one")
    rename, calls = os.rename, iter([rename_ok := os.rename, failing(OSError(errno.EIO, "broken")), rename_ok])
    monkeypatch.setattr(run_module.os, "rename", lambda *names: next(calls, rename)(*names))
    with pytest.raises(OSError, match="broken"), whole_folder(tmp_path / "f", needed=3, kept="") as made:
        (made / "b").write_text("two")
    assert sorted(tree(tmp_path)) == ["f/a", f"f/{MANIFEST}"]


def test_leftovers_are_cleared_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".x.1234.tmp").mkdir()
    (tmp_path / ".x.1234.tmp" / "a").write_text("")
    for name in (".y.12.tmp", "z.tmp", ".lock"):
        (tmp_path / name).write_text("")
    clear_leftovers(tmp_path)
    assert sorted(tree(tmp_path)) == [".lock", "z.tmp"]
    clear_leftovers(tmp_path / "absent")


def failing(error: Exception) -> Any:
    def fail(*arguments: Any) -> None:
        raise error

    return fail


# manifests


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "sub" / "ü.txt").write_text("text")
    write_manifest(tmp_path)
    return tmp_path


def test_a_manifest_holds_size_and_sum(folder: Path) -> None:
    sha = "40aff2e9d2d8922e47afd4648e6967497158785fbd1da870e7110266bf944880"
    assert read_json(folder / MANIFEST)["files"]["a.bin"] == {"bytes": 256, "sha256": sha}
    assert verify(folder) == []
    (folder / ".DS_Store").write_text("the file system's own")
    assert verify(folder) == []


def test_each_kind_of_damage_is_named(folder: Path) -> None:
    cases: list[tuple[str, bytes | None, str]] = [
        ("a.bin", b"\x01" + bytes(range(1, 256)), "a.bin: its content changed (sha256 differs)"),
        ("a.bin", bytes(range(255)), "a.bin: 255 bytes where the manifest says 256"),
        ("a.bin", None, "a.bin: missing"),
        ("sub/extra", b"", "sub/extra: not in the manifest"),
        (MANIFEST, None, "manifest.json: missing"),
        (MANIFEST, b'{"files": {', "manifest.json: not readable as JSON"),
        (MANIFEST, b"[]", "manifest.json: holds a list; allowed: a JSON object"),
        (MANIFEST, b"[" * 100_000, "manifest.json: not readable as JSON"),
        (MANIFEST, b"{}", "manifest.json: not in the form in which it was written"),
        (MANIFEST, (folder / MANIFEST).read_bytes() + b"\n", "manifest.json: not in the form in which it was written"),
    ]
    for name, content, message in cases:
        path = folder / name
        before = path.read_bytes() if path.exists() else None
        path.unlink() if content is None else path.write_bytes(content)
        problems = verify(folder)
        assert len(problems) == 1 and message in problems[0], (name, problems)
        path.unlink(missing_ok=True) if before is None else path.write_bytes(before)
    assert verify(folder) == []


def test_a_link_or_pipe_in_the_place_of_a_file_is_not_followed(folder: Path) -> None:
    (folder / "a.bin").rename(folder.parent / "moved")
    (folder / "a.bin").symlink_to(folder.parent / "moved")
    assert [p.split(": ")[1] for p in verify(folder)] == ["not a plain file"]
    (folder / "a.bin").unlink()
    os.mkfifo(folder / "a.bin")
    assert [p.split(": ")[1] for p in verify(folder)] == ["not a plain file"]


def test_a_plain_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "x.json", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"1.1 TB; allowed: at most 67.1 MB"):
        read_json(tmp_path / "x.json")


def test_what_is_not_plain_data_is_refused(tmp_path: Path) -> None:
    for data in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(ValueError, match="not plain data"):
            write_json(tmp_path / "x.json", data)
    assert list(tmp_path.iterdir()) == []


# the log


def row(update: int, loss: float, *, seconds: float = 0.0) -> dict[str, Any]:
    return {"update": update, "loss": loss, "seconds": seconds}


@settings(max_examples=60, deadline=None)
@given(
    losses=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8),
    looks=st.sets(st.integers(0, 7)),
    resumed=st.integers(0, 8),
    cut=st.integers(0, 400),
)
def test_the_log_of_a_resumed_run_is_that_of_an_uninterrupted_one(
    tmp_path_factory: pytest.TempPathFactory, losses: list[float], looks: set[int], resumed: int, cut: int
) -> None:
    """Killed at any byte after a checkpoint's rows; the rows of later updates were or were not written."""
    folder = tmp_path_factory.mktemp("log")

    def rows(first: int, seconds: float) -> Iterator[dict[str, Any]]:
        for update in range(first, len(losses)):
            yield row(update, losses[update], seconds=seconds)
            if update in looks:
                yield {"update": update, "valid": {"4": {"loss": losses[update]}}}

    whole, killed = Log(folder / "whole"), Log(folder / "killed")
    for entry in rows(0, 1.0):
        whole.write(entry)
        killed.write(entry)
    whole.close()
    killed.close()
    resumed = min(resumed, len(losses))
    safe = sum(len(line) for line in lines(folder / "whole") if json.loads(line)["update"] < resumed)
    os.truncate(folder / "killed", max(safe, os.path.getsize(folder / "killed") - cut))
    again = Log(folder / "killed", updates=resumed)
    for entry in rows(resumed, 2.0):
        again.write(entry)
    again.close()
    assert [untimed(r) for r in read_log(folder / "killed")] == [untimed(r) for r in read_log(folder / "whole")]
    assert len(lines(folder / "killed")) == len(lines(folder / "whole"))


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_numbers_come_back_bit_for_bit_and_non_finite_ones_as_null(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.write({"update": 0, "loss": 0.1 + 0.2, "depth": (4, 8), "bad": [float("nan"), float("inf")]})
    assert read_log(tmp_path / "log") == [{"update": 0, "loss": 0.1 + 0.2, "depth": [4, 8], "bad": [None, None]}]
    log.close()


def test_a_new_log_begins_empty_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"update": 0}\n{"update": 1}\n{"upd')
    assert read_log(tmp_path / "log") == [{"update": 0}, {"update": 1}]
    Log(tmp_path / "log", updates=2).close()
    assert (tmp_path / "log").read_bytes() == b'{"update": 0}\n{"update": 1}\n'
    Log(tmp_path / "log").close()
    assert (tmp_path / "log").read_bytes() == b""


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"update": 0}\nnull\n{"update": 2}\n')
    with pytest.raises(ValueError, match=r"log, line 2: not a JSON object; the log is damaged"):
        Log(tmp_path / "log", updates=3)
    assert len(lines(tmp_path / "log")) == 3


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_while_logging_is_named(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.raises(DiskFull, match=r"log: the disk is full .*; the checkpoints are unharmed"):
        log.write({"update": 0})


def test_timing_keys_are_left_out_of_comparisons() -> None:
    assert untimed({"update": 1, **dict.fromkeys(TIMING_KEYS, 2.0)}) == {"update": 1}


# the folder and its lock


def test_paths(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    names = [path.name for path in (run.recipe, run.origin, run.log, run.checkpoints, run.eval, run.figures, run.report)]
    assert names == ["recipe.yaml", "origin.json", "log.jsonl", "checkpoints", "eval", "figures", "report.html"]


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
    (folder / ".log.12.tmp").write_text("left by a killed write")
    forks = multiprocessing.get_context("fork")
    here, there = forks.Pipe()
    first = forks.Process(target=hold, args=(folder, there, True))
    first.start()
    worker = here.recv()
    try:
        assert not (folder / ".log.12.tmp").exists()
        with pytest.raises(ValueError, match=f"process {first.pid} on .* is training into this run folder; allowed: one"):
            RunFolder(folder).locked().__enter__()
        first.kill()
        first.join()
        # the worker that outlives it, as one that reads data may, holds nothing
        with RunFolder(folder).locked() as run:
            assert run.path == folder
            second = forks.Process(target=hold, args=(folder, there, False))
            second.start()
            assert here.recv().startswith(f"{folder}: process {os.getpid()} on ")
            second.join()
        last = forks.Process(target=hold, args=(folder, there, False))
        last.start()
        assert here.recv() == "held"
        last.join()
    finally:
        os.kill(worker, signal.SIGKILL)


# where it came from


def test_origin_says_what_made_a_run() -> None:
    facts = origin(["loopwright", "train", "a b"])
    assert facts["loopwright"] == VERSION and facts["command"] == "loopwright train 'a b'" and facts["devices"]
    assert json.loads(json.dumps(facts)) == facts
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    if commit.returncode == 0 and (ROOT / ".git").exists():
        assert facts["commit"] == commit.stdout.strip() and isinstance(facts["changed"], bool)


def test_a_package_that_lies_in_a_strangers_checkout_has_no_commit(tmp_path: Path) -> None:
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
    subprocess.run([*git, "add", "-f", "."], check=True, capture_output=True)
    subprocess.run([*git, "commit", "-q", "-m", "ours"], check=True, capture_output=True)
    facts = run_module._commit(package)
    assert len(facts["commit"]) == 40 and facts["changed"] is False
    (package / "more.py").write_text("")
    assert run_module._commit(package)["changed"] is True
