"""The command line and Python measure alike: the same numbers, and the same refusal of a model that sees the future."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import loopwright as lw
from loopwright.cli import main
from loopwright.commands.console import plain
from loopwright.data.build import build_data
from loopwright.settings import write_yaml
from tests.cases import noisy
from tests.leaks import LEAKS, looking, open_core
from tests.train.runs import PLAIN

pytestmark = pytest.mark.filterwarnings("ignore:controller. pooling")

REFUSED = "not causal, so its loss is not a likelihood: sees the future"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {"causal": ("huginn-tiny", {"depth": 2}), **LEAKS}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A folder of each model with the tokenizer of its data, a recipe, and a text in the same symbols."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "sums.yaml").write_text(write_yaml(PLAIN))
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"{i}2+3{i}={i}5§"}) + "\n" for i in range(1, 9)))
    words = build_data(PLAIN["data"]).tokenizer
    with looking():
        for name, (preset, changes) in MODELS.items():
            lw.save(noisy(preset, std=0.3, vocab_size=15, **changes).eval(), folder / name, words)
        yield {"data": str(folder / "sums.yaml"), "text": f"t={folder / 'text.jsonl'}", "out": str(folder / "out")} | {
            name: str(folder / name) for name in MODELS
        }


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
        return {name.removeprefix("text-"): [*each["fixed"], *each["points"], *each["oracle"]] for name, each in found.items()}
    return found


@pytest.mark.parametrize("case", CASES)
def test_both_give_the_same_numbers(case: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    call, words = CASES[case]
    code, out, err = by_command(words, places["causal"], places, capsys)
    assert (code, err) == (0, "")
    assert numbers_of(json.loads(out)) == numbers_of(call(places["causal"], places))


@pytest.mark.parametrize("name", LEAKS)
@pytest.mark.parametrize("case", CASES)
def test_both_refuse_a_model_that_sees_the_future_in_the_same_words(
    case: str, name: str, places: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "core":
        open_core(monkeypatch)
    call, words = CASES[case]
    for model in (places[name], lw.load(places[name])):
        with pytest.raises(ValueError, match=REFUSED) as refused:
            call(model, places)
        if isinstance(model, str):
            code, out, err = by_command(words, model, places, capsys)
            assert (code, out) == (2, "") and err.strip() == f"loopwright: {refused.value}"
