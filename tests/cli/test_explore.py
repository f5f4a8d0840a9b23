"""`loopwright explore`: the server's page on loopback, and a browser that is asked to open it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from loopwright.cli import service as module
from loopwright.cli.service import explore


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the server was asked to do; it calls back at once."""
    seen: dict[str, Any] = {}

    def serve(sources: list[str], **options: Any) -> None:
        seen.update(options, sources=sources)
        if options["on_listening"] is not None:
            options["on_listening"]("http://127.0.0.1:8000")

    monkeypatch.setattr(module, "serve", serve)
    return seen


@pytest.mark.parametrize("found", [True, False])
def test_the_page_is_opened(
    asked: dict[str, Any], found: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(module.webbrowser, "open", lambda url: opened.append(url) or found)
    explore(["./a"], port=0, max_depth=9)
    for thread in [one for one in threading.enumerate() if one.name == "loopwright-browser"]:
        thread.join()
    assert opened == ["http://127.0.0.1:8000/"] and asked["sources"] == ["./a"] and asked["max_depth"] == 9
    assert "host" not in asked  # loopback, the server's own default
    assert ("no browser was found; open http://127.0.0.1:8000/" in capsys.readouterr().err) is not found
    assert asked["access_log"] is False  # nobody reads here who asked for what


def test_no_browser(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.webbrowser, "open", lambda url: pytest.fail("opened"))
    explore(["./a"], browser=False)
    assert asked["on_listening"] is None


def test_what_is_no_model_is_told_under_its_own_name(asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"explore: 'nosuch' is no folder; allowed"):
        explore(["one=nosuch"])
    assert not asked
