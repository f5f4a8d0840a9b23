"""What stands in a recipe for an object that was passed from Python."""

from __future__ import annotations


class Given:
    """An object from Python in the place of a kind; `what` says which. It cannot be built from the recipe: pass it again."""

    def __init__(self, what: str = "an object") -> None:
        raise ValueError(f"{what} was passed from Python, so the recipe cannot build it; pass it again (lw.train, lw.evaluate)")
