"""Where the rows of the exits study were made."""

from __future__ import annotations

import pytest
import torch

from benchmarks.pairs import made_on


def test_rows_name_the_device_they_were_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    made_on.cache_clear()
    try:
        assert made_on()["device"] == made_on("cuda")["device"] == "a GPU"
        assert made_on("cpu")["device"].startswith("CPU ")
    finally:
        made_on.cache_clear()
