"""The verbs about runs, from the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import loopwright as lw
from loopwright import cli
from loopwright.checking import conformance
from loopwright.checking.conformance import CheckReport, CheckRow
from loopwright.cli import main, results
from loopwright.recipes import recipe
from loopwright.training import loop
from loopwright.training.recipe import Recipe
from tests.checkpoints.dense import source
from tests.cli.exit_codes import run
from tests.generation.tiny import WORDS, word_tokenizer
from tests.own_kinds import own_kinds
from tests.training.runs import PLAIN


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
    if words.startswith("check"):
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


def test_a_run_that_was_stopped_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "train", lambda *args, **kwargs: SimpleNamespace(finished=False))
    assert run("train", "demo-plain") == 130


def test_training_options_reach_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    seen: dict[str, object] = {}

    def trained(recipe: Recipe, folder: Path, *, resume: bool, **options: object) -> object:
        seen.update(recipe=recipe, folder=folder, resume=resume)
        return SimpleNamespace(finished=True)

    monkeypatch.setattr(loop, "train", trained)
    (tmp_path / "parts_of_a_run.py").write_text("NAME = 'executed'\n")
    parts = str(tmp_path / "parts_of_a_run.py")
    with own_kinds():
        options = ["--out", "here", "--resume", "--toy", "--track", "wandb", "--import", parts]
        assert run("train", "demo-plain", "seed=3", "optim.lr=1e-4", *options) == 0
        assert sys.modules.pop("parts_of_a_run").NAME == "executed"
        assert run("train", "demo-plain", "--import", str(tmp_path / "gone.py")) == 2
    assert seen == {
        "recipe": recipe("demo-plain", ["seed=3", "optim.lr=1e-4", "track=wandb"], toy=True),
        "folder": Path("here"),
        "resume": True,
    }
    assert f"--import {parts}" in capsys.readouterr().out
    monkeypatch.setattr(results, "evaluate", lambda run, **options: seen.update(run=run, **options))
    monkeypatch.setattr(results, "as_data", lambda found: {})
    assert run("evaluate", "runs/x", "--depths", "1:8", "--split", "test", "--split", "valid", "--rows", "9", "--no-decode") == 0
    assert (seen["run"], seen["depths"], seen["splits"], seen["rows"], seen["decode"]) == (
        "runs/x",
        "1:8",
        ["test", "valid"],
        9,
        False,
    )
    assert run("recipes", "demo-plain") == 0
    assert "kind: addition" in capsys.readouterr().out


def test_mistakes_in_training_cost_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "demo-stabel") == run("train", "demo-stable", "optm.lr=1") == run("evaluate", "nowhere") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and "did you mean 'demo-stable'" in lines[0] and "did you mean 'optim'" in lines[1]
    assert "'nowhere' is no folder" in lines[2]
