"""The command line, run inside a test."""

from __future__ import annotations

import pytest

from loopwright import cli


def run(*words: str) -> int:
    """Runs the command line here and returns its exit code."""
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    return stop.value.code or 0
