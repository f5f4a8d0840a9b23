"""How a command ends: its exit code, and one line on stderr for whatever went wrong."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn

from loopwright.untrusted import visible

MISTAKE, UNEXPECTED, INTERRUPTED, CLOSED = 2, 70, 130, 141  # 70: EX_SOFTWARE; above 128: what a signal gives (SIGINT, SIGPIPE)
PACKAGE = str(Path(__file__).parent)
LINE = 2000  # characters of a message; hostile files hold longer names
_FULL = re.compile(r"can't allocate memory|not enough memory|out of memory", re.IGNORECASE)
_NUMBERS = {"int_parsing": "a whole number", "int_from_float": "a whole number", "float_parsing": "a number"}


def run_and_exit(
    work: Callable[[], Any], usage_error: type[BaseException], own_files: Callable[[], Collection[str]] = tuple
) -> NoReturn:
    """Runs a command and exits: with what it returns where that is a number, else 0; a mistake is one line and 2.

    An unexpected error is one line too, which says where its traceback was written, and 70. An error that arose in one of
    `own_files`, which the user had imported, is the user's: its line is named.
    """
    try:
        with visible_warnings():
            result = work()
        sys.stdout.flush()  # a reader that has gone is noticed here, not while Python shuts down
    except usage_error as error:
        fail(_usage(error))
    except BrokenPipeError:
        _silence()
        sys.exit(CLOSED)
    except (ValueError, TypeError, OSError) as error:
        message = _message(error)
        place = _place_in(own_files(), error)
        fail(f"{place}: {type(error).__name__}: {message}" if place else message)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except MemoryError as error:
        fail(f"out of memory ({one_line(str(error)) or 'Python could not get more'}); take less at once: a smaller model, batch, "
             "context or depth")  # fmt: skip
    except Exception as error:
        if isinstance(error, RuntimeError) and _FULL.search(str(error)):
            fail(f"out of memory ({one_line(str(error))[:300]}); take less at once: a smaller model, batch, context or depth")
        fail(*_unexpected(error, _place_in(own_files(), error)))
    sys.exit(result if isinstance(result, int) else 0)


@contextlib.contextmanager
def visible_warnings() -> Iterator[None]:
    """Python's own warnings as text that steers no terminal."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda *given, **named: visible(before(*given, **named))
    try:
        yield
    finally:
        warnings.formatwarning = before


def fail(message: str, code: int = MISTAKE) -> NoReturn:
    """Prints one line on stderr and exits."""
    line = one_line(message)
    more = f"… ({len(line) - LINE:,} more characters)" if len(line) > LINE else ""
    print(f"loopwright: {line[:LINE]}{more}", file=sys.stderr)
    sys.exit(code)


def one_line(message: str) -> str:
    """Returns a message without line ends and without letters that would steer a terminal."""
    return visible(" ".join(message.split()))


def _message(error: Exception) -> str:
    """Returns what an error says; the operating system's own begin with a number that says nothing to most readers."""
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str):
        return f"{error.filename}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    return str(error) or type(error).__name__


def _usage(error: Any) -> str:
    return f"{_unparsed(error) or error.format_message()} (help: {error.ctx.command_path if error.ctx else 'loopwright'} --help)"


def _unparsed(error: Any) -> str | None:
    """Returns what is wrong with a word that is no number: typer's own message does not say which word it was."""
    errors: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    wanted = _NUMBERS.get(str(errors[0].get("type"))) if errors else None
    option = getattr(getattr(error, "param", None), "opts", None)
    return f"{option[-1]} is {errors[0].get('input')!r}; allowed: {wanted}" if wanted and option else None


def _place_in(files: Collection[str], error: BaseException) -> str | None:
    """Returns where in one of the files an error arose: in none if we were called from there and found the mistake."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith((PACKAGE, *files))]
    if not frames or frames[-1].filename not in files:
        return None
    return f"{os.path.relpath(frames[-1].filename)}, line {frames[-1].lineno}, in {frames[-1].name}"


def _unexpected(error: Exception, place: str | None) -> tuple[str, int]:
    told = f"{type(error).__name__}: {str(error)[:300]}" if str(error) else type(error).__name__
    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile("w", prefix="loopwright-", suffix=".txt", delete=False, errors="backslashreplace") as file:
            file.write(f"{' '.join(sys.argv)}\n\n{text}")
    except OSError:  # no room for it: then it goes where it can be read
        print(visible(text), file=sys.stderr)
        return f"unexpected error: {told}; the traceback stands above", UNEXPECTED
    if place:
        return f"{place}: {told}; the traceback is in {file.name}", MISTAKE
    return f"unexpected error: {told}; the traceback is in {file.name}, please report it", UNEXPECTED


def _silence() -> None:
    """Sends what is still to be written nowhere, so that Python does not fail on it once more at its end."""
    with contextlib.suppress(OSError, ValueError):  # no real stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
