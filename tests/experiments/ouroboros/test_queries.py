"""What the study's page asks of the rows: a verdict of both held-out texts, and a page that a wrong row makes stale."""

from __future__ import annotations

import pytest

from experiments.ouroboros.plan import TOKEN
from experiments.seeds import Pooled
from experiments.templates import chance, cores, engine, ouroboros
from experiments.templates.ouroboros import OnTexts


def pair(*of_seeds: float) -> Pooled:
    """Returns a difference whose interval over documents is narrow."""
    mean = sum(of_seeds) / len(of_seeds)
    return Pooled(tuple(range(len(of_seeds))), (4, 4), mean, mean - 0.01, mean + 0.01, of_seeds, of_seeds, True)


@pytest.mark.parametrize(
    ("test", "ood", "side"),
    [
        (pair(-0.2, -0.21, -0.19), pair(-0.3, -0.31, -0.29), "ahead"),
        (pair(0.2, 0.21, 0.19), pair(0.3, 0.31, 0.29), "behind"),
        (pair(0.2, 0.21, 0.19), pair(-0.3, -0.31, -0.29), "undecided"),
        (pair(0.2, 0.21, 0.19), pair(0.3, -0.31, 0.29), "undecided"),
        (pair(-0.2), pair(-0.3), "undecided"),
    ],
)
def test_a_verdict_is_that_of_both_texts(test: Pooled, ood: Pooled, side: str) -> None:
    found = OnTexts((test, ood))
    assert (found.side, found.word) == (side, "undecided" if side == "undecided" else "decided")
    assert found.apart == [test.difference, ood.difference]


def test_a_seed_is_ahead_or_behind_where_both_texts_say_so() -> None:
    found = OnTexts((pair(-0.2, 0.3, 0.1), pair(-0.1, 0.2, -0.1)))
    assert (found.ahead_on, found.behind_on) == (1, 1)


def test_rows_without_a_seed_in_common_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"controller, token and other have no seed or no losses in common at depth 4"):
        ouroboros.less(TOKEN, "other", 4, lambda: {TOKEN: ouroboros.own()[TOKEN], "other": []})


@pytest.mark.studies
@pytest.mark.parametrize(
    ("file", "name", "text"),
    [
        ("runs", "others/controller, rank 8/0", "test"),
        ("rates", "tuned/static diagonal, rate 0.1/2", "test"),
        ("again", "tuned/controller, token, rate 0.016/6", "ood"),
        ("cores", "tuned/not looped, rate 0.012/3", "ood"),
    ],
)
def test_a_wrong_row_makes_the_page_stale(file: str, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ouroboros.read(file)
    (row,) = (row for row in found if row["name"] == name)
    report = row["texts"][text]
    report["loss"] = [loss + 0.05 for loss in report["loss"]]
    for losses in filter(None, report["losses"]):
        losses[:] = [loss + 0.05 * count for loss, count in zip(losses, report["targets_of"], strict=True)]
    whole = ouroboros.read
    changed = lambda asked: found if asked == file else whole(asked)  # noqa: E731
    caches = [each for module in (ouroboros, chance, cores) for each in vars(module).values() if hasattr(each, "cache_clear")]
    for module in (ouroboros, chance, cores):
        monkeypatch.setattr(module, "read", changed)
    try:
        for each in caches:
            each.cache_clear()
        problem = why_not(engine.Template(engine.FOLDER / "ouroboros.md.j2"))
    finally:
        for each in caches:
            each.cache_clear()
    assert problem.startswith(("docs/ouroboros.md, line ", "ouroboros.md.j2, line ")), problem


def why_not(template: engine.Template) -> str:
    """Returns what is wrong of a page: the line that is stale, or the sentence that the rows do not bear out."""
    try:
        (line,) = template.stale() or [""]
    except ValueError as error:
        return str(error)
    return line
