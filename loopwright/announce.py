"""Our models made known to transformers' Auto classes as soon as somebody imports transformers, and no sooner: it is heavy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

LIBRARY = "transformers"
MODEL = "loopwright.model"  # registers its classes when it is imported


def announce() -> None:
    """Imports our model after transformers: now where that is already there, else when it comes."""
    if LIBRARY in sys.modules:
        import_module(MODEL)
    else:
        sys.meta_path.insert(0, Announcer())


class Announcer(MetaPathFinder):
    """Finds transformers where the other finders do, and has our model imported right after it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns the spec of transformers, with an import of our model behind it; of anything else None."""
        if fullname != LIBRARY:
            return None
        finders = list(sys.meta_path)  # of which the earlier ones were asked, and may be another of us: a reload leaves two
        later = finders[finders.index(self) + 1 :] if self in finders else []
        found = (finder.find_spec(fullname, path, target) for finder in later)
        spec = next((one for one in found if one is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_announce(module: ModuleType) -> None:
            execute(module)
            sys.meta_path.remove(self)  # only now: whoever merely asks where transformers is does not import it
            import_module(MODEL)  # nothing happens where our model is what imports transformers; it registers itself in the end

        spec.loader.exec_module = execute_and_announce  # type: ignore[method-assign]
        return spec
