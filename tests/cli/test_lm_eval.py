"""lm-eval's command line with our models: it runs in the same process, and its absence is one line."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import loopwright
from loopwright.cli import lm_eval as module


def test_it_is_lm_evals_own_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", SimpleNamespace(cli_evaluate=lambda: called.append(sys.argv[1:])))
    monkeypatch.setattr(sys, "argv", ["loopwright-lm-eval", "--model", "hf"])
    module.main()
    assert called == [["--model", "hf"]] and loopwright.__name__ in sys.modules


def test_where_it_is_not_installed_one_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2 and capsys.readouterr().err.startswith("loopwright-lm-eval: lm-eval is not installed; pip install")
