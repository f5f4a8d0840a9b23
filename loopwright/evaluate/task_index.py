"""Which tasks lm-eval knows, read from its files without importing it: its own index takes a minute to build."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# a task, group or tag by its name, and the further lines of a list of them
NAMED = re.compile(r"^(task|group|tag|group_alias):[ \t]*['\"]?([^\s'\"\[\]#]+)['\"]?[ \t]*$", re.MULTILINE)
LISTED = re.compile(r"^[ \t]*-[ \t]+(?:task:[ \t]*|group:[ \t]*)?['\"]?([^\s'\"\[\]#]+)['\"]?[ \t]*$", re.MULTILINE)
NEAR = 3  # names that a mistyped one may have meant


@dataclass(frozen=True)
class TaskNames:
    """The names in lm-eval's files. `tasks` has the folders of each single task, `others` what may be a group, a tag or a part."""

    tasks: Mapping[str, frozenset[Path]]
    others: frozenset[str]

    def check(self, names: Sequence[str], more: Sequence[str] = ()) -> None:
        """Raises a ValueError in one line for a name that no file has."""
        known = {*self.tasks, *self.others, *more}
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, sorted(known), NEAR)
                said = f"did you mean {' or '.join(map(repr, near))}?" if near else "`lm-eval ls tasks` lists them"
                raise ValueError(f"tasks: unknown {name!r}; {said}")


def read_names(folder: str | Path) -> TaskNames:
    """Returns the names in the task files (.yaml) below a folder."""
    tasks: dict[str, set[Path]] = {}
    others: set[str] = set()
    for path in Path(folder).glob("**/*.yaml"):
        text = path.read_text(errors="ignore")
        for kind, name in NAMED.findall(text):
            if kind == "task":
                tasks.setdefault(name, set()).add(path.parent)
            else:
                others.add(name)
        others.update(LISTED.findall(text))
    return TaskNames({name: frozenset(paths) for name, paths in tasks.items()}, frozenset(others))


@cache
def _of_lm_eval() -> TaskNames:
    spec = find_spec("lm_eval")
    assert spec is not None and spec.origin is not None, "asked only where lm-eval is installed"
    return read_names(Path(spec.origin).parent / "tasks")


def known_names(folder: str | Path | None = None) -> TaskNames:
    """Returns the names that lm-eval and a folder of one's own have."""
    theirs = _of_lm_eval()
    if folder is None:
        return theirs
    local = read_names(folder)
    return TaskNames({**theirs.tasks, **local.tasks}, theirs.others | local.others)
