"""`loopwright compare`."""

from __future__ import annotations

from pathlib import Path

import pytest

import loopwright as lw
from loopwright import cli
from loopwright.checkpoints.source import Source
from loopwright.cli.results import evaluate, parse_pair
from loopwright.cli.runs import compare
from loopwright.data.tasks.task import Alphabet
from tests.training.runs import PLAIN


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs") / "run"
    lw.train({**PLAIN, "updates": 2}, out=folder, progress=False)
    return str(folder)


def test_one_run_at_two_depths(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(compare(run, run, depths="3,1").results) == 2
    printed = capsys.readouterr().out
    assert "paired; 95 % intervals over 8 rows" in printed and "3 / 1" in printed and "exact match" in printed


def test_both_are_opened_on_the_device_that_is_asked_for(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, model = [], Source.model
    monkeypatch.setattr(Source, "model", lambda self, *_, device="cpu", **__: opened.append(device) or model(self))
    monkeypatch.setattr("loopwright.cli.opening.find_device", lambda name: name)
    compare(run, run, depths="2,1", device="cuda:1")
    assert opened == ["cuda:1", "cuda:1"]
    monkeypatch.undo()
    with pytest.raises(ValueError, match="device: unknown 'gpu'; allowed: cpu, cuda, cuda:N, mps"):
        compare(run, run, depths="2,1", device="gpu")


def test_the_command_takes_a_device(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    codes = []
    for words in ([], ["--device", "cpu"], ["--device", "gpu"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["compare", run, run, "--depths", "2,1", "--json", *words])
        codes.append(stopped.value.code)
    printed = capsys.readouterr()
    assert codes == [0, 0, 2] and "device: unknown 'gpu'" in printed.err


def test_a_text(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sums.txt").write_text("12+34=64§" * 4)
    found = compare(run, run, depths="1,2", text=[f"mine={tmp_path / 'sums.txt'}"], context=8)
    assert [result.text for result in found.results] == ["mine"] and "intervals over 5 passages" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "depths"), [(None, None), ("4", 4), ("8,1", (8, 1)), (" 2 , 3", (2, 3))]
)  # fmt: skip
def test_depths(words: str | None, depths: int | tuple[int, int] | None) -> None:
    assert parse_pair(words) == depths


@pytest.mark.parametrize("words", ["", "0", "a", "1,2,3", "1,", "-1"])
def test_depths_that_are_none(words: str) -> None:
    with pytest.raises(ValueError, match=r"give one depth for both \(4\), or one for each \(8,1\)"):
        parse_pair(words)


def test_data_and_text_are_one_too_many(run: str) -> None:
    with pytest.raises(ValueError, match="text: given with data, which does not go with it"):
        compare(run, run, data="demo-plain", text=["x.txt"])


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, run: str) -> str:
    """The model of the run, with a tokenizer whose ids are other symbols."""
    folder = tmp_path_factory.mktemp("models") / "other"
    lw.save(lw.load(run), folder)
    symbols = lw.tokenizer(run).get_vocab()
    Alphabet(sorted(symbols, key=lambda word: -symbols[word])).tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.mark.long
def test_ids_that_are_other_words_to_a_model_are_not_measured(run: str, other: str, tmp_path: Path) -> None:
    wanted = r"data: its tokenizer is not that of .*other \(token \d+ is '.+' in the data, '.+' there\), so a loss would say"
    with pytest.raises(ValueError, match=wanted):
        compare(run, other)
    with pytest.raises(ValueError, match=wanted):
        lw.evaluate(other, data="demo-plain")
    for rules in ([], ["entropy:0.1"]):
        with pytest.raises(ValueError, match=wanted):
            evaluate(other, data="demo-plain", exit=rules, depths="1", rows=2, out=str(tmp_path))
    with pytest.raises(ValueError, match=r"compare: 'nosuch' is no folder; allowed"):
        compare(run, "nosuch")


def test_a_model_without_a_tokenizer_is_measured(run: str, other: str, tmp_path: Path) -> None:
    lw.save(lw.load(run), tmp_path / "bare")
    assert compare(run, str(tmp_path / "bare")).results[0].difference == 0
