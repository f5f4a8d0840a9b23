"""Words on the command line, and the tools of the verbs."""

from __future__ import annotations

import torch

import loopwright as lw
from loopwright.commands.words import fitting_threads


def test_small_models_run_on_one_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with fitting_threads(lw.build("huginn-tiny")):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
