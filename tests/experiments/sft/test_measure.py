"""What is asked of answers: the number that ends them, found in text and in tokens."""

from __future__ import annotations

import pytest

from experiments.sft.measure import result, results_alone
from experiments.sft.plan import CHAT, Places, Run, later_runs, text_runs
from loopwright.evaluation.text import Passage, Passages


class Letters:
    """A token for each letter."""

    def decode(self, ids: tuple[int, ...]) -> str:
        return "".join(map(chr, ids))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2 + 2 = 4\n#### 4", "4"),
        ("#### $1,250", "1250"),
        ("####-3.5", "-3.5"),
        ("it is 4", None),
        ("#### ", None),
        ("#### 70.00", "70"),
    ],
)
def test_the_result_is_the_number_after_the_mark(text: str, wanted: str | None) -> None:
    assert result(text) == wanted


def test_of_a_chat_what_follows_the_mark_is_scored() -> None:
    ids = tuple(map(ord, "Q? A #### 42."))
    found = results_alone(Passages("chats", 20, (Passage(ids, 3, 0, 0),), 128), Letters()).rows[0]  # type: ignore[arg-type]
    assert Letters().decode(found.ids[found.first :]) == " 42."


def test_arms_come_seed_by_seed_and_begin_from_the_model_of_their_kind() -> None:
    runs = list(later_runs((0, 1)))
    assert [run.name for run in runs[:6]] == ["fixed/0", "random/0", "fixed-penalty/0", "stars/0", "heal/0", "unlooped/0"]
    assert [run.name for run in runs[6:8]] == ["unlooped-flops/0", "fixed/1"]
    assert {run.source for run in runs if run.label in CHAT} == set(text_runs())
    assert str(Places("data", "runs/sft").model(Run("heal"))) == "runs/sft/heal-0"
