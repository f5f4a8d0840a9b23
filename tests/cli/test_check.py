"""What `check` prints and returns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import loopwright as lw
from loopwright.checking import conformance
from loopwright.checking.conformance import CheckReport, CheckRow
from loopwright.cli.checks import check_model, check_presets
from loopwright.model.presets import PRESETS
from tests.cases import noisy
from tests.generation.tiny import save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), chat=True)


@pytest.mark.slow
def test_check_of_a_preset_says_that_it_is_the_small_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_model("relaxed")["relaxed-tiny"].ok
    printed = capsys.readouterr().out
    assert "small form, relaxed-tiny" in printed and "causality" in printed and "0 failed" in printed


@pytest.mark.long
def test_check_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_model(str(folder))[str(folder)].ok
    printed = capsys.readouterr().out
    assert "small form" not in printed and f"{folder}: " in printed
    assert f"files: there is no manifest.json in {folder}, so that nothing says whether they are as they were written" in printed


def test_check_says_that_the_files_are_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = CheckReport((CheckRow("causality", True, "fine"),))
    monkeypatch.setattr(conformance, "check", lambda *args, **kwargs: report)
    check_model(str(lw.save(noisy("huginn-tiny"), tmp_path / "m")))
    assert "files: as manifest.json says they were written (size and sha256)" in capsys.readouterr().out


def test_a_failed_check_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    report = CheckReport((CheckRow("causality", False, "token 3 moved"), CheckRow("depth", None, "none")))
    monkeypatch.setattr(conformance, "check", lambda *args, **kwargs: report)
    assert check_model("asura-tiny") == {"asura-tiny": report}
    assert "0 passed, 1 failed, 1 not offered" in capsys.readouterr().out
    assert check_presets() == dict.fromkeys(PRESETS, report)
    printed = capsys.readouterr().out
    assert printed.count("causality: token 3 moved") == len(PRESETS)


def test_every_preset_is_checked_small(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []

    def check(model: torch.nn.Module, *, progress: object) -> CheckReport:
        seen.append(model.config.hidden_size)
        assert torch.get_num_threads() == 1
        return CheckReport((CheckRow("causality", True, ""),))

    monkeypatch.setattr(conformance, "check", check)
    assert list(check_presets()) == list(PRESETS)
    assert seen == [32] * len(PRESETS)
    printed = capsys.readouterr().out
    assert all(name in printed for name in PRESETS)
