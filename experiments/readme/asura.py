"""What the README says about ASURA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from experiments.asura.plan import SIZES, rows
from experiments.asura.tables import WHOLE
from experiments.pages import by_label, results
from experiments.readme.rows import RESULTS, of
from experiments.seeds import mean_loss, over_seeds, paired_p, reports

STUCK = 6.9  # nats: the loss that the model without its skip never gets below


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    found = results([str(RESULTS / "asura/runs.jsonl")], rows())
    sizes = {size: by_label(run for run in found if run["size"] == size) for size in SIZES}
    small, middle = (apart(labels) for labels in sizes.values())
    mean = {label: [sum(each[label]) / len(each[label]) for each in (small, middle)] for label in small}
    equal = sorted(mean["plain, equal parameters"])
    naive = mean["naive universal"]
    yield f"ahead of the second ({equal[0]:.2f} to {equal[1]:.2f} nats) and of a naive loop ({naive[0]:.2f} and {naive[1]:.2f})"
    flops, seeds = mean["plain, equal FLOPs"], middle["plain, equal FLOPs"]
    low, high = over_seeds(seeds)
    yield (
        f"behind the first by {-flops[0]:.3f} at the small size and ahead of it by {flops[1]:.3f} at the middle one "
        f"({of(sum(value > 0 for value in seeds), len(seeds))} seeds, p = {paired_p(seeds):.2f}, "
        f"{'not decided' if low <= 0 <= high else 'decided'})"
    )
    without = list(sizes.values())[1]["without the projected skip"]
    stuck = sum(min(run["losses"]) > STUCK for run in without)
    yield f"the middle size does not train at the one rate and warm-up tried, on {of(stuck, len(without))} seeds"


def apart(labels: Mapping[str, list[dict[str, object]]]) -> dict[str, list[float]]:
    """Returns how far each plain and each naive row's loss on `test` lies above ASURA's, seed by seed."""
    whole = [mean_loss([each], each.depth[-1]) for each in reports(labels[WHOLE], "test")]
    found = {}
    for label in ("plain, equal FLOPs", "plain, equal parameters", "naive universal"):
        losses = [mean_loss([each], each.depth[-1]) for each in reports(labels[label], "test")]
        found[label] = [a - b for a, b in zip(losses, whole, strict=True)]
    return found
