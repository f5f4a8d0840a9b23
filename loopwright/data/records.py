"""Records from local files: JSON lines and plain text, gzipped or not. A fault is one line with the file and the line number."""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from loopwright.untrusted import shown, user_path

Record = tuple[str, dict[str, Any]]  # where it stands, for errors, and its fields
SUFFIXES = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz")
LARGEST = 2**28  # characters of one record: a line of JSON, or a piece of a text file
# Text shrinks to a third or a tenth when compressed. What grows far more, beyond a size that does no harm, is no text.
EXPANSION, HARMLESS = 200, 2**26
CHUNK = 2**20
DRAWS = 2**20  # numbers drawn at a time, where records are picked by lot


class Records(Protocol):
    """Something to read records from, as often as wanted, always the same ones in the same order."""

    def count(self) -> int:
        """Returns how many there are."""
        ...

    def fingerprint(self) -> str:
        """Returns a text that changes where the records do."""
        ...

    def __iter__(self) -> Iterator[Record]: ...


@dataclass(frozen=True)
class FilePart:
    """The records after the first `skip`, and at most `limit` of them: the first ones, or, with a `seed`, some drawn by lot.

    What is drawn comes in the order of the source: nothing is held but the places.
    """

    records: Records
    skip: int = 0
    limit: int | None = None
    seed: int | None = None

    def fingerprint(self) -> str:
        """Returns a text that changes where the records do."""
        lot = "" if self.seed is None else f" drawn by {self.seed}"
        return f"{self.records.fingerprint()} from {self.skip} at most {self.limit}{lot}"

    def __iter__(self) -> Iterator[Record]:
        end = None if self.limit is None else self.skip + self.limit
        if self.seed is None or self.limit is None:
            return islice(iter(self.records), self.skip, end)
        return self._drawn(drawn_places(max(self.records.count() - self.skip, 0), self.limit, self.seed))

    def _drawn(self, places: np.ndarray) -> Iterator[Record]:
        records, done = islice(iter(self.records), self.skip, None), 0
        for place in places.tolist():
            record = next(islice(records, place - done, None), None)
            if record is None:
                raise ValueError(f"data: the source said that it has {self.records.count():,} records, and ended before them")
            yield record
            done = place + 1


def drawn_places(count: int, limit: int, seed: int) -> np.ndarray:
    """Returns `limit` of the places 0 … count − 1 in rising order, every choice of them alike: a pure function of the seed.

    Those with the smallest of `count` random numbers: from the raw stream, which numpy never changes, a stretch at a time.
    """
    bits = np.random.PCG64(np.random.SeedSequence([seed, 0]))
    places, draws = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
    for start in range(0, count, DRAWS):
        size = min(DRAWS, count - start)
        places, draws = np.concatenate([places, start + np.arange(size)]), np.concatenate([draws, bits.random_raw(size)])
        least = np.argsort(draws, kind="stable")[:limit]
        places, draws = places[least], draws[least]
    return np.sort(places)


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
            paths = sorted(glob.glob(str(user_path(str(pattern))), recursive=True))
            if not paths:
                raise ValueError(f"data: no file matches {str(pattern)!r}")
            self.paths += [Path(name) for name in paths]
        wrong = next((path for path in self.paths if not path.name.endswith(SUFFIXES)), None)
        if wrong is not None:
            raise ValueError(f"{wrong}: not a file of records; allowed: {', '.join(SUFFIXES)}")
        odd = next((path for path in self.paths if not path.is_file()), None)
        if odd is not None:  # a pipe or a device may never end
            raise ValueError(f"{odd}: not a regular file")

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

    def count(self) -> int:
        """Returns how many records the files hold; they are read for it."""
        return sum(1 for _ in self)

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
            except (RecursionError, ValueError) as error:  # nested too deep; a number of too many digits
                raise ValueError(f"{where}: not readable as JSON ({str(error).split(';')[0]})") from None
            if not isinstance(record, dict):
                raise ValueError(f"{where}: a {type(record).__name__}; allowed: an object with fields on each line")
            yield where, record

    def _pieces(self, path: Path) -> Iterator[Record]:
        number, held, size = 0, [""], 0  # what is read of the piece at hand, in parts: joining at each would take quadratic time
        separator = self.separator
        for part in _read(path, lambda file: file.read(CHUNK)):
            if size == number == 0 and separator and "\r" not in separator and "\r\n" in part:
                separator = separator.replace("\n", "\r\n")  # as the file ends its lines
            held.append(part)
            size += len(part)
            # a separator may stand across two parts
            if separator and separator in held[-2][1 - len(separator) :] + part:
                *pieces, rest = "".join(held).split(separator)
                held, size = [rest], len(rest)
                for number, piece in enumerate(pieces, start=number + 1):  # noqa: B020  (goes on from where it was)
                    yield f"{path} (piece {number})", {self.field: piece}
            elif separator and len(part) < len(separator):
                held = ["".join(held)]
            if size > LARGEST:
                cut = "its separator is not found" if self.separator else "it has no separator"
                raise ValueError(f"{path} (piece {number + 1}): over {LARGEST:,} characters, and {cut}; allowed: shorter documents")
        yield f"{path} (piece {number + 1})", {self.field: "".join(held)}


def _read_lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(_read(path, lambda file: file.readline(LARGEST + 1)), start=1):
        if len(line) > LARGEST:
            raise ValueError(f"{path}:{number}: a line of over {LARGEST:,} characters; allowed: shorter records")
        yield line


def _read(path: Path, take: Callable[[IO[str]], str]) -> Iterator[str]:
    """Yields what is taken from a file until nothing is left; what cannot be read is told with how far it could."""
    lines = 0
    try:
        with _open(path) as file:
            while part := take(file):
                lines += part.count("\n")
                yield part
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        remedy = "; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise ValueError(f"{path}: cannot be read after line {lines} ({reason}){remedy}") from None


def _open(path: Path) -> IO[str]:
    file: Any = io.BufferedReader(_Unpacked(path), CHUNK) if path.name.endswith(".gz") else path.open("rb")
    # line ends stay as the file has them; a byte-order mark is no text
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="\n")


class _Unpacked(io.RawIOBase):
    """The content of a gzip file. Its size is checked while it is read: a small file can hold any number of bytes."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, gzip.open(path, "rb")  # noqa: SIM115  (closed with this one)
        self._room, self._done = max(HARMLESS, EXPANSION * path.stat().st_size), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._done += count
        if self._done > self._room:
            raise OSError(f"it unpacks to over {self._room:,} bytes, {EXPANSION} times its size or more; allowed: text")
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def text_field(record: Record, field: str) -> str | None:
    """Returns the text of a field; None where it is empty. A field that is missing or no text is an error."""
    where, fields = record
    if field not in fields:
        names = shown(", ".join(map(str, fields)) or "none")[1:-1]
        raise ValueError(f"{where}: no field {field!r}; it has: {names}; name the one with the text (field)")
    value = fields[field]
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{where}: field {field!r} holds {type(value).__name__}; allowed: text")
    if value and not value.isascii():
        check_encodable(where, value)
    return value if value and not value.isspace() else None


def check_encodable(where: str, text: str) -> None:
    """Raises a ValueError where a text holds half a character (a lone surrogate), which no tokenizer can take."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: character {error.start + 1} is a lone surrogate ({text[error.start]!r}), half of a character; allowed: UTF-8"
        ) from None
