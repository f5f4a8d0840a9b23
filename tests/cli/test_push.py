"""The verb: prints where the model is."""

from __future__ import annotations

import json
import warnings

import pytest

from loopwright.checkpoints import hub
from loopwright.cli import main


def test_it_prints_the_address_and_passes_on_what_it_was_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "push", lambda folder, repo, *, private: f"hub/{repo}?{folder}&{private}")
    with pytest.raises(SystemExit) as ended:
        main(["push", "runs/mine", "me/mine", "--private", "--json"])
    assert ended.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"folder": "runs/mine", "repo": "me/mine", "address": "hub/me/mine?runs/mine&True"}


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["push", "runs/mine", "mine"])
    assert ended.value.code == 2 and "repo must be owner/name" in capsys.readouterr().err


def test_what_was_left_out_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def upload(folder: str, repo: str, *, private: bool) -> str:
        warnings.warn("push: some were left out: 3", stacklevel=1)
        return repo

    monkeypatch.setattr(hub, "push", upload)
    with warnings.catch_warnings(action="always"), pytest.raises(SystemExit):
        main(["push", "runs/mine", "me/mine"])
    assert capsys.readouterr().err == "loopwright: warning: push: some were left out: 3\n"
