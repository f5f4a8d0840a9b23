"""Scores against what a loop in plain Python finds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopwright.metrics.score import TokenAccuracy, chosen, depth_rates, exact_rows, holds_from_to, row_losses, settled_depths
from loopwright.model.passes import choosable, next_token_loss

LABELS = torch.tensor([[-100, -100, 2, 3], [-100, 1, 1, -100], [-100, -100, -100, -100], [2, -100, -100, 0]])


def logits_for(labels: torch.Tensor, vocabulary: int = 5) -> torch.Tensor:
    """Returns logits whose likeliest token after each place is the next label."""
    torch.manual_seed(0)
    logits = torch.randn(*labels.shape, vocabulary)
    for row, place in (labels[:, 1:] != -100).nonzero().tolist():
        logits[row, place, labels[row, place + 1]] = 9.0
    return logits


# rows


def test_row_losses_add_up_to_the_models_own_loss() -> None:
    logits = logits_for(LABELS)
    loss, targets = row_losses(logits, LABELS)
    assert loss.dtype == torch.float64 and targets.tolist() == [2, 2, 0, 1] and loss[2] == 0
    assert (loss.sum() / targets.sum()).item() == pytest.approx(next_token_loss(logits, LABELS).item(), rel=1e-6)
    alone = -logits[3, 2].log_softmax(-1)[0]  # the label at the first place is nobody's to predict
    assert loss[3].item() == pytest.approx(alone.item(), rel=1e-6)


def test_small_losses_keep_their_digits() -> None:
    labels = torch.tensor([[-100, 1, 2, 0]])
    logits = torch.full((1, 4, 3), 20.0)
    for place, label in enumerate([1, 2, 0]):
        logits[0, place, label] += 13.0  # a loss of 4.5e-6 each, far below the last digit of the logits
    wanted = row_losses(logits.double(), labels)[0].item()
    assert wanted == pytest.approx(3 * math.log1p(2 * math.exp(-13)), rel=1e-9)
    assert row_losses(logits, labels)[0].item() == pytest.approx(wanted, rel=0.03)


def test_exact_rows_are_right_at_every_target() -> None:
    logits = logits_for(LABELS)
    assert exact_rows(logits, LABELS).tolist() == [True, True, False, True]
    for row, place in [(0, 1), (0, 2), (1, 0), (1, 1), (3, 2)]:
        wrong = logits.clone()
        wrong[row, place, LABELS[row, place + 1]] = -9.0
        expected = [True, True, False, True]
        expected[row] = False
        assert exact_rows(wrong, LABELS).tolist() == expected
    free = logits.clone()
    free[0, 0], free[1, 2], free[0, 3] = 50.0, 50.0, 50.0  # nothing is predicted there
    assert exact_rows(free, LABELS).tolist() == [True, True, False, True]


def test_logits_that_are_not_numbers_are_not_right() -> None:
    labels = torch.tensor([[-100, 0]])  # the token that argmax names where all are NaN
    assert not exact_rows(torch.full((1, 2, 3), math.nan), labels).any()


def test_logits_that_are_all_the_same_say_no_token() -> None:
    """As `generate` refuses them: the first of equals is no answer. A tie of some tokens is the first of them, as there."""
    labels = torch.tensor([[3, 0, 0], [3, 1, 1]])
    same = torch.zeros(2, 3, 5)
    assert chosen(same).tolist() == [[-1] * 3] * 2
    assert not exact_rows(same, labels).any() and TokenAccuracy()(same, labels).tolist() == [0, 0]
    tied = same.clone()
    tied[..., 1:3] = 1.0
    assert chosen(tied).tolist() == [[1] * 3] * 2 and exact_rows(tied, labels).tolist() == [False, True]
    assert [bool(choosable(x[0, 0])) == (int(chosen(x)[0, 0]) >= 0) for x in (same, tied, same + math.inf, tied * math.nan)] == [
        True
    ] * 4


def test_labels_of_another_shape_are_refused() -> None:
    for score in (row_losses, exact_rows):
        with pytest.raises(ValueError, match=r"labels: shape \(4, 3\); allowed: \(4, 4\)"):
            score(logits_for(LABELS), LABELS[:, 1:])


# over depths

tables = st.integers(1, 6).flatmap(
    lambda depths: st.lists(st.lists(st.booleans(), min_size=depths, max_size=depths), min_size=1, max_size=8)
)


@given(tables, st.integers(0, 5))
def test_rates_are_what_counting_finds(rows: list[list[bool]], skipped: int) -> None:
    depths = [3 * i + 1 for i in range(len(rows[0]))]
    skipped = min(skipped, len(depths) - 1)
    table = torch.tensor(rows).T
    rates = depth_rates(table, depths, since=depths[skipped])

    def share(kind: bool, *, end: bool) -> float:
        def hit(row: list[bool]) -> bool:
            later = [len(row) - 1] if end else range(len(row))
            return any(row[i] is kind and row[j] is not kind for j in later for i in range(j))

        return sum(hit(row[skipped:]) for row in rows) / len(rows)

    assert (rates.first, rates.last) == (depths[skipped], depths[-1])
    assert rates.overthinking == share(True, end=False) and rates.overthinking_at_end == share(True, end=True)
    assert rates.self_correction == share(False, end=False) and rates.self_correction_at_end == share(False, end=True)
    assert rates.always_right == sum(all(row[skipped:]) for row in rows) / len(rows)
    assert rates.never_right == sum(not any(row[skipped:]) for row in rows) / len(rows)


@given(tables)
def test_settled_depths_are_the_first_to_stay_right(rows: list[list[bool]]) -> None:
    depths = [2 * i + 1 for i in range(len(rows[0]))]
    wanted = [next((depths[i] for i in range(len(row)) if all(row[i:])), 0) for row in rows]
    assert settled_depths(torch.tensor(rows).T, depths).tolist() == wanted


def test_rates_by_hand() -> None:
    rows = ["0011", "0110", "1011", "1111", "0000"]  # learns, is lost at the end, is lost and comes back, stays, never
    table = torch.tensor([[c == "1" for c in row] for row in rows]).T
    rates = depth_rates(table, [1, 2, 4, 8])
    assert (rates.overthinking, rates.overthinking_at_end) == (0.4, 0.2)
    assert (rates.self_correction, rates.self_correction_at_end) == pytest.approx((0.6, 0.4))
    assert (rates.always_right, rates.never_right) == (0.2, 0.2)
    assert settled_depths(table, [1, 2, 4, 8]).tolist() == [4, 0, 4, 1, 0]


def test_malformed_tables_are_refused() -> None:
    table = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="ascending, each once"):
        depth_rates(table, [2, 1])
    with pytest.raises(ValueError, match="for 3 depths; allowed: booleans"):
        settled_depths(table, [1, 2, 3])
    with pytest.raises(ValueError, match=r"torch.float32 of shape \(2, 3\)"):
        settled_depths(table.float(), [1, 2])
    with pytest.raises(ValueError, match="since 9; allowed: up to 2"):
        depth_rates(table, [1, 2], since=9)


def test_holding_is_an_unbroken_run() -> None:
    accuracy = {1: 0.2, 4: 1.0, 8: 0.99, 16: 0.98, 32: 1.0}
    assert holds_from_to(accuracy, 4, 0.99) == 8
    assert holds_from_to(accuracy, 4, 0.9) == 32
    assert holds_from_to(accuracy, 1, 0.9) is None
    assert holds_from_to({4: 1.0, 8: math.nan, 16: 1.0}, 4, 0.5) == 4
    with pytest.raises(ValueError, match="depth 5 was not measured; allowed: 1, 4, 8, 16, 32"):
        holds_from_to(accuracy, 5, 0.9)
