"""The verbs about runs, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import loopwright as lw
from loopwright.cli import main
from tests.train.runs import PLAIN


def test_compare_prints_json_and_refuses_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "run")
    lw.train({**PLAIN, "updates": 2}, out=folder, progress=False)
    with pytest.raises(SystemExit) as end:
        main(["compare", folder, folder, "--depths", "3,1", "--rows", "4", "--json"])
    assert end.value.code == 0 and json.loads(capsys.readouterr().out)["results"][0]["depths"] == [3, 1]
    with pytest.raises(SystemExit) as end:
        main(["compare", folder, folder, "--depths", "a"])
    error = capsys.readouterr().err
    assert (
        end.value.code == 2
        and "depths: 'a'; give one depth for both (4), or one for each (8,1)" in error
        and len(error.splitlines()) == 1
    )
