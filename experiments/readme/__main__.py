"""Prints what in the README differs from the rows, and fails if anything does: `python -m experiments.readme`."""

from __future__ import annotations

import sys

from experiments.readme.check import README, problems


def main() -> None:
    """Checks the README of this checkout."""
    found = problems(README.read_text())
    print("\n".join(found) or "README.md: every result number is that of the rows")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
