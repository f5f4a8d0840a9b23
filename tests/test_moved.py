"""Old import paths give the very modules at the new places, with one warning."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

import loopwright as lw
from loopwright.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_is_the_new_module(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MOVED:
        monkeypatch.delitem(sys.modules, name, raising=False)
    new = import_module(MOVED[old])
    with pytest.warns(DeprecationWarning, match=f"{old} is {MOVED[old]} now"):
        assert import_module(old) is new
    assert new.__name__ == MOVED[old] and new.__spec__.name == MOVED[old]
    assert callable(lw.evaluate)  # a verb, whatever was imported


def test_another_path_is_not_there() -> None:
    assert find_spec("loopwright.evaluating") is None
    with pytest.raises(ModuleNotFoundError):
        import_module("loopwright.train.loop")
