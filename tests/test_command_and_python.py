"""Every verb that both have gives the same by the command line and from Python: results, files, and refusals in one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright import measuring
from loopwright.cli import main
from loopwright.cli.console import plain
from loopwright.data.build import build_data
from loopwright.errors import one_line
from loopwright.evaluation.likelihood import NOT_A_LIKELIHOOD
from loopwright.schema import read_yaml, write_yaml
from tests.cases import noisy
from tests.checkpoints.dense import source
from tests.cli.exit_codes import run
from tests.generation.tiny import word_tokenizer
from tests.leaks import LEAKS, looking, open_core
from tests.training.runs import PLAIN

pytestmark = pytest.mark.filterwarnings("ignore:controller. pooling")

REFUSED = "not causal, so its loss is not a likelihood: sees the future"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {"causal": ("huginn-tiny", {"depth": 2}), **LEAKS}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A folder of each model with the tokenizer of its data, a recipe, and a text in the same symbols."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "sums.yaml").write_text(write_yaml(PLAIN))
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"{i}2+3{i}={i}5§"}) + "\n" for i in range(1, 9)))
    wrong = {"wrong_key": {**PLAIN, "updats": 2}, "wrong_value": {**PLAIN, "updates": 0}}
    for name, recipe in wrong.items():
        (folder / f"{name}.yaml").write_text(write_yaml(recipe))
    words = build_data(PLAIN["data"]).tokenizer
    with looking():
        for name, (preset, changes) in MODELS.items():
            lw.save(noisy(preset, std=0.3, vocab_size=15, **changes).eval(), folder / name, words)
        yield {
            **{name: str(folder / f"{name}.yaml") for name in wrong},
            "dense": str(lw.save(source(), folder / "dense", word_tokenizer())),
            "data": str(folder / "sums.yaml"),
            "text": f"t={folder / 'text.jsonl'}",
            "file": str(folder / "text.jsonl"),
            "out": str(folder / "out"),
            "new": str(folder / "new"),
        } | {name: str(folder / name) for name in MODELS}


def longer(case: Any, long: bool) -> Any:
    """Returns a case of a test, those that take longer behind `make long`."""
    each = case if isinstance(case, tuple) else (case,)
    return pytest.param(*each, id="-".join(each), marks=[pytest.mark.long] * long)


def text_of(places: dict[str, str]) -> dict[str, str]:
    name, _, file = places["text"].partition("=")
    return {name: file}


# what Python calls, and the words of the command line for the same
CASES: dict[str, tuple[Callable[[Any, dict[str, str]], Any], str]] = {
    "splits": (
        lambda m, p: lw.evaluate(m, data=p["data"], depths=[1, 3], rows=6, batch=4),
        "evaluate {model} --data {data} --depths 1,3 --rows 6 --batch 4",
    ),
    "text": (
        lambda m, p: lw.evaluate(m, text=text_of(p), depths="1:2", context=8, tokenizer=p["causal"]),
        "evaluate {model} --text {text} --depths 1:2 --context 8 --tokenizer {causal}",
    ),
    "exits of splits": (
        lambda m, p: lw.evaluate(m, data=p["data"], depths=3, rows=6, exit=["change:0.5", "stable:2"]),
        "evaluate {model} --data {data} --depths 3 --rows 6 --exit change:0.5 --exit stable:2",
    ),
    "exits of text": (
        lambda m, p: lw.evaluate(m, text=text_of(p), depths=3, context=8, exit="entropy:0.5", tokenizer=p["causal"]),
        "evaluate {model} --text {text} --depths 3 --context 8 --exit entropy:0.5 --tokenizer {causal}",
    ),
    "starts": (
        lambda m, p: lw.evaluate(m, data=p["data"], depths=[2], rows=6, state_seeds=2),
        "evaluate {model} --data {data} --depths 2 --rows 6 --state-seeds 2",
    ),
    "tasks": (
        lambda m, p: lw.evaluate(m, tasks="quiz", depths=[2], rows=6, tokenizer=p["causal"]),
        "evaluate {model} --tasks quiz --depths 2 --rows 6 --tokenizer {causal}",
    ),
    "rows compared": (
        lambda m, p: lw.compare(m, m, data=p["data"], depths=(1, 3), rows=8),
        "compare {model} {model} --data {data} --depths 1,3 --rows 8",
    ),
    "text compared": (
        lambda m, p: lw.compare(m, m, text=text_of(p), depths=(1, 3), context=8, tokenizer=p["causal"]),
        "compare {model} {model} --text {text} --depths 1,3 --context 8 --tokenizer {causal}",
    ),
}


def by_command(words: str, model: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Returns how a command ends, what it prints, and its line on stderr."""
    more = [] if words.startswith("compare") else ["--out", places["out"], "--overwrite"]
    with pytest.raises(SystemExit) as end:
        main([*words.format(model=model, **places).split(), "--json", *more])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def numbers_of(found: Any) -> Any:
    """Returns the numbers of a result by name, in the form that both can be brought into."""
    found = json.loads(json.dumps(plain(found)))
    found = found.get("results", found)
    if isinstance(found, dict) and all(isinstance(each, dict) for each in found.values()):  # reports of exits
        return {name: [*each["fixed"], *each["points"], *each["oracle"]] for name, each in found.items()}
    return found


@pytest.fixture(autouse=True)
def no_lm_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are refused before lm-eval is asked, which may not be here; tests/evaluation/test_harness.py runs it."""
    monkeypatch.setattr(measuring, "need_lm_eval", lambda: None)
    monkeypatch.setattr(measuring, "check_names", lambda names, folder: None)


@pytest.mark.parametrize("case", [longer(case, case not in ("splits", "text")) for case in CASES if case != "tasks"])
def test_both_give_the_same_numbers(case: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    call, words = CASES[case]
    code, out, err = by_command(words, places["causal"], places, capsys)
    assert (code, err) == (0, "")
    assert numbers_of(json.loads(out)) == numbers_of(call(places["causal"], places))


@pytest.mark.parametrize(
    ("case", "name"),
    [
        longer((case, name), name != "state")
        for case in CASES
        for name in LEAKS
        if case != "starts" or name == "core"  # those of a state that is noise
    ],
)
def test_both_refuse_a_model_that_sees_the_future_in_the_same_words(
    case: str, name: str, places: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = places["causal" if case == "starts" else name]
    if name == "core":
        open_core(monkeypatch)
    call, words = CASES[case]
    with pytest.raises(ValueError, match=REFUSED) as refused:
        call(model, places)
    code, out, err = by_command(words, model, places, capsys)
    assert (code, out) == (2, "") and err.strip() == f"loopwright: {refused.value}"
    with pytest.raises(ValueError, match=REFUSED):
        call(lw.load(model), places)


def test_both_mark_what_is_scored_all_the_same(places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    model, words = places["state"], "evaluate {model} --text {text} --depths 2 --context 8 --honest 5"
    found = lw.evaluate(model, text=text_of(places), depths=2, context=8, honest=5)
    code, out, _ = by_command(words, model, places, capsys)
    assert code == 0 and json.loads(out)["notes"] == {"t": NOT_A_LIKELIHOOD} == {"t": found["t"].note}
    assert numbers_of(json.loads(out)) == numbers_of(found) and found["t"].honest.gain[0] != 0


def test_a_run_is_measured_alike_where_nothing_is_asked(
    places: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lw.train({**PLAIN, "updates": 1}, out=tmp_path / "run", progress=False)
    folder = str(run.folder.path)
    code, out, err = by_command("evaluate {model}", folder, places, capsys)
    assert (code, err) == (0, "")
    for model in (run, folder):
        found = lw.evaluate(model)
        assert numbers_of(json.loads(out)) == numbers_of(found) and found["test"].depth[:6] == (1, 2, 3, 4, 5, 6)
        assert [check.depth for check in found["test"].decoded] == [1, 11, 48] and found["test"].source == str(run.checkpoint)
    assert found.trained is not None and "<svg" in found.plot()


# what is asked wrongly: in Python, and on the command line
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "rows": ({"rows": 0}, "--rows 0"),
    "depths": ({"depths": "0"}, "--depths 0"),
    "no data": ({}, ""),
    "split": ({"data": "{data}", "splits": "tset"}, "--data {data} --split tset"),
    "form": ({"text": "{out}", "data": "{data}"}, "--text {out} --data {data}"),
    "alone": ({"context": 8}, "--context 8"),
    "positions": ({"data": "{data}", "depths": "10000000"}, "--data {data} --depths 10000000"),
    "context": ({"text": "{file}", "context": 10**6}, "--text {file} --context 1000000"),
    "file": ({"text": "absent.txt"}, "--text absent.txt"),
    "two depths": ({"data": "{data}", "exit": "all", "depths": "1:2"}, "--data {data} --exit all --depths 1:2"),
    "rule": ({"data": "{data}", "exit": "gate"}, "--data {data} --exit gate"),
    "checkpoint": ({"data": "{data}", "checkpoint": "last"}, "--data {data} --checkpoint last"),
    "seeds": ({"data": "{data}", "state_seeds": 0}, "--data {data} --state-seeds 0"),
    "shots": ({"shots": 0}, "--shots 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_both_refuse_what_is_asked_wrongly_in_the_same_words(
    name: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    options, words = WRONG[name]
    asked = {each: value.format(**places) if isinstance(value, str) else value for each, value in options.items()}
    with pytest.raises(ValueError) as refused:
        lw.evaluate(places["causal"], **asked)
    code, _, err = by_command(f"evaluate {{model}} {words}", places["causal"], places, capsys)
    assert code == 2 and err.strip() == f"loopwright: {refused.value}"


# the verbs that make or check something: a call, and the words of the command line for the same; both are told where to write
MADE: dict[str, tuple[Callable[[dict[str, str], Path], Any], str]] = {
    "train": (
        lambda p, out: lw.train({**read_yaml(Path(p["data"]).read_text(), "sums"), "updates": 2}, out=out, progress=False),
        "train {data} updates=2 --out {made}",
    ),
    "retrofit": (
        lambda p, out: lw.save(lw.retrofit(p["dense"], "healed", core=[1], depth=2, seed=3), out),
        "retrofit {dense} {made} healed --core 1 depth=2 --seed 3",
    ),
}


@pytest.mark.parametrize("verb", MADE)
def test_both_make_the_same_weights(verb: str, places: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call, words = MADE[verb]
    call(places, tmp_path / "python")
    assert run(*words.format(**places, made=tmp_path / "command").split()) == 0, capsys.readouterr().err
    python, command = (lw.load(tmp_path / name) for name in ("python", "command"))
    assert python.config.to_dict() == command.config.to_dict()
    assert all(torch.equal(value, command.state_dict()[name]) for name, value in python.state_dict().items())


def test_both_check_the_same(places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for name, code in (("causal", 0), ("state", 1)):
        assert run("check", places[name], "--json") == code
        (rows,) = (report["rows"] for report in json.loads(capsys.readouterr().out).values())
        found = lw.check(lw.load(places[name]))
        assert [(row["name"], row["passed"]) for row in rows] == [(row.name, row.passed) for row in found.rows]
        assert found.ok == (code == 0)


# what is wrong of the others: a call, and the words of the command line
REFUSALS: dict[str, tuple[Callable[[dict[str, str]], Any], str]] = {
    "train: a key": (lambda p: lw.train(p["wrong_key"], out=p["new"]), "train {wrong_key} --out {new}"),
    "train: a value": (lambda p: lw.train(p["wrong_value"], out=p["new"]), "train {wrong_value} --out {new}"),
    "train: a name": (lambda p: lw.train("demo-stabel", out=p["new"]), "train demo-stabel --out {new}"),
    "train: a folder of others": (lambda p: lw.train(PLAIN, out=p["dense"]), "train {data} --out {dense}"),
    "compare: depths": (lambda p: lw.compare(p["causal"], p["causal"], data=p["data"], depths=10**7),
                        "compare {causal} {causal} --data {data} --depths 10000000"),
    "compare: no data": (lambda p: lw.compare(p["causal"], p["causal"]), "compare {causal} {causal}"),
    "compare: a model": (lambda p: lw.compare(p["causal"], "nosuch", data=p["data"]), "compare {causal} nosuch --data {data}"),
    "compare: a file": (lambda p: lw.compare(p["causal"], p["causal"], text="absent.txt"),
                        "compare {causal} {causal} --text absent.txt"),
    "retrofit: a system": (lambda p: lw.retrofit(p["dense"], "ouroborus"), "retrofit {dense} {new} ouroborus"),
    "retrofit: layers": (lambda p: lw.retrofit(p["dense"], core=[99]), "retrofit {dense} {new} --core 99"),
    "retrofit: looped": (lambda p: lw.retrofit(p["causal"], "plain-loop"), "retrofit {causal} {new} plain-loop"),
    "push: a repository": (lambda p: lw.push(p["causal"], "mine"), "push {causal} mine"),
    "push: a folder": (lambda p: lw.push("nosuch", "me/mine"), "push nosuch me/mine"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_both_refuse_what_is_wrong_in_the_same_words(name: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    call, words = REFUSALS[name]
    with pytest.raises((ValueError, OSError)) as refused:
        call(places)
    capsys.readouterr()
    assert run(*words.format(**places).split()) == 2
    assert capsys.readouterr().err.strip() == f"loopwright: {one_line(str(refused.value))}"
