"""Windows of text: intervals are over the documents that their targets belong to, whatever windows they stand in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loopwright.data.batch import FirstRows, TokenRows, owners_of
from loopwright.data.tokens import Windows, kept_shards
from loopwright.evaluation.by_depth import sweep
from loopwright.evaluation.exits import early_exits, exit_specs, exit_words, of_rows
from loopwright.evaluation.paired import compare_rows, paired_table
from loopwright.metrics.intervals import by_unit, mean_interval
from loopwright.metrics.score import token_losses
from loopwright.model.causal_lm import LoopedForCausalLM
from tests.cases import noisy

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
def model() -> LoopedForCausalLM:
    return noisy("stars-addition-tiny", vocab_size=96).eval()


def by_hand(model: LoopedForCausalLM, windows: Windows, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed loss and targets of each document, token by token."""
    losses, targets = torch.zeros(DOCUMENTS, dtype=torch.float64), torch.zeros(DOCUMENTS)
    ends = windows.shards.starts[1:]
    for row in range(len(windows)):
        batch = windows.batch([row])
        with torch.no_grad():
            logits = model(batch.input_ids, segment_ids=batch.segment_ids, depth=depth).logits
        each, asked = token_losses(logits, batch.labels)
        for place in range(7):
            if asked[0, place]:
                token = row * 7 + place + 1
                document = next(i for i, end in enumerate(ends) if token < end)
                losses[document] += each[0, place].double()
                targets[document] += 1
    return losses, targets


def test_a_sweeps_interval_is_over_documents(model: LoopedForCausalLM, windows: Windows) -> None:
    found = sweep(model, windows, depths=[1, 3], batch_size=4, exact=False)
    losses, targets = by_hand(model, windows, 3)
    low, high = mean_interval(losses, targets)
    assert (found.unit, found.units) == ("document", int((targets > 0).sum()))
    assert (found.loss_low[1], found.loss_high[1]) == pytest.approx((low.item(), high.item()), rel=1e-4)
    assert f"intervals over {found.units} documents" in str(found.table().title)
    few = sweep(model, FirstRows(windows, 5), depths=[1], batch_size=4, exact=False)
    assert few.unit == "document" and few.units < found.units
    alone = sweep(model, TokenRows(torch.randint(90, (4, 8)).tolist()), depths=[1], batch_size=4, exact=False)
    assert (alone.unit, alone.units) == ("row", 4) and "intervals over 4 rows" in str(alone.table().title)


def test_two_models_are_compared_over_documents(model: LoopedForCausalLM, windows: Windows) -> None:
    (found,) = compare_rows(model, model, {"far": windows}, depths=(3, 1), exact=False, batch_size=4)
    (one, targets), (other, _) = by_hand(model, windows, 3), by_hand(model, windows, 1)
    low, high = mean_interval(one - other, targets)
    assert (found.unit, found.units) == ("document", int((targets > 0).sum()))
    assert (found.difference_low, found.difference_high) == pytest.approx((low.item(), high.item()), abs=1e-5)
    assert f"over {found.units} documents" in str(paired_table([found], "a", "b").caption)


def test_exits_are_over_documents(model: LoopedForCausalLM, windows: Windows) -> None:
    part = of_rows(windows, 4, exact=False)
    specs = exit_specs(exit_words(["entropy:3"]), model)
    found = early_exits(model, part.pairs(), specs, name="far", depth=3, units=part.units, unit=part.unit)
    (three, targets), (one, _) = by_hand(model, windows, 3), by_hand(model, windows, 1)
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
