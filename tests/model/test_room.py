"""Free memory."""

import pytest
import torch

import loopwright as lw
from loopwright.model import cost, room
from loopwright.model.room import check_room, free_bytes


def test_free_memory_of_the_processor_is_known_here():
    free = free_bytes("cpu")
    assert free is None or free > 0


def test_caches_that_the_system_would_give_back_are_free(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemFree: 10 kB\nMemAvailable:     700 kB\nCached: 690 kB\n")
    monkeypatch.setattr(room, "MEMORY", tmp_path / "meminfo")
    assert free_bytes("cpu") == 700 * 1024
    monkeypatch.setattr(room, "MEMORY", tmp_path / "none")
    assert free_bytes("cpu") != 700 * 1024


def test_what_does_not_fit_is_refused_with_both_numbers(monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda device: 2**30)
    cpu = torch.device("cpu")
    check_room("tables", 2**30, cpu, "take less")
    with pytest.raises(ValueError, match=r"^tables take 3,072\.0 GiB, and 1\.0 GiB are free on cpu; take less$"):
        check_room("tables", 3 * 2**40, cpu, "take less")
    check_room("tables", 3 * 2**40, torch.device("meta"), "take less")
    monkeypatch.setattr(room, "free_bytes", lambda device: None)  # nobody says: then it is tried
    check_room("tables", 3 * 2**40, cpu, "take less")


def test_a_model_that_does_not_fit_is_refused_before_anything_is_allocated():
    with pytest.raises(ValueError, match=r"^model: its weights take [\d.,]+ GiB, and [\d.,]+ GiB are free on cpu; take a smaller"):
        lw.build("huginn-tiny", hidden_size=400_000)
    config = lw.preset("huginn-tiny", hidden_size=400_000)
    assert cost.parameters(config)["total"].unique > 10**12  # without memory it can be looked at
