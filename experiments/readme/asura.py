"""What docs/asura.md says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from experiments.asura.plan import SIZES, rows
from experiments.asura.tables import WHOLE
from experiments.pages import Result, by_label, results
from experiments.readme import repeats
from experiments.readme.rows import RESULTS, WORDS, of
from experiments.seeds import mean_loss, over_seeds, paired_p, reports

STUCK = 6.9  # nats: the loss that the model without its skip never gets below
FLOPS, PARAMETERS, NAIVE = "plain, equal FLOPs", "plain, equal parameters", "naive universal"

Labels = Mapping[str, list[Result]]


@cache
def sizes() -> dict[str, Labels]:
    """Returns the runs by size and label."""
    found = results([str(RESULTS / "asura/runs.jsonl")], rows())
    return {size: by_label(run for run in found if run["size"] == size) for size in SIZES}


def losses(labels: Labels, label: str) -> list[float]:
    """Returns the loss on `test` at the deepest depth, seed by seed."""
    return [mean_loss([each], each.depth[-1]) for each in reports(labels[label], "test")]


def apart(labels: Labels, label: str) -> list[float]:
    """Returns how far a row's loss lies above ASURA's, seed by seed."""
    return [a - b for a, b in zip(losses(labels, label), losses(labels, WHOLE), strict=True)]


def mean(values: list[float]) -> float:
    """Returns their mean."""
    return sum(values) / len(values)


def equal_parameters() -> str:
    """Returns how far the plain transformer of equal parameters is behind: "0.05 to 0.07 nats"."""
    least, most = sorted(mean(apart(labels, PARAMETERS)) for labels in sizes().values())
    return f"{least:.2f} to {most:.2f} nats"


def equal_flops() -> tuple[float, float, str, str]:
    """Returns how far the plain transformer of equal FLOPs is ahead at the small size and behind at the middle one; of the
    latter its p, and whether it is decided."""
    small, middle = (apart(labels, FLOPS) for labels in sizes().values())
    low, high = over_seeds(middle)
    return -mean(small), mean(middle), f"p = {paired_p(middle):.2f}", "not decided" if low <= 0 <= high else "decided"


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    for label in (FLOPS, PARAMETERS, NAIVE):
        cells = [f"{mean(losses(each, label)):.3f} | {mean(apart(each, label)):+.3f}" for each in sizes().values()]
        yield f"| {' | '.join(cells)} |".replace("-", "−")
    yield f"ahead at both sizes, by {equal_parameters()}"
    small, middle = (apart(labels, FLOPS) for labels in sizes().values())
    behind, ahead, p, verdict = equal_flops()
    yield f"behind at the small size ({behind:.3f} nats, {of(sum(value < 0 for value in small), len(small))} seeds)"
    seeds = ", ".join(f"{value:.3f}" for value in middle)
    yield (
        f"At the middle one, at 1e-3, it is ahead by {ahead:.3f}, on {of(sum(value > 0 for value in middle), len(middle))} seeds "
        f"({seeds}; paired t-test {p}), which is {'not resolved' if verdict == 'not decided' else 'resolved'}"
    )
    same = repeats.beside(WHOLE, repeats.LONGER, 1)
    assert same is not None
    cost = repeats.spent().replace(" on ", ", spent on ")
    seeds = f"{WORDS[len(same.seeds)]} seeds"
    yield f"behind four plain layers with {cost} ({same.difference:.2f} nats on the same text, {seeds}"
    yield repeats.spent()
    without = list(sizes().values())[1]["without the projected skip"]
    stuck = sum(min(run["losses"]) > STUCK for run in without)
    yield f"does not train at this rate and warm-up (1e-3, 60 updates), on {of(stuck, len(without))} seeds"
