"""Every module of the studies and benchmarks can be imported, and each program among them has a `--help`: mypy and the rules of the
architecture look at the package alone."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for folder in ("experiments", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
MODULES = [name for name, path in FILES.items() if path.stem != "__main__"]
PROGRAMS = [name for name, path in FILES.items() if path.stem == "__main__" or '__name__ == "__main__"' in path.read_text()]


@contextmanager
def skipped_where_another_package_is_missing() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] in ("", "loopwright", "experiments", "benchmarks"):
            raise
        pytest.skip(f"{missing.name} is not installed")


@pytest.mark.parametrize("name", MODULES)
def test_it_imports(name: str) -> None:
    with skipped_where_another_package_is_missing():
        importlib.import_module(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_tells_what_it_does_and_runs_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.delitem(sys.modules, name, raising=False)  # it runs as a program, not as the module others import
    with skipped_where_another_package_is_missing(), pytest.raises(SystemExit) as ended:
        runpy.run_module(name, run_name="__main__")
    told = capsys.readouterr().out
    assert ended.value.code == 0 and "usage:" in told and len(told) > 150
