"""Results in a notebook."""

from typing import Any

import pytest
import torch
from rich.table import Table

import loopwright as lw
from loopwright.generation.request import Result
from loopwright.plot import Shown, html_of

IDS = torch.tensor([[1, 2, 3, 4], [2, 3, 4, 5]])
SHORT = 250  # characters of a repr


def results() -> dict[str, Any]:
    model = lw.build("universal-tiny", depth=2)
    with lw.Engine(model, max_rows=1, max_tokens=64) as engine:
        request = engine.submit([1, 2, 3], max_new_tokens=2)
        result, running = request.result(), repr(engine)
        assert repr(request) == "Request(2 tokens, length)"
    assert (running, repr(engine)) == ("Engine(LoopedForCausalLM, 0 open requests)", "Engine(LoopedForCausalLM, closed)")
    data = lw.splits([[1, 2, 3], [2, 3, 4]], [[3, 4, 5]])
    return {
        "CheckReport(2 passed, 0 failed, 0 not offered)": lw.check(model, names=["causality", "left padding"]),
        "Trace(2 × 4 tokens, 2 steps": lw.trace(model, IDS, 2, collect=["residual"], capture={"residual": [-1]}),
        "Result(tokens 2, depth 2 in the mean, finish reason length": result,
        "Result(tokens 1, depth 3.5 in the mean, finish reason stop, seed 7, text '[red]<b>'": Result(
            [4], "[red]<b>", [3, 4], "stop", None, 7
        ),
        "Evaluation(": lw.evaluate(model, data=data, splits=["valid"]),
        "SweepReport(": lw.evaluate(model, data=data, splits=["valid"])["valid"],
        "Comparison(": lw.compare(model, model, data=data, splits=["valid"], depths=(1, 2)),
    }


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    return results()


def test_results_are_short_in_words_and_tables_in_a_notebook(shown: dict[str, Any]) -> None:
    for beginning, result in shown.items():
        assert repr(result).startswith(beginning), repr(result)
        assert len(repr(result)) < 2 * SHORT and "\n" not in repr(result), repr(result)
        page = result._repr_html_()
        assert isinstance(result, Shown) and page.startswith("<pre") and page.count("\n") > 4, page
    assert "causality" in shown["CheckReport(2 passed, 0 failed, 0 not offered)"]._repr_html_()
    strange = next(page for start, page in shown.items() if "[red]" in start)._repr_html_()
    assert "[red]&lt;b&gt;" in strange  # neither rich's nor the browser's


def test_a_check_that_failed_is_named() -> None:
    report = lw.CheckReport((lw.CheckRow("cache", False, "off by 1"), lw.CheckRow("files", None, "not offered: none")))
    assert repr(report) == "CheckReport(0 passed, 1 failed, 1 not offered: cache)"


def test_an_output_says_its_shapes() -> None:
    model = lw.build("ouro-1.4b-tiny", depth=3)
    said = repr(model(IDS, labels=IDS, output_steps=True, use_cache=True))
    assert said.startswith("LoopedOutput(loss=tensor(") and len(said) < SHORT * 2, said
    width, words = model.config.hidden_size, model.config.vocab_size
    for part in (f"logits=[2, 4, {words}]", f"states=3 × [2, 4, {width}]", "exit_probs=[2, 4, 3]", "past_key_values=LoopCache("):
        assert part in said, said
    inner = repr(model.model(IDS, output_hidden_states=True))
    assert inner.startswith(f"LoopedModelOutput(last_hidden_state=[2, 4, {width}]") and f" × [2, 4, {width}]" in inner, inner


def test_data_and_trace_sets_are_one_line(tmp_path: Any) -> None:
    data = lw.splits([[1, 2, 3, 4], [2, 3, 4]], [[3, 4, 5]])
    assert repr(data.train) == "TokenRows(2 rows, 7 tokens)" and len(repr(data)) < SHORT * 2
    traces = lw.trace_prompts(lw.build("universal-tiny"), [[1, 2, 3]], tmp_path / "set", depth=2, collect=["residual"])
    assert repr(traces) == f"TraceSet({str(tmp_path / 'set')!r}: 1 examples)"


def test_tables_are_html_and_text_in_them_is_escaped() -> None:
    table = Table("name", "loss")
    table.add_row("<script>alert(1)</script>", "1.25")
    page = html_of(table)
    assert page.startswith("<pre") and "1.25" in page and "<script>" not in page and "&lt;script&gt;" in page
