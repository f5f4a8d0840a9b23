"""The list of presets."""

from __future__ import annotations

import pytest

from loopwright.cli.models import presets
from loopwright.model.presets import PRESETS, SOURCES


def test_every_preset_has_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(SOURCES) == list(PRESETS)
    presets()
    printed = capsys.readouterr().out
    for name, source in SOURCES.items():
        assert f" {name} " in printed and source in printed
    assert "3,564,976,800" in printed
