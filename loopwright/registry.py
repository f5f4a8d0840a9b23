"""`lw.register`: a class of the user's own becomes a kind of one of the places of variation, chosen by its name like our own.

Files of such classes are executed when the user names them (`--import FILE`, the `import:` of a recipe file that is given by its
path), and at no other time. A run and a model folder may be a stranger's: what they name is only ever told to the user.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from loopwright.schema import Kinds, suggest
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


Class = TypeVar("Class", bound=Any)

# place → the module and the name of its table, which is imported when somebody registers there
PLACES: dict[str, tuple[str, str]] = {
    "state": ("loopwright.model.parts.state", "STATES"),
    "injection": ("loopwright.model.parts.injection", "INJECTIONS"),
    "adapter": ("loopwright.model.parts.adapters", "ADAPTERS"),
    "gate": ("loopwright.model.parts.gate", "GATES"),
    "halting": ("loopwright.model.parts.halting", "HALTINGS"),
    "norm": ("loopwright.model.layers", "NORMS"),
    "data": ("loopwright.data.build", "DATA"),
    "depth": ("loopwright.training.depth", "RULES"),
    "objective": ("loopwright.training.objectives.losses", "OBJECTIVES"),
    "penalty": ("loopwright.training.objectives.penalties", "PENALTIES"),
    "optim": ("loopwright.training.optim", "OPTIMISERS"),
    "schedule": ("loopwright.training.optim", "SCHEDULES"),
    "metric": ("loopwright.metrics.score", "METRICS"),
    "reward": ("loopwright.training.grpo", "REWARDS"),
}


def register(place: str, name: str, *, replace: bool = False) -> Callable[[Class], Class]:
    """Returns a decorator that makes a class the kind `name` of a place: `@lw.register("injection", "mine")`.

    Its options are the keyword arguments of its `__init__`. The places are state, injection, adapter, gate, halting, norm, data,
    depth, objective, penalty, optim, schedule, metric and reward (which takes a function too); docs/extend.md says what each calls.
    A name that is taken is refused; `replace` puts the class in the place of another one of the user's own.
    """
    if not isinstance(place, str) or place not in PLACES:
        raise ValueError(f"register: unknown place {shown(place)}; {suggest(str(place), PLACES)}")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", name):
        raise ValueError(f"register: the name {shown(name)}; allowed: letters, digits, - and _, such as 'my-{place}'")
    module, table = PLACES[place]
    kinds: Kinds = getattr(import_module(module), table)

    def enter(given: Class) -> Class:
        function = kinds.from_function is not None and inspect.isfunction(given)
        kind = kinds.from_function(given) if function and kinds.from_function is not None else given
        _check(kinds, name, kind)
        _check_free(kinds, name, kind, replace)
        kinds[name] = kind
        file = _file_of(kind)
        if file is not None:
            note_file(file, _written(given) if kind.__module__ == "__main__" else "")
        return given

    return enter


def _check(kinds: Kinds, name: str, kind: type) -> None:
    """Raises a TypeError where a class does not offer what its place calls."""
    where = f"register: {kinds.place} {name!r}"
    if not isinstance(kind, type):
        raise TypeError(f"{where}: {shown(kind)} is no class; allowed: a class whose options are the arguments of its __init__")
    base = kinds.inherits
    if not issubclass(kind, base):
        raise TypeError(
            f"{where}: {kind.__name__} must inherit from {base.__name__} (from loopwright.parts import {base.__name__})"
        )
    own = [one for one in kind.__mro__ if one not in base.__mro__]
    missing = [offer for offer in kinds.offers if not any(offer in vars(one) for one in own)]
    if missing:
        raise TypeError(f"{where}: {kind.__name__} has no {', '.join(missing)}; docs/extend.md says what a {kinds.place} offers")
    arguments = {} if kind.__init__ is object.__init__ else dict(inspect.signature(kind.__init__).parameters)  # type: ignore[misc]
    loose = [f"*{n}" for n, p in arguments.items() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and n in ("args", "kwargs")]
    lacking = [argument for argument in kinds.given if argument not in arguments]
    if loose or lacking:
        wanted = ", ".join(["self", *kinds.given, "option=default, …"])
        wrong = f"no argument {lacking[0]!r}" if lacking else f"{loose[0]}, whose names nobody could check"
        raise TypeError(f"{where}: the __init__ of {kind.__name__} has {wrong}; allowed: __init__({wanted})")
    both = [option for option in kinds.reserved if option in arguments]
    if both:
        raise TypeError(f"{where}: {both[0]} is an option that every {kinds.place} has already; give it another name")


def _check_free(kinds: Kinds, name: str, kind: type, replace: bool) -> None:
    """Raises a ValueError where another class has the name. The same class may come again: a cell or a file that was run twice."""
    there = kinds.get(name)
    if there is None or there is kind:
        return
    if name in kinds.shipped:
        raise ValueError(f"register: {kinds.place} {name!r} is one of loopwright's own; choose another name")
    again = (_file_of(kind), kind.__qualname__) == (_file_of(there), there.__qualname__)
    if not replace and not again:
        raise ValueError(
            f"register: {kinds.place} {name!r} is taken by {there.__module__}.{there.__qualname__}; choose another name, or "
            f"lw.register({kinds.place!r}, {name!r}, replace=True) to put {kind.__name__} in its place"
        )


def _written(part: Any) -> str:
    """Returns a class or function as its file has it, its name where Python cannot say."""
    try:
        return inspect.getsource(part)
    except (OSError, TypeError):
        return str(part.__qualname__)


def _file_of(kind: type) -> Path | None:
    """Returns the file a class was written in; None for a notebook or a prompt."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None
