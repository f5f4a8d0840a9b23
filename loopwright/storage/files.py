"""Files that are written whole: beside their place, to the disk, and put there in one move. A full disk is one line."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loopwright.untrusted import parse_json, read_text

# plain files of ours are far smaller; what is larger is not read at all
_JSON_BYTES = 64 * 2**20
_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would be larger than this process may write (ulimit -f)",
}


class DiskFull(OSError):  # noqa: N818  (it is what happened; the message says the rest)
    """There is no room for what was to be written; what stood there before is unharmed."""


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Writes a file so that it is there whole, and on the disk, or as it was before."""
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = beside(path)
    with clear_when_full(path, len(data), "what stood there is unharmed"):
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    sync(path.parent)


def write_json(path: str | Path, data: Any) -> None:
    """Writes plain data as a whole JSON file; what JSON cannot hold (a number that is not finite, too) is refused."""
    try:
        text = json.dumps(data, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: not plain data ({error}); allowed: text, finite numbers, lists, mappings") from None
    write_whole(path, text + "\n")


def read_json(path: str | Path) -> dict[str, Any]:
    """Returns the object in a JSON file, links followed, or says in one line why there is none."""
    path = Path(path)
    try:
        value = parse_json(read_text(path, _JSON_BYTES), str(path))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path.parent}: there is no {path.name}; a folder that was saved holds one") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: holds a {type(value).__name__}; allowed: a JSON object")
    return value


# room on the disk


@contextmanager
def clear_when_full(path: Path, needed: int, kept: str) -> Iterator[None]:
    """Turns the ways in which writing fails for want of room into one DiskFull that says what, where and what is unharmed."""
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        # safetensors and tokenizers report the system's error in words
        spoken = re.search(r"\(os error (\d+)\)", str(error))
        reason = _FULL.get(getattr(error, "errno", None) or (int(spoken[1]) if spoken else 0))
        if reason is None:
            raise
        raise DiskFull(f"{path}: {reason} ({_in_words(needed)} were to be written); {kept}") from None


def check_room(target: Path, needed: int, kept: str) -> None:
    """Raises DiskFull where fewer than `needed` bytes are free."""
    there = next(parent for parent in (target, *target.parents, Path.cwd()) if parent.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise DiskFull(f"{target}: the disk is full ({_in_words(needed)} needed, {_in_words(free)} free); {kept}")


def _in_words(size: int) -> str:
    power = min(4, max(0, int(math.log(max(size, 1), 1000))))
    return f"{size / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


# what writes share


def beside(path: Path) -> Path:
    """Returns a fresh name beside a path, for what is being made or removed."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def sync(path: Path) -> None:
    """Returns when a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
