"""Records from local files: JSON lines and plain text, gzipped or not. A fault is one line with the file and the line number."""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

Record = tuple[str, dict[str, Any]]  # where it stands, for errors, and its fields
SUFFIXES = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz")


class Records(Protocol):
    """Something to read records from, as often as wanted, always the same ones in the same order."""

    def fingerprint(self) -> str:
        """Returns a text that changes where the records do."""
        ...

    def __iter__(self) -> Iterator[Record]: ...


@dataclass(frozen=True)
class Part:
    """The records after the first `skip`, and at most `limit` of them."""

    records: Records
    skip: int = 0
    limit: int | None = None

    def fingerprint(self) -> str:
        """Returns a text that changes where the records do."""
        return f"{self.records.fingerprint()} from {self.skip} at most {self.limit}"

    def __iter__(self) -> Iterator[Record]:
        end = None if self.limit is None else self.skip + self.limit
        return islice(iter(self.records), self.skip, end)


class Files:
    """The records of files, named by paths or patterns (`corpus/train-*.jsonl.gz`), each pattern's files in order of name.

    A line of a .jsonl file is a record. A .txt file is one record with the one field `field`, or one for each piece between
    `separator`s.
    """

    def __init__(self, patterns: str | Sequence[str], *, field: str = "text", separator: str | None = None) -> None:
        self.field, self.separator = field, separator
        self.paths: list[Path] = []
        self._fingerprint = ""
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            found = sorted(glob.glob(str(Path(str(pattern)).expanduser()), recursive=True))
            if not found:
                raise ValueError(f"data: no file matches {str(pattern)!r}")
            self.paths += [Path(name) for name in found]
        wrong = next((path for path in self.paths if not path.name.endswith(SUFFIXES)), None)
        if wrong is not None:
            raise ValueError(f"{wrong}: not a file of records; allowed: {', '.join(SUFFIXES)}")

    def fingerprint(self) -> str:
        """Returns the sha256 of the files' contents, in order, and how text files are cut."""
        if self._fingerprint:
            return self._fingerprint
        whole = hashlib.sha256(repr(self.separator).encode())
        for path in self.paths:
            try:
                with path.open("rb") as file:
                    whole.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
        self._fingerprint = whole.hexdigest()
        return self._fingerprint

    def __iter__(self) -> Iterator[Record]:
        for path in self.paths:
            yield from self._lines(path) if ".jsonl" in path.name else self._pieces(path)

    def _lines(self, path: Path) -> Iterator[Record]:
        for number, line in enumerate(_read_lines(path), start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{where}: not valid JSON ({error.msg} at column {error.colno})") from None
            if not isinstance(record, dict):
                raise ValueError(f"{where}: a {type(record).__name__}; allowed: an object with fields on each line")
            yield where, record

    def _pieces(self, path: Path) -> Iterator[Record]:
        text = "".join(_read_lines(path))
        for number, piece in enumerate(text.split(self.separator) if self.separator else [text], start=1):
            yield f"{path} (piece {number})", {self.field: piece}


def _read_lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):  # noqa: B007  (the last one is told in the error)
                yield line
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ValueError(f"{path}: cannot be read after line {number} ({reason})") from None


def _open(path: Path) -> IO[str]:
    return gzip.open(path, "rt", encoding="utf-8") if path.name.endswith(".gz") else path.open(encoding="utf-8")


def text_field(record: Record, field: str) -> str | None:
    """Returns the text of a field; None where it is empty. A field that is missing or no text is an error."""
    where, fields = record
    if field not in fields:
        raise ValueError(f"{where}: no field {field!r}; it has: {', '.join(map(str, fields)) or 'none'}")
    value = fields[field]
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{where}: field {field!r} holds {type(value).__name__}; allowed: text")
    return value if value and not value.isspace() else None
