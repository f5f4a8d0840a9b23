"""The chat recipe on a tiny model: JSON lines of messages in, a model that is measured at depths 1 to 16 out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import loopwright as lw
from loopwright.data.chat import PackedChats
from loopwright.recipes import recipe
from tests.data.words import TEMPLATE, save_words


def test_chats_are_trained_on_packed_and_measured_by_depth(tmp_path: Path) -> None:
    words = save_words(tmp_path / "words", template=TEMPLATE)
    turns = [[("user", f"{i} and one"), ("assistant", str(i + 1)), ("user", "ok"), ("assistant", "bye")] for i in range(12)]
    rows = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in turns]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = recipe("chat-sft", [
        f"data.files={tmp_path / 'chats.jsonl'}", f"data.tokenizer={words}", "data.valid=2", "data.length=256",
        "updates=2", "batch=4", "precision=fp32", "save.every=0", "validate.every=2", "validate.rows=2", "schedule.warmup=1",
        "model={kind: preset, name: ouro-1.4b-tiny, changes: {vocab_size: 300, max_position_embeddings: 256}}",
        "depth={kind: log-normal, mu: 0.7, sigma: 0.4, least: 1, most: 4}",
    ])  # fmt: skip
    run = lw.train(chosen, out=tmp_path / "run", progress=False)
    assert isinstance(run.splits.train, PackedChats) and len(run.splits.train) < 10
    updates = [row for row in run.log() if "loss" in row]
    assert len(updates) == 2 and all(row["jacobian"] > 0 and row["targets"] < row["tokens"] for row in updates)
    measured: Any = lw.evaluate(tmp_path / "run", depths=[1, 4, 16], splits="valid")
    assert measured["valid"].decoded == (), "chats of several answers are not decoded"
    found = measured.to_dict()["valid"]
    assert [row["depth"] for row in found] == [1, 4, 16] and all(row["loss"] > 0 for row in found)
    rows[-1]["messages"] = rows[-1]["messages"][:1]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"chats.jsonl:12: no message of the assistant"):
        lw.train(chosen, out=tmp_path / "other", progress=False)
