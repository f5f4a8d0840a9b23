"""`evaluate --tasks` as a verb: tables, files that are not replaced by less, figures, and what is refused in one line."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from loopwright import measuring
from loopwright.cli import main
from loopwright.cli.results import evaluate
from loopwright.evaluation import harness
from loopwright.evaluation.tasks import Asking, TaskReport, task_report
from tests.generation.tiny import save_model

pytestmark = pytest.mark.usefixtures("unlaid")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Two tasks as they would come from lm-eval, which may not be here; tests/evaluation/test_harness.py runs it."""
    asked: list[dict[str, Any]] = []

    def measure(model: Any, tokenizer: Any, names: list[str], depths: list[int], **options: Any) -> dict[str, TaskReport]:
        asked.append({"names": names, "depths": depths, **options})
        facts = {"source": options["source"], "dtype": "float32", "data": "quiz.jsonl", **vars(options["asking"])}
        right = [[True, False]] * len(depths)
        bits = [[(-2.0, 1), (-3.0, 2)]] * len(depths)
        return {
            "quiz": task_report("quiz", depths, {"acc": [0.5] * len(depths)}, {"acc": right}, **facts),
            "book": task_report(
                "book", depths, {"bits_per_byte": [5 / 3 / 0.6931471805599453] * len(depths)}, {"bits_per_byte": bits}, **facts
            ),
        }

    monkeypatch.setattr(measuring, "evaluate_tasks", measure)
    monkeypatch.setattr(measuring, "need_lm_eval", lambda: None)
    monkeypatch.setattr(measuring, "check_names", lambda names, folder: None)
    return asked


@pytest.mark.long
def test_tables_files_and_figures(
    model: str, measured: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"task_data": "folder", "out": str(tmp_path)}
    evaluate(model, tasks=" quiz, book,quiz", depths="1,2", shots=0, rows=2, **given)
    assert measured[0] | {"progress": None, "causality": None} == {
        "names": ["quiz", "book"], "depths": [1, 2], "folder": "folder", "shots": 0, "limit": 2, "batch": None, "source": model,
        "progress": None, "causality": None, "asking": Asking(),
    }  # fmt: skip
    assert "quiz: 2 questions (quiz.jsonl)" in capsys.readouterr().out
    kept = tmp_path / "eval" / "task-quiz-shots-0-rows-2.json"
    assert TaskReport.load(kept).depth == (1, 2)
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    assert figures == {"tasks-quiz-book-shots-0-rows-2.svg", "tasks-quiz-book-shots-0-rows-2-bits_per_byte.svg"}
    with pytest.raises(ValueError, match="1 of its 2 depths are not asked for now"):
        evaluate(model, tasks="quiz", depths="1", shots=0, rows=2, **given)
    assert len(measured) == 1  # told before the work


@pytest.mark.long
def test_json_has_the_rows_and_the_rates(
    model: str, measured: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["evaluate", model, "--tasks", "quiz,book", "--depths", "1,2", "--out", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert end.value.code == 0 and found["results"]["quiz"][1] == pytest.approx(
        {"depth": 2, "acc": 0.5, "acc_low": 0.0945312, "acc_high": 0.9054688}, abs=1e-6
    )
    assert found["tasks"]["quiz"]["rates"][0]["overthinking"] == 0 and found["tasks"]["book"]["rates"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shots", "-1"], "shots must be a whole number >= 0 (got -1)"),
        (["--rows", "0"], "rows must be a whole number >= 1 (got 0)"),
        (["--depths", "x"], "(got 'x')"),
        (["--text", "a.txt"], "tasks: given with text, which does not go with it"),
        (["--depths", "0"], "(got '0')"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_2(
    model: str, measured: list[dict[str, Any]], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["evaluate", model, "--tasks", "quiz", *words])
    error = capsys.readouterr().err
    assert end.value.code == 2 and said in error and len(error.splitlines()) == 1


def test_where_lm_eval_is_not_installed_one_line_says_so(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(harness, "find_spec", lambda name: None if name == "lm_eval" else there(name))
    with pytest.raises(SystemExit) as end:
        main(["evaluate", model, "--tasks", "quiz"])
    error = capsys.readouterr().err
    assert end.value.code == 2 and "tasks: lm-eval is not installed; pip install 'loopwright[eval]'" in error
    assert len(error.splitlines()) == 1


@pytest.mark.long
def test_a_chat_has_files_of_its_own_that_say_how_it_was_asked(
    measured: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = str(save_model(tmp_path / "talks", chat=True)), str(tmp_path / "out")
    (tmp_path / "system.txt").write_text("the cat")
    given: dict[str, Any] = {"depths": "1", "out": out}
    evaluate(model, tasks="quiz", asking={"chat": True, "system": str(tmp_path / "system.txt"), "max_new_tokens": 3}, **given)
    assert measured[0]["asking"] == Asking(True, "the cat", 3)
    assert (tmp_path / "out" / "eval" / "task-quiz-chat.json").is_file()
    with pytest.raises(ValueError, match="its asking is in the chat …, now in the chat template"):
        evaluate(model, tasks="quiz", asking={"chat": True}, **given)
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["evaluate", model, "--tasks", "quiz", "--depths", "1", "--out", out, "--chat", "--json", "--overwrite"])
    said = capsys.readouterr()
    assert end.value.code == 0 and json.loads(said.out)["tasks"]["quiz"]["system"] is None
    bare = str(save_model(tmp_path / "bare"))
    for source, words, told in (
        (bare, ["--chat"], "chat: the tokenizer has no chat template; leave --chat out, or use an instruct model's folder"),
        (model, ["--system", "x"], "system: a system message belongs to the chat template; give --chat too"),
        (model, ["--chat", "--system", " "], "system: the system message is empty"),
        (model, ["--max-new-tokens", "0"], "max_new_tokens must be a whole number >= 1"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["evaluate", source, "--tasks", "quiz", "--out", out, *words])
        assert end.value.code == 2 and told in " ".join(capsys.readouterr().err.split()), words
    with pytest.raises(SystemExit):
        main(["evaluate", model, "--chat"])
    assert "asking: belongs to tasks, which is not given" in " ".join(capsys.readouterr().err.split())
