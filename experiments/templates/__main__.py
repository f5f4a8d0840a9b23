"""Writes the study pages that templates make of the committed rows: `python -m experiments.templates`."""

from __future__ import annotations

import argparse

from experiments.templates.engine import templates


def main() -> None:
    """Writes all pages and says which ones changed."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for template in templates():
        text = template.render()
        same = template.page.read_text() == text
        template.page.write_text(text)
        print(f"{template.name}: {'as it was' if same else 'changed'}")


if __name__ == "__main__":
    main()
