"""The run folder: its paths, its checkpoints, the log, the lock, and where a run came from."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from loopwright.storage.files import clear_when_full
from loopwright.storage.folder import REPLACED, clear_leftovers
from loopwright.version import VERSION

STATE = "state.json"  # of a checkpoint: how far the run was
# what a clock decides: the only entries in which the log of a resumed run differs from that of an uninterrupted one
TIMING_KEYS = ("seconds", "targets_per_second", "tokens_per_second", "time")
_CHECKPOINT = re.compile(rf"(\d{{8,}})({re.escape(REPLACED)})?")


class RunFolder:
    """The folder of one run, and where its files lie."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.recipe = self.path / "recipe.yaml"  # resolved
        self.origin = self.path / "origin.json"  # versions, commit, devices, command
        self.log = self.path / "log.jsonl"
        self.checkpoints = self.path / "checkpoints"  # one folder per saved update
        self.eval = self.path / "eval"
        self.traces = self.path / "traces"
        self.metrics = self.path / "metrics"
        self.figures = self.path / "figures"
        self.report = self.path / "report.html"

    @contextmanager
    def locked(self) -> Iterator[RunFolder]:
        """Makes the folder, holds it for this process alone, clears what killed writes left, and gives it back.

        The operating system holds the lock for the process, so that it ends with the process, however that ends.
        """
        import fcntl  # not there on every system; reading a run does not need it

        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "a+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                file.seek(0)
                holder = file.read(200).strip() or "another process"
                raise ValueError(f"{self.path}: {holder} is training into this run folder; allowed: one process") from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            clear_leftovers(self.path)
            yield self


def saved(checkpoints: str | Path) -> list[Path]:
    """Returns the folders of all checkpoints, newest first, whole or not."""
    folder = Path(checkpoints)
    found = [path for path in folder.iterdir() if _CHECKPOINT.fullmatch(path.name)] if folder.is_dir() else []
    # one that was being replaced counts after the one that replaced it
    return sorted(found, key=lambda path: (-update_of(path), path.suffix))


def update_of(folder: Path) -> int:
    """Returns the number of updates that a checkpoint's folder is named after, -1 for another folder."""
    found = _CHECKPOINT.fullmatch(folder.name)
    return int(found[1]) if found else -1


# the log


class Log:
    """A file of JSON lines that only grows: one row a line, each on its way to the disk before the next is made.

    A row's "update" is the update it belongs to, from 0. Opened for a run that goes on after `updates` of them, the rows of
    later updates and a torn last line are cut off, so that the log of a killed and resumed run is that of an uninterrupted
    one (TIMING_KEYS apart): whoever saves writes the rows of an update before its checkpoint.
    """

    def __init__(self, path: str | Path, *, updates: int = 0) -> None:
        self.path = Path(path)
        self._file: IO[bytes] = open(self.path, "ab")  # noqa: SIM115  (open as long as the run)
        self._file.truncate(_length_before(self.path, updates))

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends one row; a number that is not finite is written as null, since JSON has no word for it."""
        line = json.dumps(_finite(row), allow_nan=False, separators=(", ", ": ")) + "\n"
        with clear_when_full(self.path, len(line), "the checkpoints are unharmed"):
            self._file.write(line.encode())
            self._file.flush()

    def sync(self) -> None:
        """Returns when every row is on the disk: what a checkpoint waits for."""
        with clear_when_full(self.path, 0, "the checkpoints are unharmed"):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Brings the rows to the disk and closes the file."""
        try:
            self.sync()
        finally:
            self._file.close()


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Returns the rows of a log; a torn last line, of a run that was killed or still writes, is left out."""
    return [row for row, _, _ in _rows(Path(path))]


def untimed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row without what a clock decided."""
    return {key: value for key, value in row.items() if key not in TIMING_KEYS}


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yields each row, and where its line begins and ends."""
    end = 0
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: not a JSON object; the log is damaged (move it away to go on without it)")
        begin, end = end, end + len(line) + 1
        yield row, begin, end


def _length_before(path: Path, updates: int) -> int:
    end = 0
    for row, begin, end in _rows(path):  # noqa: B007  (the last end is wanted)
        if row.get("update", -1) >= updates:
            return begin
    return end


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# where a run came from


def origin(command: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns what a run should remember of where it was made: versions, commit, devices, command, time."""
    import torch

    packages = ("transformers", "accelerate", "safetensors", "numpy")
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return {
        "loopwright": VERSION,
        **_commit(Path(__file__).parent),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **{name: metadata.version(name) for name in packages},
        "platform": platform.platform(),
        "devices": [torch.cuda.get_device_name(index) for index in cuda] or [f"cpu ({os.cpu_count()} cores)"],
        "command": shlex.join(sys.argv if command is None else command),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit(package: Path) -> dict[str, Any]:
    """The commit of the checkout that the package is tracked in, and whether the package differs from it."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # installed into an environment that happens to lie in somebody's checkout, it is tracked by nobody
    commit = git("rev-parse", "HEAD") if git("ls-files", "--error-unmatch", "version.py") is not None else None
    if commit is None or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return {"commit": None, "changed": None}
    return {"commit": commit, "changed": git("status", "--porcelain", "--", ".") != ""}
