"""What the tests of storage share."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def tree(folder: Path) -> dict[str, bytes]:
    """Returns the content of every file under a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def failing(error: Exception) -> Any:
    """Returns a function that raises."""

    def fail(*arguments: Any) -> None:
        raise error

    return fail
