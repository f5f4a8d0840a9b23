"""What `inspect --train` prints."""

from __future__ import annotations

import pytest

from loopwright.commands.inspect_train import inspect_train

TINY = ["model.name=ouro-1.4b-tiny", "data.length=64"]


def test_the_tables_say_what_is_returned(capsys: pytest.CaptureFixture[str]) -> None:
    facts = inspect_train("looped-ouro", [*TINY, "batch=1024"], where={"gpus": 16, "network": 50, "gpu": "A100"})
    printed = capsys.readouterr().out
    assert [row["name"] for row in facts["rows"]] == ["one GPU, accumulate × 16", "DDP", "FSDP2, kept", "FSDP2, each step"]
    assert "Each of 16 A100: 2 × 64 tokens a batch, 32 an update, depth 4, bf16, remat step." in printed
    assert "300 GB/s to the GPUs of its node (--link), 50 GB/s from each of 2 nodes to the others (--network)" in printed
    assert all(row["fits"] and row["seconds"] > 0 and row["name"] in printed for row in facts["rows"])


@pytest.mark.slow
def test_without_a_peak_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    facts = inspect_train("looped-ouro", [*TINY, "precision=fp32"], where={"gpus": 1}, depth=2, context=8)
    assert "No time: the peak of H200 in fp32 is not known" in capsys.readouterr().out
    assert facts["rows"][0]["seconds"] is None
