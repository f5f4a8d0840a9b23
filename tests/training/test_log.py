"""The log: whole rows, the same after a resume, every edit before a checkpoint found."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.storage.files import DiskFull
from loopwright.training import report as module
from loopwright.training.report import Log, last_row, read_log
from tests.training.runs import untimed


def row(update: int, loss: float, *, seconds: float = 0.0) -> dict[str, Any]:
    return {"update": update, "loss": loss, "seconds": seconds}


@settings(max_examples=60)
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
    again = Log(folder / "killed", mark_of((folder / "whole").read_bytes()[:safe]))
    for entry in rows(resumed, 2.0):
        again.write(entry)
    again.close()
    assert [untimed(r) for r in read_log(folder / "killed")] == [untimed(r) for r in read_log(folder / "whole")]
    assert len(lines(folder / "killed")) == len(lines(folder / "whole"))


def mark_of(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_numbers_come_back_bit_for_bit_and_non_finite_ones_as_null(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.write({"update": 0, "loss": 0.1 + 0.2, "depth": (4, 8), "bad": [float("nan"), float("inf")]})
    assert read_log(tmp_path / "log") == [{"update": 0, "loss": 0.1 + 0.2, "depth": [4, 8], "bad": [None, None]}]
    log.close()


def test_a_new_log_begins_empty_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    whole = b'{"update": 0}\n{"update": 1}\n'
    (tmp_path / "log").write_bytes(whole + b'{"upd')
    assert read_log(tmp_path / "log") == [{"update": 0}, {"update": 1}]
    again = Log(tmp_path / "log", mark_of(whole))
    assert again.mark() == mark_of(whole)
    again.close()
    assert (tmp_path / "log").read_bytes() == whole
    Log(tmp_path / "log").close()
    assert (tmp_path / "log").read_bytes() == b""


@pytest.mark.long
def test_every_edit_before_the_mark_is_found(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    for update in range(6):
        log.write(row(update, 0.5))
    mark = log.mark()
    log.close()
    whole = (tmp_path / "log").read_bytes()
    assert mark == mark_of(whole)
    edits = [whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :] for at in range(len(whole)) for bit in (1, 16)]
    edits += [whole[:at] for at in range(len(whole))]
    edits += [whole.replace(b'"update": 2', b'"update": 9'), b"".join(sorted(lines(tmp_path / "log"), reverse=True))]
    for edited in edits:
        (tmp_path / "log").write_bytes(edited)
        with pytest.raises(ValueError, match=r"log(: changed since the checkpoint|, line \d: not a JSON object).*move it away"):
            Log(tmp_path / "log", mark)
        assert (tmp_path / "log").read_bytes() == edited  # nothing is cut off what may be put right
    (tmp_path / "log").unlink()  # moved away: the log begins anew
    Log(tmp_path / "log", mark).close()
    assert (tmp_path / "log").read_bytes() == b""


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"update": 0}\nnull\n{"update": 2}\n')
    for read in (read_log, lambda path: Log(path, {"bytes": 33, "sha256": "0"})):
        with pytest.raises(ValueError, match=r"log, line 2: not a JSON object; the log is damaged"):
            read(tmp_path / "log")
    assert len(lines(tmp_path / "log")) == 3


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_while_logging_is_named(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.raises(DiskFull, match=r"log: the disk is full .*; the checkpoints are unharmed"):
        log.write({"update": 0})


@settings(max_examples=30)
@given(
    rows=st.lists(st.sampled_from(["loss", "valid"]), max_size=8), torn=st.sampled_from(["", '{"valid": 9', '{"valid": 9}']),
    block=st.integers(1, 40),
)  # fmt: skip
def test_the_last_row_of_a_name_is_found_however_far_back_it_stands(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], torn: str, block: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_text("".join(json.dumps({"update": n, name: n}) + "\n" for n, name in enumerate(rows)) + torn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        found = last_row(path, "valid")
    assert found == next((row for row in reversed(read_log(path)) if "valid" in row), None)
