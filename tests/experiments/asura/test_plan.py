"""ASURA's rows: every part has three seeds, and a row with a schedule of its own keeps it whatever the command lays over all."""

from __future__ import annotations

from collections import Counter

from experiments.asura.plan import ALL_RATES, ALL_TEXT, ALL_UPDATES, CALMER, LOOPED, SIZES, WITHOUT_SKIP, rows
from experiments.asura.run import SETTINGS, laid_over
from loopwright.recipes import recipe


def test_every_part_has_three_seeds_and_no_row_is_planned_twice() -> None:
    planned = [*rows()]
    assert len({row.name for row in planned}) == len(planned)
    counts = Counter((row.size, row.label) for row in planned if not row.schedule)
    assert set(counts.values()) == {3} and len(counts) == len(SIZES) * (len(LOOPED) + 2)


def test_a_schedule_of_its_own_is_laid_over_all_else() -> None:
    calm = [row for row in rows() if row.schedule and row.size != ALL_TEXT]
    found = [recipe("asura-text", [*SETTINGS, *laid_over(row, ("schedule.warmup=60", "optim.lr=1e-3"))]) for row in calm]
    assert [(each.optim["lr"], each.schedule["warmup"]) for each in found] == [*CALMER]
    assert {each.model["changes"]["injection"]["kind"] for each in found} == {"none"} and WITHOUT_SKIP in calm[0].label


def test_all_of_the_text_is_read_once_at_two_rates() -> None:
    whole = [row for row in rows() if row.size == ALL_TEXT]
    found = [recipe("asura-text", [*SETTINGS, *laid_over(row, ("updates=600", "schedule.warmup=60"))]) for row in whole]
    assert {each.updates for each in found} == {ALL_UPDATES} and {row.looped for row in whole} == {True, False}
    assert sorted(each.optim["lr"] for each in found) == sorted(2 * ALL_RATES)
    tokens = ALL_UPDATES * found[0].batch * found[0].data["length"]
    assert 39_785_770 - found[0].batch * found[0].data["length"] < tokens <= 39_785_770, "as much as there is, and nothing twice"
