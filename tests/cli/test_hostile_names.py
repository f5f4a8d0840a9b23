"""Names that would steer a terminal, or look like rich's tags: every verb shows them written out."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.untrusted import STEERING
from tests.cli.exit_codes import run

NAME = "a\x1b]0;own\x07\x1b[2J\x7f\x9b31m\u202eb[/red]"
SHOWN = r"a\x1b]0;own\x07\x1b[2J\x7f\x9b31m\u202eb[/red]"
WELL = [
    "train demo-stable --toy --out runs/NAME",
    "train demo-stable --toy --out runs/NAME --resume",
    "evaluate runs/NAME --depths 1,2 --rows 4",
    "evaluate runs/NAME --depths 1 --rows 4 --json --out runs/e-NAME",
    "compare runs/NAME runs/NAME --depths 1 --rows 4",
    "compare runs/NAME runs/NAME --depths 1 --rows 4 --json",
    "inspect runs/NAME",
    "inspect runs/NAME --json",
    "check runs/NAME",
    "generate runs/NAME 1+1= --max-new-tokens 3 --show-depth",
    "bench runs/NAME --depths 1 --batches 1 --prompt-tokens 2 --new-tokens 4 --out runs/b-NAME",
    "analyze runs/NAME --prompts 1+1= --depth 2 --out runs/z-NAME",
]
WRONG = [
    "train demo-stable --toy --out runs/NAME",
    "inspect no-NAME",
    "generate no-NAME x",
    "serve no-NAME",
    "retrofit no-NAME x",
    "compare no-NAME x",
    "train NAME.yaml",
    "train own.yaml",
    "train demo-stable NAME=1",
    "train demo-stable optim.lr=NAME",
    "recipes NAME",
    "presets NAME",
    "generate runs/NAME NAME",
    "push runs/NAME o/NAME",
    "evaluate runs/NAME --text NAME=own.yaml",
    "train demo-stable --out own.yaml/NAME",
]


@pytest.mark.long
def test_no_verb_shows_it_raw_and_no_file_for_people_holds_it_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text('"k\\e[2J\\ax": 1\nabout: x\n')
    shown = 0
    for words, wanted in [*((words, 0) for words in WELL), *((words, 2) for words in WRONG)]:
        code = run(*(word.replace("NAME", NAME) for word in words.split()))
        printed = capsys.readouterr()
        assert code == wanted, (words, printed.err[-300:])
        assert STEERING.search(printed.out + printed.err) is None, words
        assert wanted == 0 or printed.err.count("\n") == 1, words
        shown += SHOWN in "".join((printed.out + printed.err).split("\n"))
    assert shown > 15
    files = [path for path in tmp_path.rglob("*") if path.suffix in (".html", ".svg", ".md", ".jsonl", ".json", ".yaml")]
    assert {path.suffix for path in files} == {".html", ".svg", ".md", ".jsonl", ".json", ".yaml"}
    assert not [path.name for path in files if STEERING.search(path.read_text())]
