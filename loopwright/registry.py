"""`lw.register`: a class of the user's own becomes a kind of one of the places of variation, chosen by its name like our own."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from loopwright.imports import note_file
from loopwright.settings import Kinds, suggest
from loopwright.untrusted import shown

Class = TypeVar("Class", bound=Any)

# place → the module and the name of its table, which is imported when somebody registers there
PLACES: dict[str, tuple[str, str]] = {
    "state": ("loopwright.model.parts.state", "STATES"),
    "injection": ("loopwright.model.parts.injection", "INJECTIONS"),
    "adapter": ("loopwright.model.parts.adapter", "ADAPTERS"),
    "gate": ("loopwright.model.parts.gate", "GATES"),
    "halting": ("loopwright.model.parts.halting", "HALTINGS"),
    "norm": ("loopwright.model.layers.norm", "NORMS"),
    "data": ("loopwright.data.build", "DATA"),
    "depth": ("loopwright.train.depth", "RULES"),
    "objective": ("loopwright.train.objectives.losses", "OBJECTIVES"),
    "penalty": ("loopwright.train.objectives.penalties", "PENALTIES"),
    "optim": ("loopwright.train.optim.optimisers", "OPTIMISERS"),
    "schedule": ("loopwright.train.optim.schedule", "SCHEDULES"),
    "metric": ("loopwright.metrics.score", "METRICS"),
    "reward": ("loopwright.train.objectives.rewards", "REWARDS"),
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
