"""Which ASURA row a row is compared with, and which rows stand for a part, by made-up rows."""

from __future__ import annotations

import pytest

from experiments.asura.figures import above_whole
from experiments.asura.pairing import FIVE, arranged, files_of, whole_of, wholes
from experiments.asura.plan import TWELVE, WHOLE, WITHOUT_SKIP, at_schedule
from experiments.seeds import Pooled, pooled
from tests.experiments.results import result

PART, CALM = "without adapters", (1e-3, 200)


def run(label: str, seed: int, files: int, more: float = 0.0) -> dict:
    return result(label, {1: more}, seed) | {"files": files, "losses": [more + 10 * files]}


def rows() -> dict[str, list[dict]]:
    """ASURA on five files and on twelve, a plain row on five, a part on both with a seed made again, and a calmer schedule."""
    calm, calm_whole = (at_schedule(label, *CALM) for label in (WITHOUT_SKIP, WHOLE))
    return {
        WHOLE: [run(WHOLE, seed, 5) for seed in range(3)],
        "plain": [run("plain", seed, 5, 0.3) for seed in range(3)],
        PART: [run(PART, seed, files, 0.1) for seed, files in enumerate((5, 12, 12))],
        calm: [run(calm, 0, 12, 0.2)],
        f"{WHOLE}{TWELVE}": [run(f"{WHOLE}{TWELVE}", seed, 12, 0.05) for seed in range(3)],
        f"{PART}{TWELVE}": [run(f"{PART}{TWELVE}", 0, 12, 0.1)],
        calm_whole: [run(calm_whole, 0, 12, 0.15)],
    }


def less_whole(runs: list[dict], labels: dict[str, list[dict]], text: str) -> Pooled | None:
    return pooled(runs, wholes(runs, labels), text)


def partners(labels: dict[str, list[dict]], label: str) -> list[str]:
    found = [whole_of(each, labels) for each in labels[label]]
    return [f"{each['label']}/{each['seed']}" if each else "" for each in found]


def test_a_row_whose_batches_no_asura_row_read_is_not_compared() -> None:
    labels = rows()
    del labels[f"{WHOLE}{TWELVE}"], labels[at_schedule(WHOLE, *CALM)]
    assert partners(labels, PART) == [f"{WHOLE}/0", "", ""]
    assert partners(labels, at_schedule(WITHOUT_SKIP, *CALM)) == [""]
    assert less_whole(labels[f"{PART}{TWELVE}"], labels, "test") is None


def test_a_row_is_compared_with_the_asura_row_of_its_seed_and_files_and_schedule() -> None:
    labels = rows()
    assert partners(labels, "plain") == [f"{WHOLE}/{seed}" for seed in range(3)]
    assert partners(labels, PART) == [f"{WHOLE}/0", f"{WHOLE}{TWELVE}/1", f"{WHOLE}{TWELVE}/2"]
    assert partners(labels, f"{PART}{TWELVE}") == [f"{WHOLE}{TWELVE}/0"]
    assert partners(labels, at_schedule(WITHOUT_SKIP, *CALM)) == [f"{at_schedule(WHOLE, *CALM)}/0"]
    for label in (WHOLE, f"{WHOLE}{TWELVE}", at_schedule(WHOLE, *CALM)):
        assert partners(labels, label) == [f"{label}/{each['seed']}" for each in labels[label]]
    found = less_whole(labels[PART], labels, "test")
    assert found is not None and found.of_seeds == pytest.approx((0.1, 0.05, 0.05))
    assert less_whole(labels[at_schedule(WITHOUT_SKIP, *CALM)], labels, "test").difference == pytest.approx(0.05)  # type: ignore[union-attr]


def test_a_row_made_again_takes_the_place_of_the_one_on_five_files() -> None:
    found = arranged(rows())
    assert [files_of(each) for each in found[PART]] == [12] * 3 and [each["seed"] for each in found[PART]] == [0, 1, 2]
    assert [files_of(each) for each in found[f"{PART}, five files"]] == [5] and f"{PART}{TWELVE}" not in found
    assert [files_of(each) for label in (WHOLE, f"{WHOLE}{TWELVE}") for each in found[label]] == [5] * 3 + [12] * 3
    assert all(whole_of(each, found) for runs in found.values() for each in runs)
    assert sum(map(len, found.values())) == sum(map(len, rows().values())), "every row is shown once"


def test_a_row_made_again_stands_by_itself_without_the_other_seeds() -> None:
    labels = rows()
    del labels[PART]
    assert arranged(labels)[f"{PART}{TWELVE}"] == labels[f"{PART}{TWELVE}"] and PART not in arranged(labels)


def test_training_curves_are_read_against_the_same_asura_rows() -> None:
    found = above_whole(rows(), PART, "losses")
    assert found is not None and max(found.y) < 1, "batches of other files lie 70 apart here"
    assert above_whole(rows(), f"{WHOLE}{TWELVE}", "losses") is None


def test_a_row_says_how_many_files_it_read_and_older_ones_by_their_commit() -> None:
    assert [files_of({"files": count}) for count in (5, 12, 3)] == [5, 12, 3]
    assert [files_of({"origin": {"commit": f"{commit}00"}}) for commit in (*FIVE, "e1f7b59")] == [5, 5, 12]
