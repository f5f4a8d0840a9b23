"""The verbs about models, from the command line."""

from __future__ import annotations

import pytest

from loopwright.checking.conformance import CheckReport, CheckRow
from loopwright.cli import checks, demonstration
from tests.cli.exit_codes import run


@pytest.mark.parametrize(("well", "code"), [(True, 0), (False, 1)])
def test_a_failed_check_exits_with_one(well: bool, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    report = CheckReport((CheckRow("causality", well, ""),))
    monkeypatch.setattr(checks, "check_model", lambda *args, **kwargs: {"asura-tiny": report})
    monkeypatch.setattr(checks, "check_presets", lambda: {"universal": report, "asura": report})
    monkeypatch.setattr(demonstration, "demo", lambda *args, **kwargs: well)
    assert run("check", "asura") == run("check") == run("demo") == code
