"""The files of an evaluation: named by what they hold, tried before the work, and never replaced by less."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from loopwright.convert.card import command_line
from loopwright.version import VERSION


class Report(Protocol):
    """What a kept report says of itself."""

    @property
    def depth(self) -> tuple[int, ...]:
        """The depths that were measured."""

    @property
    def source(self) -> str:
        """Where the weights stood; "" where nobody said."""


def how_made() -> list[tuple[str, str]]:
    """Returns how a page came to be: its command, the version and the date."""
    return [("command", command_line(sys.argv)), ("loopwright", VERSION), ("date", datetime.now(UTC).strftime("%Y-%m-%d"))]


def file_stem(name: str, *, rows: int | None = None, checkpoint: str | None = None, data: str | None = None) -> str:
    """Returns the name of a file of results: that of the split or text, and what of it or of the run was chosen by hand.

    All rows, the last checkpoint and the run's own data are the plain name.
    """
    words = [name, Path(data).stem if data is not None else ""]
    words.append("" if checkpoint in (None, "last") else f"update-{checkpoint}" if str(checkpoint).isdecimal() else str(checkpoint))
    words.append("" if rows is None else f"rows-{rows}")
    return "-".join(filter(None, words))


def need_writable(verb: str, *folders: Path) -> None:
    """Raises an OSError in one line where files could not be written into these folders, there or not. Nothing is left behind."""
    for folder in folders:
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        if not there.is_dir():
            raise ValueError(f"out: {there} is a file; allowed: a folder, there or not")
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            reason = (error.strerror or "cannot be written").lower()
            raise OSError(f"{verb}: cannot write into {folder} ({reason}); give another folder with --out") from None


def keep_more(
    path: Path,
    read: Callable[[Path], Report],
    *,
    depths: Iterable[int],
    rules: Iterable[str] = (),
    facts: Mapping[str, object],
    source: str | None = None,
    overwrite: bool = False,
) -> None:
    """Raises a ValueError where a file holds results that new ones of these depths and facts would not replace in full.

    Args:
        rules: exit rules, where the report has some.
        facts: fields of the report. One that the kept report leaves empty is not compared.
        source: where the weights stand, to be compared too. Checkpoints of one run are one model; None: whatever it was.
    """
    if overwrite or not path.exists():
        return
    try:
        kept = read(path)
    except (ValueError, OSError):
        raise ValueError(f"{path}: holds something else; --overwrite replaces it, --out FOLDER keeps both") from None
    lost = sorted(set(kept.depth) - set(depths))
    reasons = [f"{len(lost)} of its {len(kept.depth)} depths are not asked for now"] if lost else []
    known = set(getattr(kept, "rules", ()))
    if known - set(rules):
        reasons.append(f"{len(known - set(rules))} of its {len(known)} exit rules are not asked for now")
    if source is not None and kept.source and _home(kept.source) != _home(source):
        reasons.append(f"they are of {_home(kept.source)}")
    for name, value in facts.items():
        before = getattr(kept, name)
        if before not in ("", None) and before != value:
            reasons.append(f"its {name} is {_short(before)}, now {_short(value)}")
    if reasons:
        raise ValueError(f"{path}: holds other results ({'; '.join(reasons)}); --overwrite replaces them, --out FOLDER keeps both")


def _home(source: str) -> Path:
    """The run of a checkpoint, else the folder itself."""
    path = Path(source)
    return (path.parents[1] if path.parent.name == "checkpoints" else path).absolute()


def _short(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:12]}…"
