"""What a terminal is told, and how Ctrl-C is heard."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import loopwright
from loopwright.data.batch import Batch, Splits
from loopwright.model.cost import TRAINING_FACTOR, pass_flops
from loopwright.model.presets import preset
from loopwright.storage.files import DiskFull
from loopwright.storage.run import RunFolder
from loopwright.training import loop
from loopwright.training import report as module
from loopwright.training.loop import train
from loopwright.training.objectives.losses import EveryStep, Final
from loopwright.training.recipe import make_recipe, written
from loopwright.training.report import (
    Log,
    Objects,
    Progress,
    Silent,
    Speedometer,
    StopRequest,
    Terminal,
    in_words,
    last_row,
    peak_of,
    read_log,
    truncation_in_words,
)
from loopwright.training.rollout import Plan
from tests.training.runs import rows_of, small, untimed

ROW: dict[str, Any] = {"update": 2, "loss": 1.5, "depth": [3, 4], "grad_norm": 0.5, "lr": 1e-3, "targets": 8, "tokens": 40}
SEEN: dict[str, Any] = {
    "valid": {1: {"loss": 2.0, "exact": 0.25}, 4: {"loss": 1.0, "exact": None}},
    "radius": {"radius_mean": 0.875},
    "truncation": {"grad_steps": 3, "depth": 8, "contraction": 0.5},
}


def test_a_terminal_hears_of_everything_that_matters(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    reporter, progress = Terminal("mine", every=0.0), Progress(update=3, skipped=1)
    reporter.prepare("tokenising train", 1000, 5000)
    reporter.start(small(), RunFolder(tmp_path), progress)
    reporter.validation(SEEN, progress)
    reporter.update(ROW, progress, 0.5)
    reporter.update({**ROW, "reward": 0.25}, progress, 0.5)
    reporter.update({**ROW, "loss": float("nan"), "depth": [1, 2, 3, 4, 5], "skipped": True}, progress, 0.5)
    reporter.end(progress, tmp_path / "checkpoints" / "00000003", stopped=True)
    reporter.close()
    said = capsys.readouterr().err
    assert all(line.startswith("mine: ") for line in said.splitlines())
    for words in (
        "tokenising train: 1,000 of 5,000", "reward 0.25  depth 3, 4", "by depth 1: 25.0 %, 4: 1.000", "spectral radius 0.875",
        "loss 1.5000  depth 3, 4  ρ 0.88  80 tokens/s", "update 2 skipped: loss nan, gradient norm 0.5 at depth 1, 2, 3, 4 …",
        "stopped after 3 updates (1 skipped); saved in",
    ):  # fmt: skip
        assert words in said, words
    assert "loss nan  " not in said, "the running loss forgets what is not a number"


def test_lines_come_now_and_then_where_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Terminal("mine", every=1000.0)
    for _ in range(5):
        reporter.update(ROW, Progress(update=3), 0.5)
    assert capsys.readouterr().err == ""


def test_a_line_says_how_far_the_run_is_and_how_long_the_rest_takes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    reporter = Terminal("mine", every=5.0)
    reporter.start(small({"updates": 1210}), RunFolder(tmp_path), Progress(update=10))  # a resumed run counts from where it goes on
    now[0] += 40.0
    reporter.update(ROW, Progress(update=210), 0.2)
    reporter.close()
    assert "mine: update 210 of 1,210 (3 min 20 s left): loss 1.5" in capsys.readouterr().err
    assert [in_words(t) for t in (3.6, 61, 7500, 360000)] == ["4 s", "1 min 1 s", "2 h 5 min", "100 h 0 min"]


def test_truncation_is_said_with_what_it_leaves_out() -> None:
    assert "last 3 steps" in truncation_in_words(SEEN["truncation"]) and "1.2e-01" in truncation_in_words(SEEN["truncation"])
    assert "does not shrink" in truncation_in_words({"grad_steps": 3, "depth": 8, "contraction": 1.25})


def test_quiet_keeps_the_notes(tmp_path: Path) -> None:
    reporter = Silent()
    reporter.note("a line")
    reporter.prepare("x", 1, None)
    reporter.start(small(), RunFolder(tmp_path), Progress())
    reporter.update(ROW, Progress(), 1.0)
    reporter.validation(SEEN, Progress())
    reporter.end(Progress(), tmp_path, stopped=False)
    reporter.close()
    assert reporter.notes == ["a line"]


def test_the_first_control_c_asks_and_the_same_key_press_told_twice_is_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopwright.process.SAME_REQUEST", 60.0)  # what comes later ends this process
    before = signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGINT)
        assert stop
        os.kill(os.getpid(), signal.SIGTERM)  # at once, as from a launcher: the same request
        time.sleep(0.05)
        assert stop
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err.count("stopping after this update") == 1


def test_a_terminal_that_goes_asks_too_unless_nobody_minds(monkeypatch: pytest.MonkeyPatch) -> None:
    with StopRequest(told=False) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with StopRequest(told=False) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.long
def test_a_run_whose_terminal_was_closed_is_saved_and_goes_on(tmp_path: Path) -> None:
    """A terminal of its own, closed in the middle: the system sends SIGHUP, and nothing can be printed any more."""
    recipe = small({"updates": 2_000, "validate": {"every": 0}, "save": {"best": False}})
    (tmp_path / "mine.yaml").write_text(written(recipe))
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    environment = {**os.environ, "PYTHONPATH": str(Path(loopwright.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "loopwright", "train", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "run")]
    child = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=take_terminal, env=environment
    )
    os.close(theirs)
    try:
        latest = time.monotonic() + 120
        log = tmp_path / "run" / "log.jsonl"
        while not (log.exists() and log.read_bytes().count(b"\n") > 3) and time.monotonic() < latest and child.poll() is None:
            if select.select([ours], [], [], 0.05)[0]:
                os.read(ours, 4096)
        os.close(ours)
        assert child.wait(60) == 130
    finally:
        child.kill()
        child.wait()
    rows = rows_of(tmp_path / "run")
    done = len(rows)
    assert 3 < done < 2_000 and [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [f"{done:08d}"]
    train(recipe, tmp_path / "run", resume=True, on_update=lambda row: row["update"] == done + 3)
    assert [row["update"] for row in rows_of(tmp_path / "run")] == list(range(done + 4))


def test_a_polite_kill_asks_too_and_other_threads_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    with StopRequest(told=False) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop and capsys.readouterr().err == ""
    found = []

    def elsewhere() -> None:
        with StopRequest() as stop:
            found.append(bool(stop))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [False]


# The log: whole rows, the same after a resume, every edit before a checkpoint found


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


# The FLOPs that MFU is counted from, what the log tells, and that an update does not wait for the device


CPU = torch.device("cpu")


def batch(rows: int = 3, length: int = 10) -> Batch:
    ids = torch.zeros(rows, length, dtype=torch.long)
    return Batch(ids, ids)


@pytest.mark.parametrize(
    "name",
    [
        "ouro-1.4b-tiny",
        "huginn-tiny",
        pytest.param("asura-tiny", marks=pytest.mark.slow),
        pytest.param("ouroboros-qwen2.5-3b-tiny", marks=pytest.mark.slow),
    ],
)
def test_flops_are_those_of_inspect(name: str) -> None:
    config = preset(name)
    deepest = min(config.max_steps or 5, 5)
    meter = Speedometer(config, Final(), "bf16", CPU)
    for depth in range(1, deepest + 1):
        assert (
            meter.flops([(batch(), Plan(depth, depth))])
            == TRAINING_FACTOR * pass_flops(config, depth=depth, batch=3, length=10)["total"]
        )


def test_steps_without_a_gradient_run_forward_only() -> None:
    config = preset("huginn-tiny")
    meter = Speedometer(config, Final(), "bf16", CPU)
    deep, kept = (pass_flops(config, depth=depth, batch=3, length=10)["total"] for depth in (8, 2))
    assert meter.flops([(batch(), Plan(8, 2))]) == deep + 2 * kept
    assert meter.flops([(batch(), Plan(8, 2)), (batch(), Plan(8, 2))]) == 2 * (deep + 2 * kept)


def test_every_step_reads_out_every_time() -> None:
    config = preset("ouro-1.4b-tiny")
    final, every = (Speedometer(config, objective, "bf16", CPU) for objective in (Final(), EveryStep()))
    head = pass_flops(config, depth=4, batch=3, length=10)["head"]
    assert every.flops([(batch(), Plan(4, 4))]) - final.flops([(batch(), Plan(4, 4))]) == 3 * 3 * head


def test_peaks() -> None:
    assert peak_of("NVIDIA H200", "bf16") == peak_of("NVIDIA H100 80GB HBM3", "bf16") == 989e12
    assert peak_of("NVIDIA H100 PCIe", "bf16") == 756e12 and peak_of("NVIDIA L4", "tf32") == 60.5e12
    assert peak_of("NVIDIA A100-SXM4-80GB", "bf16") == 312e12 and peak_of("NVIDIA GeForce RTX 4090", "bf16") == 165e12
    assert all(peak_of(f"NVIDIA {name}", "bf16") is None for name in ("L40", "GeForce RTX 4090 Laptop GPU", "H100 NVL", "A1000"))
    assert peak_of("NVIDIA H200", "fp32") is None and peak_of("another card", "bf16") is None
    assert Speedometer(preset("ouro-1.4b-tiny"), Final(), "bf16", CPU).row([(batch(), Plan(1, 1))], 1.0, 1) == {}


class Documents:
    """Text as recipes hand it over: rows of one length, several documents in each."""

    def __len__(self) -> int:
        return 64

    def batch(self, indices: Tensor) -> Batch:
        draws = torch.Generator().manual_seed(int(indices[0]))
        ids = torch.randint(0, 96, (len(indices), 128), generator=draws)
        return Batch(ids, ids.clone(), segment_ids=(torch.rand(ids.shape, generator=draws) < 0.05).long().cumsum(1))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("huginn-tiny", {}),
        ("huginn-tiny", {"graph": False}),
        ("huginn-tiny", {"objective": {"kind": "every-step"}, "remat": "step", "accumulate": 2, "average": {"kind": "ema"}}),
        ("ouro-1.4b-tiny", {"objective": {"kind": "expected-exit"}, "remat": "step"}),  # as ouro-pretrain
    ],
)
def test_on_the_gpu_an_update_waits_for_the_device_once(
    name: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss and norm are read when all but the optimiser's step is queued and the next rows are drawn: no step may be taken on what
    is not finite. Nothing else may wait."""
    read, last = loop.collect, 7

    def reading(*arguments: Any) -> Any:
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        found = read(*arguments)
        torch.cuda.set_sync_debug_mode(mode)
        return found

    def strict(row: dict[str, Any]) -> None:  # the first updates compile; after the last one the run validates and saves
        torch.cuda.set_sync_debug_mode("error" if 2 < row["update"] < last else "default")

    monkeypatch.setattr(loop, "collect", reading)
    model = {"kind": "preset", "name": name, "changes": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}}
    data = {
        "about": "text", "model": model, "data": {"kind": "text", "files": "x", "tokenizer": "gpt2"}, "updates": last + 1,
        "batch": 8, "depth": {"kind": "fixed", "depth": 3}, "precision": "bf16", **changes,
    }  # fmt: skip
    splits = Splits(Documents(), Documents(), vocab_size=96, alike=True)
    try:
        outcome = loop.train(make_recipe(data), tmp_path / "run", given=Objects(data=splits), on_update=strict)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert outcome.finished and outcome.progress.update == last + 1


def test_what_is_not_counted_leaves_the_peak_of_memory_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak of before is not forgotten with it."""
    peak = [5]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.__setitem__(0, 1))
    meter = Speedometer(preset("ouro-1.4b-tiny"), Final(), "bf16", torch.device("cuda"))
    with meter.uncounted():
        peak[0] = 9
    assert meter.row([], 1.0, 1)["peak_memory"] == 5
    peak[0] = 7
    assert meter.row([], 1.0, 1)["peak_memory"] == 7
