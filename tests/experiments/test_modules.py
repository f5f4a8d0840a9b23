"""Every module of the studies and benchmarks can be imported: mypy and the architecture's rules look at the package alone."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("experiments", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if path.stem != "__main__"
)


@pytest.mark.parametrize("name", MODULES)
def test_it_imports(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] in ("", "loopwright", "experiments", "benchmarks"):
            raise
        pytest.skip(f"{missing.name} is not installed")
