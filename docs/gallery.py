"""Makes the pictures of gallery.md by running its lines: `python docs/gallery.py`, from the root of the repository."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("gallery.md")


def blocks() -> list[str]:
    """Returns the Python of the page, block by block."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def pictures() -> list[str]:
    """Returns the pictures that the page shows, as paths from the root."""
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGE.read_text())
    return [path.removeprefix("../") if path.startswith("../") else f"docs/{path}" for path in shown]


def main() -> None:
    """Runs every block, one after the other."""
    sys.path.insert(0, str(PAGE.parents[1]))
    names: dict[str, Any] = {}
    for block in blocks():
        print(block.strip().splitlines()[-1], flush=True)
        exec(block, names)


if __name__ == "__main__":
    main()
