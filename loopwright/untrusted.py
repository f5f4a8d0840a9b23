"""What comes from outside and may be hostile: paths, files, JSON. Files are regular and bounded, data is plain and bounded."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE_BYTES = 16 * 2**20  # of a file that is read whole, where nothing else is said
NESTING = 100  # of lists and mappings in each other
VALUES = 1_000_000  # in one file, each alias of YAML counted as what it stands for
WORD = 300  # characters of a value in a message
_KINDS = {
    stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISCHR: "a device", stat.S_ISBLK: "a device",
    stat.S_ISSOCK: "a socket",
}  # fmt: skip


def shown(value: Any) -> str:
    """Returns a value as an error message shows it: its repr, cut where it is long."""
    if isinstance(value, int) and value.bit_length() > 2000:  # Python refuses to write these out
        return f"a whole number of {value.bit_length()} bits"
    short = value
    if isinstance(value, str | list | tuple) and len(value) > WORD:
        short = value[:WORD]
    elif isinstance(value, Mapping) and len(value) > WORD:
        short = dict(list(value.items())[:WORD])
    try:
        text = repr(short)
    except (ValueError, RecursionError):  # a number too long to write, or no end to the nesting
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= WORD and short is value else f"{text[:WORD]}… ({type(value).__name__})"


# control characters but line ends and tabs, marks that turn the direction of text around, halves of characters
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Returns text with the characters that steer a terminal, or mislead who reads it, written out as Python writes them."""
    return STEERING.sub(lambda found: repr(found[0])[1:-1], text)


def first_line(error: BaseException) -> str:
    """Returns the first line of what an error says, or its name where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def user_path(path: str | Path) -> Path:
    """Returns a path with its ~ resolved; a user that is not there is refused."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise FileNotFoundError(f"{shown(str(path))[1:-1]}: there is no such folder (~ names a user who is not here)") from None


def check_file(path: Path, most: int = FILE_BYTES) -> None:
    """Raises where a path, links followed, is not a regular file of at most so many bytes."""
    status = path.stat()
    kind = next((words for test, words in _KINDS.items() if test(status.st_mode)), None)
    if kind is not None:
        raise ValueError(f"{path}: is {kind}; allowed: a regular file, or a link to one")
    if status.st_size > most:
        raise ValueError(f"{path}: has {status.st_size:,} bytes; allowed: at most {most:,}")


def read_text(path: Path, most: int = FILE_BYTES) -> str:
    """Returns the text of a regular file of bounded size; what is not UTF-8 is refused."""
    check_file(path, most)
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:  # it grew meanwhile, or lies about its size as files of /proc do
        raise ValueError(f"{path}: has more than {most:,} bytes; allowed: at most that many")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text (byte {error.start})") from None


def parse_json(text: str | bytes, where: str, remedy: str = "the file is damaged") -> Any:
    """Returns the data of JSON text. Names that stand twice, endless nesting and numbers beyond 64 bits are refused."""
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError(f"{where}: nested more than {NESTING} deep; allowed: fewer levels") from None
    except ValueError as error:
        raise ValueError(f"{where}: not readable as JSON ({str(error).splitlines()[0]}); {remedy}") from None
    check_plain(data, where)
    return data


class NotPlainError(ValueError):
    """Data is not plain. `field` is the name of the outermost mapping's entry that it is about, where that is known."""

    def __init__(self, message: str, way: Any) -> None:
        super().__init__(message)
        keys = _keys(way)
        self.field = keys[0] if keys else None


class _Twice(dict[str, Any]):
    """An object in which a name stands twice; which one."""

    name: str


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) == len(pairs):
        return unique
    names: set[str] = set()
    found = _Twice()
    found.name = next(name for name, _ in pairs if name in names or names.add(name))  # type: ignore[func-returns-value]
    return found


def check_plain(data: Any, where: str) -> None:
    """Raises a ValueError where data is not plain (text, numbers, true, false, null in lists and mappings) or is without bounds."""
    todo: list[tuple[int, Any, Any]] = [(0, None, data)]  # levels above it, the way to it as (way, key), the value
    count = 0
    while todo:
        level, way, value = todo.pop()
        count += 1
        if count > VALUES:
            raise ValueError(f"{where}: holds more than {VALUES:,} values, aliases counted; allowed: fewer")
        if level > NESTING:
            raise NotPlainError(f"{where}: nested more than {NESTING} deep, or a part of itself; allowed: fewer levels", way)
        if isinstance(value, _Twice):
            raise NotPlainError(f"{where}: {shown(value.name)} stands twice in one object; keep one", way or (None, value.name))
        if isinstance(value, Mapping):
            names = [key for key in value if _not_plain(key)]
            if names:
                raise NotPlainError(
                    f"{where}: a name in {_spelled(way)} is {shown(names[0])}; allowed: {_not_plain(names[0])}", way
                )
            todo += [(level + 1, (way, key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            todo += [(level + 1, (way, place), inner) for place, inner in enumerate(value)]
        elif wrong := _not_plain(value):
            raise NotPlainError(f"{where}: {_spelled(way)} is {shown(value)}; allowed: {wrong}", way)


def _not_plain(value: Any) -> str:
    if isinstance(value, str):
        lone = not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value)
        return "text without lone surrogates" if lone else ""
    if isinstance(value, int) and not isinstance(value, bool):
        return "" if -(2**63) <= value < 2**63 else "whole numbers of at most 64 bits"
    if value is None or isinstance(value, bool | float):
        return ""
    return "text (in quotes), a number, true, false, null, a list or a mapping"


def _keys(way: Any) -> list[str]:
    keys: list[str] = []
    while way is not None:
        way, key = way
        keys.insert(0, str(key))
    return keys


def _spelled(way: Any) -> str:
    keys = _keys(way)
    return shown(".".join(keys))[1:-1] if keys else "the value"
