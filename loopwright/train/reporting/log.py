"""The log of a run: JSON lines that only grow. A checkpoint marks how long the log was and its sha256, so that edits are found."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from loopwright.check.likelihood import NOT_A_LIKELIHOOD
from loopwright.storage.files import clear_when_full

# what a clock decides: the only entries in which the log of a resumed run differs from that of an uninterrupted one
TIMING_KEYS = ("seconds", "targets_per_second", "tokens_per_second", "tflops_per_second", "mfu", "peak_memory", "time")

_BLOCK = 2**20  # bytes that are read at once from the end


class Log:
    """A file of JSON lines that only grows: one row a line, each on its way to the disk before the next is made.

    A row's "update" is the update it belongs to, from 0. A checkpoint holds the log's `mark` at its save. A run that goes on
    from a checkpoint opens the log with that mark: the log must begin with the very bytes that were marked, and what stands
    after them (rows of later updates, a torn last line) is cut off. So the log of a killed and resumed run is that of an
    uninterrupted one (TIMING_KEYS apart). Without a mark the log begins anew.
    """

    def __init__(self, path: str | Path, mark: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path)
        self._length, self._sum = 0, hashlib.sha256()
        if mark is not None and self.path.is_file():  # one that was moved away begins anew too
            kept = _marked_bytes(self.path, mark)
            self._length = len(kept)
            self._sum.update(kept)
        self._file: IO[bytes] = open(self.path, "ab")  # noqa: SIM115  (open as long as the run)
        self._file.truncate(self._length)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends one row; a number that is not finite is written as null, since JSON has no word for it."""
        line = (json.dumps(_finite(row), allow_nan=False, separators=(", ", ": ")) + "\n").encode()
        with clear_when_full(self.path, len(line), "the checkpoints are unharmed"):
            self._file.write(line)
            self._file.flush()
        self._length += len(line)
        self._sum.update(line)

    def mark(self) -> dict[str, Any]:
        """Returns the log's length and sha256 when every row is on the disk: what a checkpoint waits for, and keeps."""
        self._sync()
        return {"bytes": self._length, "sha256": self._sum.hexdigest()}

    def close(self) -> None:
        """Brings the rows to the disk and closes the file."""
        try:
            self._sync()
        finally:
            self._file.close()

    def _sync(self) -> None:
        with clear_when_full(self.path, 0, "the checkpoints are unharmed"):
            os.fsync(self._file.fileno())


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Returns the rows of a log; a torn last line, of a run that was killed or still writes, is left out."""
    return list(_rows(Path(path), Path(path).read_bytes()))


def last_row(path: str | Path, name: str) -> dict[str, Any] | None:
    """Returns the last row that holds a name, None where the log has none; reads no more of its end than that takes."""
    for line in _lines_backwards(Path(path)):
        if f'"{name}"'.encode() in line and name in (row := json.loads(line)):
            return row
    return None


def marked(row: Mapping[str, Any]) -> str:
    """Returns what must be said beside the numbers of a validation: nothing where its losses are likelihoods."""
    return "" if row.get("likelihood", True) else f" ({NOT_A_LIKELIHOOD})"


def untimed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row without what a clock decided."""
    return {key: value for key, value in row.items() if key not in TIMING_KEYS}


def _marked_bytes(path: Path, mark: Mapping[str, Any]) -> bytes:
    """Returns the part of the log that a checkpoint marked; raises where it is not as it was."""
    data = path.read_bytes()
    kept = data[: mark["bytes"]]
    if hashlib.sha256(kept).hexdigest() == mark["sha256"]:
        return kept
    for _ in _rows(path, kept):  # where a line is no row any more, its number is told
        pass
    fault = f"{len(data):,} bytes of {mark['bytes']:,} are left" if len(data) < mark["bytes"] else "sha256 differs"
    raise ValueError(
        f"{path}: changed since the checkpoint was saved ({fault}); put it back as it was, or move it away to go on without it"
    )


def _rows(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: not a JSON object; the log is damaged (move it away to go on without it)")
        yield row


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """Yields the whole lines of a file, the last one first; a torn last line is left out."""
    with open(path, "rb") as file:
        start, rest, torn = file.seek(0, os.SEEK_END), b"", True
        while start > 0:
            size = min(_BLOCK, start)
            start = file.seek(start - size)
            rest, *lines = (file.read(size) + rest).split(b"\n")  # the first one may begin in the block before
            if torn and lines:
                del lines[-1]  # what stands after the last newline
                torn = False
            yield from reversed(lines)
        if not torn:
            yield rest


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
