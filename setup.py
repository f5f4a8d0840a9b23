"""What pyproject.toml cannot say: README.md as a package index shows it, where links into the repository lead nowhere.

Where `[project.urls]` names the repository as Source, links and images become absolute; where it names none, links become their
words and images are left out.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://)([^)\s]+)\)")


def readme(text: str, source: str | None, version: str) -> str:
    """Returns a README whose links lead somewhere from any page."""

    def linked(found: re.Match[str]) -> str:
        image, words, target = found.groups()
        if source is None or (target.startswith("#") and not image):
            return "" if image else words
        return f"{image}[{words}]({source.rstrip('/')}/{'raw' if image else 'blob'}/v{version}/{target})"

    return LINK.sub(linked, text)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = re.findall(r'"(.+)"', (ROOT / "loopwright" / "version.py").read_text())[0]
    text = readme((ROOT / "README.md").read_text(), project.get("urls", {}).get("Source"), version)
    setup(long_description=text, long_description_content_type="text/markdown")
