"""The verbs about runs, from the command line."""

from __future__ import annotations

import json

import pytest

import loopwright as lw
from loopwright import cli
from loopwright.check import conformance
from loopwright.check.conformance import CheckReport, CheckRow
from loopwright.cli import main
from tests.convert.dense import source
from tests.generate.tiny import WORDS, word_tokenizer
from tests.train.runs import PLAIN


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("places")
    lw.train({**PLAIN, "updates": 2}, out=folder / "run", progress=False)
    (folder / "text.txt").write_text(" ".join(WORDS * 8))
    dense = lw.save(source(), folder / "dense", word_tokenizer())
    return {"run": str(folder / "run"), "dense": str(dense), "text": str(folder / "text.txt"), "out": str(folder / "out")}


VERBS = {  # what is asked, and one fact that the answer holds, as (where it stands, what it is)
    "inspect huginn-tiny --depth 3 --tensors": (("depth",), 3),
    "check": (("asura", "rows", 0), {"name": "causality", "passed": True, "detail": "inf"}),
    "check asura-tiny": (("asura-tiny", "rows", 0, "name"), "causality"),
    "presets": ((0, "preset"), "universal"),
    "recipes": ((0, "recipe"), "addition-longer"),
    "recipes demo-plain": (("data", "kind"), "addition"),
    "generate {dense} the --max-new-tokens 3 --show-depth": (("by_depth", 0, "step"), 1),
    "retrofit {dense} {out} plain-loop depth=2": (("layout", "depth"), 2),
    "evaluate {run} --depths 1,3 --rows 4": (("results", "test", 1, "depth"), 3),
    "evaluate {dense} --text t={text} --context 8 --out {out}": (("notes",), {}),
    "bench {dense} --depths 1 --batches 1 --prompt-tokens 2 --new-tokens 4": (("rows", 0, "depth"), 1),
    "compare {run} {run} --depths 3,1 --rows 4": (("results", 0, "depths"), [3, 1]),
}


@pytest.mark.parametrize("words", VERBS)
def test_json_stands_alone_on_stdout(
    words: str, places: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = CheckReport((CheckRow("causality", True, "inf"),))
    monkeypatch.setattr(conformance, "check", lambda *args, **options: report)
    with pytest.raises(SystemExit) as end:
        main([*words.format(**places).split(), "--json"])
    found = json.loads(capsys.readouterr().out)
    where, fact = VERBS[words]
    for step in where:
        found = found[step]
    assert end.value.code == 0 and found == fact


def test_every_verb_that_prints_a_table_has_json() -> None:
    """The others print lines: a conversation, what a server does, the progress of a run, where a page was written."""
    asked = {words.split()[0] for words in VERBS}
    assert set(cli.VERBS) - asked == {"chat", "serve", "explore", "train", "analyze", "demo", "push"}


def test_compare_refuses_what_is_wrong(places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = places["run"]
    with pytest.raises(SystemExit) as end:
        main(["compare", folder, folder, "--depths", "a"])
    error = capsys.readouterr().err
    assert (
        end.value.code == 2
        and "depths: 'a'; give one depth for both (4), or one for each (8,1)" in error
        and len(error.splitlines()) == 1
    )
