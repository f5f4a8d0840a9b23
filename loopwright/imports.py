"""Files of the user's own parts: executed when the user names them, and at no other time.

`--import FILE` and the `import:` of a recipe file that is given by its path end here. A run and a model folder may be a stranger's:
what they name is only ever told to the user, never executed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shlex
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from loopwright.untrusted import first_line, shown, user_path

SHOWN = 4  # files that a message names

_FILES: dict[Path, str] = {}  # that parts came from, in the order in which they came, with their digests then
_EXECUTED: set[Path] = set()  # here, to their end


def import_file(name: str | Path, folder: str | Path = ".") -> Path:
    """Executes a Python file, once per process, and returns its path; a relative one starts at `folder`."""
    path = (Path(folder) / user_path(name)).resolve()
    if path.suffix != ".py" or not path.is_file():
        wrong = "is no Python file" if path.is_file() else "there is no such file"
        raise ValueError(f"import: {name}: {wrong} (looked for {path}); allowed: the path of a .py file")
    if path not in _EXECUTED and not _is_loaded(path):
        _execute(path)
        _EXECUTED.add(path)
    if path not in _FILES:
        note_file(path)
    return path


def import_files(names: Iterable[str]) -> list[Path]:
    """Executes several Python files, in their order; paths start at the working directory."""
    return [import_file(name) for name in names]


def note_file(path: Path, part: str = "") -> None:
    """Notes that parts came from a file, as it is now. Of a script that trains, `part` is what it registers: the rest of it may
    change, such as the call that resumes a run."""
    path = path.resolve()
    content = (_FILES.get(path, "") + part).encode() if part else path.read_bytes() if path.is_file() else b""
    _FILES[path] = hashlib.sha256(content).hexdigest()[:12]


def noted_files() -> list[str]:
    """Returns the files that parts came from, below the working directory as relative paths."""
    here = Path.cwd().resolve()
    return [str(path.relative_to(here) if path.is_relative_to(here) else path) for path in _FILES]


def own_files() -> list[str]:
    """Returns the whole paths of the files that parts came from."""
    return [str(path) for path in _FILES]


def file_digests() -> dict[str, str]:
    """Returns the beginning of the sha256 of each file that parts came from, as it was when they came."""
    return dict(zip(noted_files(), _FILES.values(), strict=True))


def missing_files(named: object) -> str:
    """Returns the end of an error about something that was made with files of parts, of which some are not imported here."""
    names = [name for name in named if isinstance(name, str)] if isinstance(named, Sequence) and not isinstance(named, str) else []
    missing = [shown(name)[1:-1] for name in names[:SHOWN] if user_path(name).resolve() not in _FILES]
    if not missing:
        return ""
    again = " ".join(f"--import {shlex.quote(name)}" for name in dict.fromkeys(missing))
    return f"; it was trained with custom parts: look at what they do, then give {again}"


def _is_loaded(path: Path) -> bool:
    """Whether a module of that file is there already: a script, a notebook's own import."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return any(isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path for file in files)


def _execute(path: Path) -> None:
    # under its own name, so that `import my_parts` finds the same module, unless that would hide another package
    try:
        taken = path.stem in sys.modules or importlib.util.find_spec(path.stem) is not None
    except (ImportError, ValueError):
        taken = True
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}" if taken else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: a neighbour of the file must not hide an installed package
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        _FILES.pop(path, None)  # which a part of it has noted: the next call executes it again
        if not isinstance(error, Exception):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = f"{path}, line {line}" if line else str(path)
        raise ValueError(f"import: {where}: {type(error).__name__}: {first_line(error)}") from error
