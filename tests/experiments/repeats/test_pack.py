"""What goes to another machine: the tokens by the names under which runs look for them, and no row that was not stopped early."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest

from experiments.corpus import HELD_OUT
from experiments.repeats import pack as study


def test_the_folder_has_text_tokenizer_tokens_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in [*(f"train-{i:02}.jsonl.gz" for i in range(7)), *HELD_OUT.values()]:
        with gzip.open(corpus / name, "wt") as file:
            file.writelines(json.dumps({"text": f"{name} {i} " + "one two three four " * 80}) + "\n" for i in range(4))
    monkeypatch.setattr(study, "TEXTS", {1: 8, 16: 2})
    study.pack(corpus, tmp_path / "packed")
    found = {path.name for path in (tmp_path / "packed").rglob("*.jsonl.gz")}
    assert found == {*(f"train-{i:02}.jsonl.gz" for i in range(study.FIRST)), *HELD_OUT.values()}
    with tarfile.open(tmp_path / "packed/tokens.tar.xz") as archive:
        names = archive.getnames()
    assert "shards/held-out.pickle" in names
    assert len([name for name in names if name.startswith("shards/train-") and name.endswith("tokens-00000.npy")]) == 2


def test_rows_that_were_not_stopped_early_are_made_again() -> None:
    lines = [json.dumps(row) for row in ({"times": 16}, {"times": 16, "stopped": {}}, {"times": 1})]
    assert [*study.kept(lines)] == [f"{line}\n" for line in lines[1:]]
