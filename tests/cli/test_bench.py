"""`bench` as a verb: a table or JSON, numbers and figure in a folder, and progress on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopwright import cli
from loopwright.evaluation import throughput


@pytest.fixture(autouse=True)
def small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(throughput.COPIED, "cpu", 2**20)


def run(*words: str) -> int | str | None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", *words])
    return stopped.value.code


@pytest.mark.long
def test_json_is_alone_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ouro-1.4b-tiny", "--depths", "1,2", "--batches", "2", "--prompt-tokens", "3", "--new-tokens", "4"]
    assert run(*words, "--json", "--out", str(tmp_path / "made")) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert [row["depth"] for row in report["rows"]] == [1, 2] and "bench: depth 2, batch 2" in printed.err
    assert json.loads((tmp_path / "made" / "bench.json").read_text()) == report
    assert "<svg" in (tmp_path / "made" / "bench.svg").read_text()


def test_the_table_names_its_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ouro-1.4b-tiny", "--depths", "1", "--batches", "1", "--prompt-tokens", "2", "--new-tokens", "4") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "tokens/s" in printed and "the speed of a copy here" in printed
    assert run("ouro-1.4b-tiny", "--batches", "0") == 2
