"""Prints where study pages differ from the rows, and fails if they do: `python -m experiments.readme`."""

from __future__ import annotations

import argparse
import sys

from experiments.readme.check import PLACES, problems


def main() -> None:
    """Checks the pages of this checkout."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    lines = problems()
    pages = ", ".join(dict.fromkeys(place.page for place in PLACES))
    print("\n".join(lines) or f"{pages}: every result number is that of the rows")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
