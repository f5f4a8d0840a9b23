"""Evaluation by depth: one pass over a split, and intervals over documents."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import loopwright as lw
from loopwright.checking.probes import Verdict
from loopwright.data.batch import Batch, FirstRows, TokenRows, owners_of
from loopwright.data.tokens import Windows, kept_shards
from loopwright.evaluation import by_depth as module
from loopwright.evaluation.by_depth import SweepReport, grid, log_range, parse_depths, shown_places, sweep
from loopwright.evaluation.exits import early_exits, exit_specs, exit_words, of_rows
from loopwright.evaluation.paired import compare_rows, paired_table
from loopwright.generation.readings import readings
from loopwright.metrics.intervals import by_unit, mean_interval, wilson_interval
from loopwright.metrics.score import DepthRates, exact_rows, row_losses, token_losses
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.plot.drawing import Curve
from tests.cases import noisy

EOS, PAD = 14, 13


class Sums:
    """Random sums with the answers that a model gives at depth 3, so that accuracy has a peak there; padded on the right."""

    def __init__(self, model: lw.LoopedForCausalLM, rows: int = 10) -> None:
        torch.manual_seed(3)
        self.rows = []
        for row in range(rows):
            ids = torch.randint(0, 10, (1, 3 + row % 3))
            prompt = ids.shape[1]
            for _ in range(1 + row % 3):
                with torch.no_grad():
                    ids = torch.cat([ids, model(ids, depth=3 if model.config.is_looped else None).logits[:, -1:].argmax(-1)], dim=1)
            self.rows.append((ids[0], prompt))

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Sequence[int] | torch.Tensor) -> Batch:
        chosen = [self.rows[int(i)] for i in indices]
        width = max(len(ids) for ids, _ in chosen)
        tokens, mask = torch.full((len(chosen), width), PAD), torch.zeros(len(chosen), width).long()
        labels = torch.full((len(chosen), width), -100)
        for row, (ids, prompt) in enumerate(chosen):
            tokens[row, : len(ids)], mask[row, : len(ids)] = ids, 1
            labels[row, prompt : len(ids)] = ids[prompt:]
        return Batch(tokens, labels, mask, rows=torch.tensor([int(i) for i in indices]))


@pytest.fixture(scope="module")
def model() -> lw.LoopedForCausalLM:
    return noisy("stars-addition-tiny")


@pytest.fixture(scope="module")
def report(model: lw.LoopedForCausalLM) -> SweepReport:
    return sweep(model, Sums(model), depths=range(1, 7), batch_size=4, exact=True, eos_id=EOS, pad_id=PAD, decode_depths=[3, 6])


@pytest.mark.long
def test_a_sweep_is_separate_passes(model: lw.LoopedForCausalLM, report: SweepReport) -> None:
    source = Sums(model)
    assert (report.rows, report.own_depth, report.depth) == (10, 4, (1, 2, 3, 4, 5, 6))
    for place, depth in enumerate(report.depth):
        losses, targets, right, changes = [], [], [], []
        for start in (0, 4, 8):
            batch = source.batch(range(start, min(start + 4, 10)))
            with torch.no_grad():
                logits = model(batch.input_ids, attention_mask=batch.attention_mask, depth=depth).logits
            changes += [reading.change for reading in readings(model, batch, [depth], change=True)]
            loss, count = row_losses(logits, batch.labels)
            losses, targets, right = [*losses, loss], [*targets, count], [*right, exact_rows(logits, batch.labels)]
        loss, count, hits = torch.cat(losses), torch.cat(targets), torch.cat(right)
        assert report.targets == count.sum()
        mean = (loss.sum() / count.sum()).item()
        assert report.loss[place] == pytest.approx(mean, rel=1e-5) and report.perplexity[place] == pytest.approx(
            math.exp(mean), rel=1e-5
        )
        low, high = mean_interval(loss, count)
        assert (report.loss_low[place], report.loss_high[place]) == pytest.approx((low.item(), high.item()), rel=1e-5)
        change = torch.cat(changes)
        assert report.change_mean[place] == pytest.approx(change.mean().item(), rel=1e-5)
        assert report.change_largest[place] == pytest.approx(change.max().item(), rel=1e-5)
        assert report.exact[place] == pytest.approx(hits.double().mean().item())
        assert (report.exact_low[place], report.exact_high[place]) == pytest.approx(wilson_interval(int(hits.sum()), 10), rel=1e-5)


def test_the_peak_the_rates_and_the_decoding_are_seen(report: SweepReport) -> None:
    accuracy = report.accuracy()
    assert accuracy[3] == 1.0 and min(accuracy.values()) < 1.0
    whole, later = report.rates
    assert (whole.first, whole.last, later.first, later.last) == (1, 6, 4, 6)
    assert whole.overthinking > 0 and whole.self_correction > 0
    assert sum(count for _, count in report.settled) == 10
    assert dict(report.settled).get(0, 0) == pytest.approx(10 * (1 - accuracy[6]))
    assert [(check.depth, check.exact, check.disagreements) for check in report.decoded] == [(3, 1.0, 0), (6, accuracy[6], 0)]
    assert report.disagreements == 0 and all(
        0 < mean <= most for mean, most in zip(report.change_mean, report.change_largest, strict=True)
    )


def test_batches_do_not_matter(model: lw.LoopedForCausalLM, report: SweepReport) -> None:
    other = sweep(model, Sums(model), depths=[1, 3, 6], batch_size=10, exact=True)
    assert [report.exact[i] for i in (0, 2, 5)] == list(other.exact)
    assert [report.loss[i] for i in (0, 2, 5)] == pytest.approx(list(other.loss), rel=1e-5)
    assert [report.change_largest[i] for i in (0, 2, 5)] == pytest.approx(list(other.change_largest), rel=1e-4)


def test_disagreement_is_loud(model: lw.LoopedForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "decode_exact", lambda model, batch, depth, **_: torch.zeros(len(batch), dtype=torch.bool))
    with pytest.warns(UserWarning, match="depth 3: greedy decoding and the one pass disagree on 10 of 10 rows"):
        loud = sweep(model, Sums(model), depths=[2, 3], batch_size=4, exact=True, eos_id=EOS, decode_depths=[3])
    assert loud.disagreements == 10
    assert "10 ROWS DIFFER from the one pass" in shown(loud)


def test_running_text_has_no_exact_match(model: lw.LoopedForCausalLM) -> None:
    text = sweep(model, Sums(model), depths=[2], batch_size=4, exact=False)
    assert text.exact == (None,) and not text.rates and not text.settled and not text.decoded and text.loss[0] > 0
    assert "exact" not in shown(text)


def test_a_dense_model_is_one_depth() -> None:
    dense = noisy("stars-addition-tiny").without_adapters()
    found = sweep(dense, Sums(dense), batch_size=4, exact=True, eos_id=EOS, pad_id=PAD, decode_depths=[1])
    assert found.depth == (1,) and found.exact == (1.0,) and found.change_mean == (None,) and found.disagreements == 0
    assert "change" not in shown(found)


def test_the_file_holds_the_report(report: SweepReport, tmp_path) -> None:
    path = report.save(tmp_path / "eval" / "test.json")
    assert SweepReport.load(path) == report
    assert path.stat().st_size < 3000 and json.loads(path.read_text())["split"] == "test"
    for text in ("{", "[]", '{"split": "x"}'):
        path.write_text(text)
        with pytest.raises(ValueError, match="not a sweep report"):
            SweepReport.load(path)


def test_what_is_not_finite_is_null(tmp_path) -> None:
    broken = noisy("stars-addition-tiny")
    source = Sums(broken)
    with torch.no_grad():
        broken.core[0].mlp.down_proj.weight.fill_(math.nan)
    found = sweep(broken, source, depths=[1, 2], batch_size=10, exact=True, causality=Verdict(True, ""))
    assert found.loss == found.loss_low == found.perplexity == found.change_mean == (None, None) and found.exact == (0.0, 0.0)
    assert SweepReport.load(found.save(tmp_path / "x.json")) == found
    assert "not finite" in shown(found)


def test_the_table_shows_some_depths_and_keeps_the_own_one() -> None:
    depths = tuple(range(1, 1001))
    numbers = tuple(0.5 for _ in depths)
    report = SweepReport("long", 5, 20, 7, depths, *([numbers] * 9), rates=(DepthRates(1, 1000, 0.25, 0.1, 0.5, 0.2, 0.1, 0.0),))
    text = shown(report)
    lines = [line for line in text.splitlines() if "50.00 %" in line]
    assert 12 <= len(lines) <= 17
    assert f"{len(lines)} of the 1000 depths are shown; the file has all" in text
    assert {int(line.split("│")[1]) for line in lines} >= {1, 7, 1000}
    assert "depth 1 to 1000: right, then wrong 25 % (at the end 10 %); wrong, then right 50 % (at the end 20 %)" in report.remarks()


def shown(report: SweepReport, width: int = 200) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(report.table(width))
    return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_narrow_window_loses_no_digit(width: int) -> None:
    numbers = ((0.00183312,), (0.00165212,), (0.00204612,), (1.00234,), (1.0,), (0.996212,), (1.0,), (1.5e-07,), (2.8e-07,))
    text = shown(SweepReport("test", 1000, 5000, 7, (64,), *numbers), width)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    for number in ("0.001833", "0.001652", "0.002046", "1.002", "100.00 %", "99.62", "100.00", "1.5e-07", "2.8e-07"):
        assert number in text, number


def test_a_report_in_a_notebook_is_one_line(report: SweepReport) -> None:
    assert repr(report) == "SweepReport('test': 10 rows at 6 depths, 1 to 6)"


def test_splits_make_a_grid(report: SweepReport, model: lw.LoopedForCausalLM) -> None:
    longer = sweep(model, Sums(model, 4), depths=range(1, 7), batch_size=4, exact=True, split="5 digits")
    found = grid({"4 digits": report, longer.split: longer})
    assert found == {
        "rows": ["4 digits", "5 digits"],
        "columns": [1, 2, 3, 4, 5, 6],
        "values": [list(report.exact), list(longer.exact)],
    }
    with pytest.raises(ValueError, match="2 different sets of depths"):
        grid({"a": report, "b": sweep(model, Sums(model), depths=[1], batch_size=4, exact=True)})


def test_curves_are_plain_numbers(report: SweepReport) -> None:
    curve = report.curve("loss")
    assert curve == Curve([1, 2, 3, 4, 5, 6], list(report.loss), list(report.loss_low), list(report.loss_high))
    assert report.curve().y == list(report.exact)


def test_progress_and_mode(model: lw.LoopedForCausalLM) -> None:
    seen = []
    model.train()
    sweep(model, Sums(model), depths=[1], batch_size=4, exact=True, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)] and model.training
    model.eval()


def test_bad_questions_are_refused(model: lw.LoopedForCausalLM) -> None:
    source = Sums(model)
    with pytest.raises(ValueError, match="10 rows in batches of 0"):
        sweep(model, source, depths=[1], batch_size=0, exact=True)
    with pytest.raises(ValueError, match=r"decode_depths \[9\] are not among the depths; allowed: 1 to 2"):
        sweep(model, source, depths=[1, 2], batch_size=4, exact=True, decode_depths=[9])
    with pytest.raises(ValueError, match=r"decode_depths must be empty for running text.* \(got \[1\]\)"):
        sweep(model, source, depths=[1], batch_size=4, exact=False, decode_depths=[1])
    source.rows[3] = (source.rows[3][0], 99)
    with pytest.raises(ValueError, match="test: 1 of 10 rows have no target"):
        sweep(model, source, depths=[1], batch_size=4, exact=True)
    controller = {"kind": "controller", "rank": 4, "style": 8, "pooling": "sequence", "leak_future": True}
    with pytest.warns(UserWarning, match="leaks future tokens"):
        leaky = lw.build("ouroboros-qwen2.5-3b-tiny", adapters=[controller])
    with pytest.raises(ValueError, match="not causal, so its loss is not a likelihood"):
        sweep(leaky, source, depths=[1], batch_size=4, exact=True)


# depths in words


def test_depths_in_words() -> None:
    assert parse_depths("1:64") == list(range(1, 65))
    assert parse_depths("4, 1,2,2") == [1, 2, 4]
    assert parse_depths("1:9:4,64") == [1, 5, 9, 64]
    assert parse_depths("1:16:log") == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16]
    assert parse_depths("7") == [7]
    found = parse_depths("1:1000:log")
    assert found[0] == 1 and found[-1] == 1000 and {2**i for i in range(10)} <= set(found) and len(found) < 50


@pytest.mark.parametrize("text", ["", "0", "0:4", "5:4", "1:4:0", "1:4:lin", "a", "1-4", "1,,2", "-1", "1:2:3:4"])
def test_malformed_depths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^depths must be numbers >= 1 or ranges .*, joined by commas \(got '.*'\)$"):
        parse_depths(text)
    with pytest.raises(ValueError, match=r"^batches must be numbers >= 1"):
        parse_depths(text, "batches")


@pytest.mark.parametrize("text", ["1:99999999", "1000001", "1:1000001:log", "9" * 5000, "1:2:" + "9" * 5000])
def test_absurd_depths_are_refused_before_they_are_listed(text: str) -> None:
    with pytest.raises(ValueError, match=r"^depths: .*; allowed: depths of at most 1,000,000$"):
        parse_depths(text)


@given(st.integers(1, 300), st.integers(0, 3000), st.integers(3, 30))
def test_ranges_keep_their_ends(first: int, more: int, most: int) -> None:
    depths = log_range(first, first + more)
    assert depths[0] == first and depths[-1] == first + more and depths == sorted(set(depths))
    places = shown_places(depths, most, keep=first + 1)
    assert places[0] == 0 and places[-1] == len(depths) - 1 and len(places) <= most


DOCUMENTS = 9


@pytest.fixture(scope="module", params=[True, False], ids=["apart", "together"])
def windows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Windows:
    """Documents of 3 to 30 tokens in windows of 8, one begun in a window and ended in another."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 30, (DOCUMENTS,), generator=generator).tolist()
    made = [(torch.randint(90, (length,), generator=generator).tolist(), None) for length in lengths]
    folder: Path = tmp_path_factory.mktemp("shards")
    return Windows(kept_shards(folder, "test", {}, lambda: made, vocab_size=90), 8, str, apart=request.param)


@pytest.fixture(scope="module")
def text_model() -> LoopedForCausalLM:
    return noisy("stars-addition-tiny", vocab_size=96).eval()


def by_hand(text_model: LoopedForCausalLM, windows: Windows, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed loss and targets of each document, token by token."""
    losses, targets = torch.zeros(DOCUMENTS, dtype=torch.float64), torch.zeros(DOCUMENTS)
    ends = windows.shards.starts[1:]
    for row in range(len(windows)):
        batch = windows.batch([row])
        with torch.no_grad():
            logits = text_model(batch.input_ids, segment_ids=batch.segment_ids, depth=depth).logits
        each, asked = token_losses(logits, batch.labels)
        for place in range(7):
            if asked[0, place]:
                token = row * 7 + place + 1
                document = next(i for i, end in enumerate(ends) if token < end)
                losses[document] += each[0, place].double()
                targets[document] += 1
    return losses, targets


def test_a_sweeps_interval_is_over_documents(text_model: LoopedForCausalLM, windows: Windows) -> None:
    found = sweep(text_model, windows, depths=[1, 3], batch_size=4, exact=False)
    losses, targets = by_hand(text_model, windows, 3)
    low, high = mean_interval(losses, targets)
    assert (found.unit, found.units) == ("document", int((targets > 0).sum()))
    assert (found.loss_low[1], found.loss_high[1]) == pytest.approx((low.item(), high.item()), rel=1e-4)
    assert f"intervals over {found.units} documents" in str(found.table().title)
    few = sweep(text_model, FirstRows(windows, 5), depths=[1], batch_size=4, exact=False)
    assert few.unit == "document" and few.units < found.units
    alone = sweep(text_model, TokenRows(torch.randint(90, (4, 8)).tolist()), depths=[1], batch_size=4, exact=False)
    assert (alone.unit, alone.units) == ("row", 4) and "intervals over 4 rows" in str(alone.table().title)


def test_two_models_are_compared_over_documents(text_model: LoopedForCausalLM, windows: Windows) -> None:
    (found,) = compare_rows(text_model, text_model, {"far": windows}, depths=(3, 1), exact=False, batch_size=4)
    (one, targets), (other, _) = by_hand(text_model, windows, 3), by_hand(text_model, windows, 1)
    low, high = mean_interval(one - other, targets)
    assert (found.unit, found.units) == ("document", int((targets > 0).sum()))
    assert (found.difference_low, found.difference_high) == pytest.approx((low.item(), high.item()), abs=1e-5)
    assert f"over {found.units} documents" in str(paired_table([found], "a", "b").caption)


def test_exits_are_over_documents(text_model: LoopedForCausalLM, windows: Windows) -> None:
    part = of_rows(windows, 4, exact=False)
    specs = exit_specs(exit_words(["entropy:3"]), text_model)
    found = early_exits(text_model, part.pairs(), specs, name="far", depth=3, units=part.units, unit=part.unit)
    (three, targets), (one, _) = by_hand(text_model, windows, 3), by_hand(text_model, windows, 1)
    low, high = mean_interval(one - three, targets)
    assert (found.unit, found.units) == ("document", int((targets > 0).sum()))
    assert (found.fixed[0].excess_low, found.fixed[0].excess_high) == pytest.approx((low.item(), high.item()), abs=1e-5)


def test_owners_count_targets_not_tokens(windows: Windows) -> None:
    places = range(len(windows))
    batch = windows.batch(places)
    held = owners_of(windows, places, batch)
    assert held is not None and int(held.targets.sum()) == batch.targets
    ones = torch.ones(batch.input_ids.shape)[:, 1:][batch.labels[:, 1:] != -100]
    assert by_unit(ones, held.places[:, 1:][batch.labels[:, 1:] != -100]).tolist() == held.targets[held.targets > 0].tolist()
