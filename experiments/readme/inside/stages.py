"""What docs/inside-stages.md says of stages on questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import torch

from experiments.inside.stages.tables import DENSE, ONCE, RETROFIT, START, Row, Rows, average, curves, reach
from experiments.pages import number, percent
from experiments.readme.rows import RESULTS, WORDS, line, when
from loopwright.analysis.summary import grid
from loopwright.metrics.stages import curve_correlation

INJECTED, PLAIN = "sandwich-4-injected", "sandwich-4"
LINES = {
    DENSE: "SmolLM2, 30 layers", RETROFIT: "retrofit (4, 6⊗4, 4), trained", ONCE: "its 14 layers, trained unlooped",
    START: "14 of its layers, before training", INJECTED: "(2, 4⊗4, 2) I", PLAIN: "(2, 4⊗4, 2)",
}  # fmt: skip
HIGHEST = (3, 4)  # layers of the retrofit's core, from 0, where attention mixes least
SETTLED = 16  # steps up to which a bound is compared with what happens, where the state comes to rest


@cache
def found() -> Rows:
    """Returns the study's rows."""
    return Rows(RESULTS / "inside/stages/stages.jsonl")


def row(model: str, look: str = "near", name: str = "gsm8k") -> Row:
    """Returns a row that must be there."""
    one = found().get(model, look, name)
    if one is None:
        raise ValueError(f"inside/stages/stages.jsonl: no row {model}/{look}/{name}")
    return one


def means(model: str, value: str, look: str = "near") -> list[float]:
    """Returns a value's mean over questions at every place."""
    return list(row(model, look)["by_place"][value]["mean"])


def sinks(model: str, look: str = "near") -> str:
    """Returns the share of heads that are sinks, over places, without its sign."""
    return percent(average(row(model, look), "sink_rate")).removesuffix(" %")


def last_step(model: str, value: str) -> list[float]:
    """Returns a value over prelude, the core's last step and coda."""
    return [float(each) for each in curves(row(model), value)[-1]]


def ends(values: Sequence[float], digits: int = 2) -> str:
    """Returns the least and the largest of some numbers."""
    return f"{number(min(values), digits)} to {number(max(values), digits)}"


def alike(model: str, value: str) -> list[float]:
    """Returns how the curve of each step correlates with SmolLM2's."""
    return [float(each) for each in curve_correlation(curves(row(model), value), curves(row(DENSE), value)[0])]


def table_claims() -> Iterator[str]:
    """Yields the table of stages on both sets, and what is said below it."""
    more = 0
    for model, said in LINES.items():
        first, second = row(model), row(model, name="hellaswag")
        both = curve_correlation(curves(second, "colsum"), curves(first, "colsum")).min().item()
        for each, name, words, last in ((first, "GSM8K", said, ""), (second, "HellaSwag", "", number(both, 2))):
            rate = percent(average(each, "sink_rate"))
            cells = [words, name, reach(each, "colsum"), rate, number(average(each, "mixing"), 2), last]
            yield line(*cells).replace("|  |", "| |")
        more += average(second, "sink_rate") > average(first, "sink_rate")
    yield f"sink rates are higher on HellaSwag in {f'all {WORDS[more]}' if more == len(LINES) else more} models"
    alone = last_step(RETROFIT, "sink_rate")
    yield f"with the last step alone, the trained retrofit has {percent(sum(alone) / len(alone))} sinks on GSM8K"
    yield f"the curve correlates with SmolLM2's by {number(alike(START, 'colsum')[0], 2)}"


def retrofit_claims() -> Iterator[str]:
    """Yields what training brings back, and what more steps do to it."""
    core = torch.tensor(grid(row(RETROFIT), "sink_rate"))
    full = int((core.min(0).values >= 0.99).sum())
    yield f"Sinks, {sinks(START)} % of heads before training, are {sinks(RETROFIT)} %"
    yield f"(99 % and more at {WORDS[full]} of the six layers"
    alone = last_step(RETROFIT, "sink_rate")
    largest = [number(max(each), 2) for each in (last_step(RETROFIT, "colsum"), means(ONCE, "colsum"))]
    top = torch.tensor(grid(row(RETROFIT), "colsum")).max(1).values
    yield (
        f"have {sinks(ONCE)} %; the looped ones, counted alike (last step), {percent(sum(alone) / len(alone))}, and a larger "
        f"ColSum (to {largest[0]} against {largest[1]}; to {number(top.max().item(), 2)} at step {int(top.argmax()) + 1})"
    )
    mixing, colsum = (torch.tensor(grid(row(RETROFIT), value))[:, list(HIGHEST)] for value in ("mixing", "colsum"))
    early, late = (ends(mixing[part].flatten().tolist(), 1) for part in (slice(2), slice(3, 4)))
    before, after = (ends(colsum[part].flatten().tolist()) for part in (slice(2), slice(3, 4)))
    yield f"({early} nats, ColSum {before}); step 4 has {late} nats there, ColSum {after}"
    sizes = {model: means(model, "largest")[2] for model in (RETROFIT, START, ONCE)}
    yield (
        f"({sizes[RETROFIT]:,.0f} there, {max(means(RETROFIT, 'largest')):,.0f} at most; {sizes[START]:,.0f} at the third layer "
        f"before training, {sizes[ONCE]:,.0f} unlooped)"
    )
    yield (
        f"sinks fall from {sinks(RETROFIT)} to {sinks(RETROFIT, 'ablated')} % (unlooped: from {sinks(ONCE)} to "
        f"{sinks(ONCE, 'ablated')} %)"
    )
    fading = [f"{100 * each[0]:.0f}" for each in grid(row(RETROFIT, "ablated"), "sink_rate")]
    yield f"{', '.join(fading)} % of the heads of its first layer"
    colsums, rates = ([*alike(RETROFIT, value), *alike(ONCE, value)] for value in ("colsum", "sink_rate"))
    yield f"ColSum correlates by {ends(colsums[:-1])}"
    yield f"unlooped: {number(colsums[-1], 2)}), sink rates by {ends(rates[:-1])} ({number(rates[-1], 2)})"
    deep = row(RETROFIT, "deep")
    values, norms, own = (torch.tensor(grid(deep, "colsum")), torch.tensor(grid(deep, "norm")), deep["answers"]["depth"])
    moved = (values[-1] - values[own - 1]).abs().mean() / (values.max() - values.min())
    grown, kept = (norms[-1].mean() / norms[own - 1].mean()).item(), round(deep["answers"]["kept"] * deep["examples"])
    yield f"ColSum has moved by {percent(moved.item())} of its range from step {own} on"
    yield f"the norm is {number(grown, 2)} times that at step {own}"
    yield f"the next token after the prompt is that of depth {own} for {kept} of {deep['examples']} prompts"


def ablation_claims() -> Iterator[str]:
    """Yields what is left of SmolLM2's stages without the MLP of one layer."""
    largest, without = means(DENSE, "largest"), row(DENSE, "ablated")
    layer = without["layer"]
    yield f"to {largest[2]:,.0f} at the third layer and, after falling to {largest[layer - 1]:,.0f}, to {largest[layer]:,.0f}"
    yield f"the largest entry is {means(DENSE, 'largest', 'ablated')[-1]:,.0f} at the end"
    rates, whole = means(DENSE, "sink_rate", "ablated")[layer + 1 :], means(DENSE, "sink_rate")[layer + 1 :]
    few = [100 * rate for rate in rates[1:4]]
    yield f"still has {100 * rates[0]:.0f} % of its heads, layers 14 to 16 have {min(few):.0f} to {max(few):.0f} %"
    yield f"where the model as it is has {100 * min(whole):.0f} to {100 * max(whole):.0f} %"
    same = curve_correlation(curves(without, "colsum"), curves(row(DENSE), "colsum")).item()
    yield f"correlates with the unchanged one by {number(same, 2)}"
    yield f"takes the sinks from {sinks(START)} to {sinks(START, 'ablated')} % of heads"


def pair_claims() -> Iterator[str]:
    """Yields how near a layer is to itself at other steps, and layers are to one another."""
    near = {
        model: [number(row(model, "pairs")[kind][which], 2) for kind in ("attention", "residual") for which in ("same", "other")]
        for model in (INJECTED, PLAIN, RETROFIT)
    }
    same, other, alike, apart = near[INJECTED]
    yield f"(mean distance {same}) and far from other layers' ({other})"
    yield f"(cosine {alike}, between layers {apart})"
    same, other, alike, apart = near[PLAIN]
    yield f"{same} against {other}, and residuals of a layer are no more alike ({alike}) than those of different layers ({apart})"
    same, other, alike, apart = near[RETROFIT]
    yield f"{same} against {other}, cosines {alike} and {apart}"


def bound_claims() -> Iterator[str]:
    """Yields by how many times the proposition's bound is above what happens, rounded to hundreds, and that it is never broken."""
    for model, until, said in (
        (INJECTED, SETTLED, "up to step 16 with injection"), (PLAIN, None, "without (over all 128 steps)"),
        (RETROFIT, SETTLED, "up to step 16 of the retrofit"),
    ):  # fmt: skip
        one = row(model, "bound")
        kinds = dict(zip(one["kinds"], one["means"], strict=True))
        last = len(kinds["change"]) if until is None else until - 1
        times = [bound / moved for bound, moved in zip(kinds["proposition"][:last], kinds["change"][:last], strict=True)]
        least, most = (f"{round(each, -2):,.0f}" for each in (min(times), max(times)))
        yield f"{least} to {most} times {'what happens ' if model == INJECTED else ''}{said}"
    broken = any(share for model in (INJECTED, PLAIN, RETROFIT) for share in row(model, "bound")["broken"])
    yield when(not broken, "The bound is never broken, the printed one neither")


def claims() -> Iterator[str]:
    """Yields what the rows say on the page."""
    for part in (table_claims, retrofit_claims, ablation_claims, pair_claims, bound_claims):
        yield from part()
