"""Import paths of version 0.2.0 that go on for one version, with a warning that says the new one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "loopwright.evaluate": "loopwright.evaluation",
    "loopwright.evaluate.heldout": "loopwright.evaluation.text",
    "loopwright.evaluate.early_exit": "loopwright.evaluation.exits",
    "loopwright.evaluate.paired": "loopwright.evaluation.paired",
    "loopwright.evaluate.tasks": "loopwright.evaluation.tasks",
    "loopwright.evaluate.throughput": "loopwright.evaluation.throughput",
    "loopwright.model.tap": "loopwright.model.taps",
    "loopwright.settings": "loopwright.schema",
}
VERBS = ("check", "evaluate", "retrofit", "train")  # whose names rooms had


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        new = MOVED.get(fullname)
        if new is None:
            return None
        warnings.warn(f"{fullname} is {new} now; the old path ends with the next version", DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, _Same(new))


class _Same(Loader):
    """Gives the module at the new place itself, so that nothing exists twice."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Returns the module at the new place."""
        self.module = import_module(self.name)
        self.spec = self.module.__spec__
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module its own spec back: it was executed when it was imported."""
        module.__spec__ = self.spec


class _Package(ModuleType):
    """Keeps verbs in their places when a folder that had the same name is asked for, or is left over from before."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in VERBS or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


def keep_old_paths() -> None:
    """Makes the old paths importable."""
    sys.modules["loopwright"].__class__ = _Package
    sys.meta_path.insert(0, _Finder())  # or a path in a room's own folder would be found as a second module
