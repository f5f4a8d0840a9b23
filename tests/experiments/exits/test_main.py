"""Where the rows of the exits study were made."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.pairs import made_on
from experiments.exits import __main__ as study


def test_rows_name_the_device_they_were_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    made_on.cache_clear()
    try:
        assert made_on()["device"] == made_on("cuda")["device"] == "a GPU"
        assert made_on("cpu")["device"].startswith("CPU ")
    finally:
        made_on.cache_clear()


def test_a_speed_row_names_the_device_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with a GPU, on which a model is timed on the CPU."""
    model = torch.nn.Linear(1, 1)
    monkeypatch.setattr(study, "made_on", lambda device=None: {"device": str(device)})
    monkeypatch.setattr(study, "RESULTS", tmp_path)
    monkeypatch.setattr(study.ExitReport, "load", lambda path: SimpleNamespace(cheapest=dict))
    monkeypatch.setattr(study.lw, "load", lambda folder: model)
    monkeypatch.setattr(study, "text_prompts", lambda *given: ([(1,)], 4))
    monkeypatch.setattr(study, "fitting_threads", lambda model: nullcontext())
    monkeypatch.setattr(study, "speculation", lambda *given, **more: [{"benchmark": "P18"}])
    monkeypatch.setattr(study, "early_exit", lambda *given, **more: [{"benchmark": "P19"}])
    study.time_model("text", tmp_path, tmp_path, "cpu", "float32")
    rows = [json.loads(line) for line in (tmp_path / "text-speed.jsonl").read_text().splitlines()]
    assert [row["device"] for row in rows] == ["cpu", "cpu"]
