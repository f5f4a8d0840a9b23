"""Threads of small models."""

from __future__ import annotations

import pytest
import torch

import loopwright as lw
from loopwright import process as threads
from loopwright.process import fitting_threads


def test_small_models_run_on_one_thread_unless_somebody_has_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, model = torch.get_num_threads(), lw.build("huginn-tiny")
    threads._say_once.cache_clear()
    torch.set_num_threads(2)
    try:
        for _ in range(2):
            with fitting_threads(model):
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 2
        said = capsys.readouterr().err
        assert said.count("threads: 1 of 2, for a model of ") == 1 and "OMP_NUM_THREADS" in said
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        with fitting_threads(model):
            assert torch.get_num_threads() == 2
        assert capsys.readouterr().err == ""
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("machine", "left"), [("aarch64", False), ("x86_64", True)])
def test_small_models_do_without_onednn_on_arm(monkeypatch: pytest.MonkeyPatch, machine: str, left: bool) -> None:
    monkeypatch.setattr(threads.platform, "machine", lambda: machine)
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = True
    try:
        with fitting_threads(lw.build("huginn-tiny")):
            assert torch.backends.mkldnn.enabled == left
        assert torch.backends.mkldnn.enabled
        with fitting_threads(torch.nn.Linear(1200, 1000)):
            assert torch.backends.mkldnn.enabled, "a large model keeps it"
    finally:
        torch.backends.mkldnn.enabled = before
