"""`loopwright inspect RECIPE --train`: what training costs on several GPUs, on paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from loopwright.checkpoints.save import describe
from loopwright.commands.console import console, table
from loopwright.commands.inspect import readable
from loopwright.recipes import recipe
from loopwright.training.scaling import COLLECTIVE_SHARE, GB, REACHED, Cluster, Way, Workload, ways


def inspect_train(
    word: str,
    overrides: Iterable[str] = (),
    *,
    where: Mapping[str, Any] | None = None,
    depth: int | None = None,
    context: int | None = None,
) -> dict[str, Any]:
    """Prints bytes on each GPU and seconds an update of a recipe, by each way to spread it over the cluster that `where` gives (the
    arguments of `Cluster`). Returns the numbers."""
    cluster = Cluster(**(where or {}))
    work = Workload(recipe(word, overrides), cluster, depth=depth, length=context)
    rows, out = ways(work), console()
    median = work.rule.median if work.config.is_looped else 1
    out.print(Text.assemble((word, "bold"), f": {describe(work.config, median)}"), soft_wrap=True)
    for line in assumptions(work):
        out.print(line, markup=False, soft_wrap=True)
    sizes = table("bytes on each GPU", "way", "weights", "gradients", "optimiser", "activations", "in all", "fits")
    for row in rows:
        parts = (row.weights, row.gradients, row.optimiser, row.activations, row.total)
        sizes.add_row(row.name, *(readable(int(size)) for size in parts), "yes" if row.fits else "no")
    out.print(sizes)
    times = table("seconds an update", "way", "compute", "communication", "not hidden", "in all", "tokens/s", "share computing")
    for row in rows:
        times.add_row(row.name, *_times(row))
    out.print(times)
    return {"recipe": word, "gpus": cluster.gpus, "gpu": cluster.gpu, "rows": [_plain(row) for row in rows]}


def assumptions(work: Workload) -> list[str]:
    """Returns what the numbers rest on, in sentences."""
    machine, depth = work.cluster, work.rule.span
    links = f"{machine.link / GB:g} GB/s to the GPUs of its node (--link)"
    if machine.nodes > 1:
        links += f", {machine.network / GB:g} GB/s from each of {machine.nodes} nodes to the others (--network)"
    drawn = f"depth {depth[1]}"
    if depth[0] < depth[2]:
        drawn = f"depths {depth[0]} to {depth[2]} (memory at the deepest, time on average)"
    share = f"{REACHED[work.compiled]:g} of its peak, as measured on an H200 at width 1,024"
    share += "" if work.compiled else ", not compiled"
    runs = work.remat.where_all_are_kept if work.objective.reads == "every" else None
    stand_in = "" if runs is None else f" (as {runs}: the objective reads the state after every step)"
    lines = [
        f"Each of {machine.gpus} {machine.gpu}: {work.rows} × {work.length:,} tokens a batch, {work.recipe.accumulate} an update, "
        f"{drawn}, {work.recipe.precision}, remat {work.recipe.remat_spec['kind']}{stand_in}.",
        f"Assumed: {links}, of which collectives reach {COLLECTIVE_SHARE:g}; {share}; narrower models and few rows reach less.",
        "FLOPs and bytes of penalties and teachers are not counted.",
    ]
    if work.peak is None:
        lines.append(f"No time: the peak of {machine.gpu} in {work.recipe.precision} is not known; precision=bf16 or tf32 has one.")
    return lines


def _times(row: Way) -> list[str]:
    if row.compute is None or row.seconds is None:
        return ["–", _seconds(row.communication), "–", "–", "–", "–"]
    numbers = (row.compute, row.communication, row.exposed, row.seconds)
    return [*map(_seconds, numbers), f"{row.tokens_per_second:,.0f}", f"{row.compute / row.seconds:.0%}"]


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _plain(row: Way) -> dict[str, Any]:
    return {**vars(row), "total": row.total, "seconds": row.seconds, "tokens_per_second": row.tokens_per_second}
