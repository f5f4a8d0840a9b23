"""The public names: all there, seen by `dir` and `import *`, and loaded only when one of them is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import loopwright as lw
from loopwright import public
from tests.rules import HOMES

ROOT = Path(__file__).parent.parent
HEAVY = "print(sorted({'torch', 'transformers', 'numpy', 'accelerate'} & set(sys.modules)))"


def fresh(code: str) -> str:
    """Runs code in a process that has imported nothing of ours, and returns what it prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_every_public_name_is_there_and_no_other() -> None:
    imports = [node for node in ast.parse(Path(public.__file__).read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.asname or alias.name for node in imports for alias in node.names} - {"annotations"}
    assert sorted(names) == sorted(lw.__all__)
    for name in lw.__all__:
        assert getattr(lw, name) is getattr(public, name)
    assert set(lw.__all__) | {"__version__"} <= set(dir(lw))


def test_an_unknown_name_is_refused_as_everywhere() -> None:
    with pytest.raises(AttributeError, match="module 'loopwright' has no attribute 'laod'"):
        lw.laod  # noqa: B018


@pytest.mark.long
def test_importing_loopwright_loads_nothing_heavy_until_a_name_is_asked_for_and_no_optional_package() -> None:
    assert fresh(f"import sys, loopwright; dir(loopwright); loopwright.__version__; {HEAVY}") == "[]"
    # folders of the same name are imported first: the public names win
    before = "import loopwright as lw, loopwright.training.loop, loopwright.checking.conformance, loopwright.metrics.score"
    shown = "print(load.__module__, metrics.__name__, train.__module__, lw.check.__module__, lw.train is train)"
    extras = f"import loopwright.cli; print([name for name in {list(HOMES)} if name in sys.modules])"
    names, heavy, optional = fresh(f"import sys; {before}; from loopwright import *; {shown}; {HEAVY}; {extras}").splitlines()
    assert names == "loopwright.checkpoints.source loopwright.metrics loopwright.api loopwright.checking.conformance True"
    assert "torch" in heavy and "transformers" in heavy and optional == "[]"


@pytest.mark.long
def test_help_and_mistyped_verbs_load_nothing_heavy() -> None:
    lines = [["--help"], ["presets", "--help"], ["evaluate", "--help"], ["--version"], ["inspekt", "huginn"], []]
    # a process for each, forked from one that has loaded the command line; what that one holds is printed last
    code = f"import os, sys\nfrom loopwright.cli import main\nfor words in {lines}:\n    if os.fork() == 0:\n        try:\n"
    code += f"            main(words)\n        except SystemExit:\n            {HEAVY}\n        sys.exit()\n    os.wait()\n{HEAVY}"
    assert fresh(code).splitlines().count("[]") == len(lines) + 1
