"""The numbers of a traced prompt set as plain data: means and spreads over examples. Figures and reports read nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from loopwright.analysis.trace.places import Places
from loopwright.analysis.trace.trace import Trace
from loopwright.metrics.attention import SINK
from loopwright.metrics.limits import (
    LIMITS,
    ORBIT,
    SHORTEST,
    LimitCounts,
    check_thresholds,
    classify_limit,
    limit_counts,
    limit_curves,
)
from loopwright.metrics.predictions import answer_flips, settled_step
from loopwright.metrics.states import CONVERGENCE, convergence
from loopwright.schema import check_choice

DIGITS = 6
SHOWN_ANSWERS = 8  # prompts whose answers at every step are kept to be read
# kept by place (step and layer), a mean over heads where there are any
BY_PLACE = (
    "colsum", "mixing", "norm", "largest", "entropy", "step_norm", "step_cosine", "step_attention", "step_bound", "fixed_norm",
    "fixed_cosine", "far_norm", "far_cosine", "fixed_attention", "far_attention", "lens_entropy", "lens_change", "diagonal",
)  # fmt: skip
STAGES = ("colsum", "mixing", "sink_rate", "entropy")  # what the stages of inference are read from
BY_STEP = (
    "state_norm", "state_step_norm", "state_step_cosine", "state_fixed_norm", "state_gate", "answer_entropy", "answer_change",
)  # fmt: skip


SERIES_OF = {"similarity": "token_cosine", "norm": "token_distance"}  # what a trace holds of each kind of series


@dataclass(frozen=True)
class LimitOptions:
    """How tokens are classified (Algorithm 1): the threshold τ, the share p of steps near the end that make a fixed point, the kind
    of series; `skip` tokens at the beginning of every prompt, a system prompt, are not counted."""

    tau: float = 0.05
    p: float = 0.9
    kind: str = "similarity"
    skip: int = 0

    def __post_init__(self) -> None:
        check_choice("limits", "series", self.kind, tuple(SERIES_OF))
        check_thresholds(self.tau, self.p)

    def series(self, one: Trace) -> Tensor:
        """Returns the series [layers, tokens, steps] of a trace of one example; the last step is left out."""
        name = SERIES_OF[self.kind]
        if name not in one.values:
            raise ValueError(
                f"limits: the traces were made without {name}; give another --out, or remove them to have them made again"
            )
        return one.core(name)[0].double()[:-1].permute(1, 2, 0)[:, self.skip :]


PUBLISHED = LimitOptions()


class Moments:
    """The mean and the spread of numbers over examples, one example at a time; numbers that are NaN stay so."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, values: Tensor) -> None:
        """Takes in the numbers of one example."""
        values = values.double()
        self.count += 1
        self.total = self.total + values
        self.squares = self.squares + values.square()

    def plain(self) -> dict[str, list[Any]]:
        """Returns the mean and the standard deviation as lists."""
        mean = self.total / self.count
        spread = (self.squares / self.count - mean.square()).clamp(min=0).sqrt()
        return {"mean": as_list(mean), "std": as_list(spread)}


def summarise(traces: Iterable[Trace], *, answer_depth: int | None = None, limits: LimitOptions = PUBLISHED) -> dict[str, Any]:
    """Returns the numbers of traces of one example each: by place, by step, and what each layer and token settles into.

    `answer_depth` is the depth whose answers are compared with those of the last step: the model's own. `limits` says how tokens
    are classified.
    """
    by_place: dict[str, Moments] = {}
    by_step: dict[str, Moments] = {}
    settle = Settling(limits)
    answers = StepAnswers(answer_depth)
    places: Places | None = None
    examples = tokens = 0
    for one in traces:
        if places is not None and one.places != places:
            raise ValueError(f"summary: traces of {asdict(one.places)} and {asdict(places)}; allowed: one layout")
        places = one.places
        examples, tokens = examples + 1, tokens + one.valid.shape[1]
        numbers = _place_numbers(one)
        for name, each in numbers.items():
            by_place.setdefault(name, Moments()).add(each)
        for name in (name for name in BY_STEP if name in one.values):
            by_step.setdefault(name, Moments()).add(one.values[name][0])
        settle.add(one, numbers)
        answers.add(one)
    if places is None:
        raise ValueError("summary: no trace; allowed: one or more")
    return {
        "places": asdict(places),
        "examples": examples,
        "tokens": tokens,
        # traces from before a number was gathered lie without it: no mean is given that is not over all
        "by_place": {name: moments.plain() for name, moments in by_place.items() if moments.count == examples},
        "by_step": {name: moments.plain() for name, moments in by_step.items() if moments.count == examples},
        **settle.plain(),
        **answers.plain(),
    }


def _place_numbers(one: Trace) -> dict[str, Tensor]:
    numbers = {}
    for name in (name for name in BY_PLACE if name in one.values):
        value = one.values[name][0]
        numbers[name] = value if value.dim() == 1 else value.mean(-1)
    if "sink_first" in one.values:
        numbers["sink_rate"] = (one.values["sink_first"][0] > SINK).double().mean(-1)
        numbers["any_sink_rate"] = (one.values["sink_most"][0] > SINK).double().mean(-1)
    return numbers


class Settling:
    """What tokens and layers settle into, over examples: the labels of `metrics.limits` and of `metrics.fixedpoint`."""

    def __init__(self, options: LimitOptions = PUBLISHED) -> None:
        self.options = options
        self.counts: LimitCounts | None = None
        self.by_layer: list[LimitCounts] = []
        self.rests: Tensor | None = None
        self.orbits: list[Tensor] = []  # of each example the amplitudes and frequencies of its orbits at the last layer, [2, n]
        self.largest, self.orbit = 0.0, dict[str, Any]()
        self.seen = 0

    def add(self, one: Trace, numbers: Mapping[str, Tensor]) -> None:
        """Takes in one example and its numbers by place; too few steps say nothing."""
        self.seen += 1
        if "token_cosine" not in one.values or one.places.steps <= SHORTEST:
            return
        options, series = self.options, self.options.series(one)
        limits = classify_limit(series, options.tau, options.p, kind=options.kind)
        counts = limit_counts(limits.label[:, None])
        self.counts = counts if self.counts is None else self.counts + counts
        each = [limit_counts(label[None, None]) for label in limits.label]
        self.by_layer = [a + b for a, b in zip(self.by_layer, each, strict=True)] if self.by_layer else each
        self.orbits.append(torch.stack([limits.amplitude[-1], limits.frequency[-1]])[:, limits.label[-1] == ORBIT])
        codes = convergence(one.core("fixed_cosine")[0][:-1].T, one.core("far_cosine")[0][:-1].T)
        shares = (codes[:, None] == torch.arange(len(CONVERGENCE))).long()
        self.rests = shares if self.rests is None else self.rests + shares
        orbits = torch.where(limits.label == ORBIT, limits.amplitude, -1.0)
        if orbits.max() > self.largest:
            layer, token = divmod(int(orbits.argmax()), orbits.shape[1])
            self.largest, self.orbit = float(orbits.max()), _orbit(series[layer, token], numbers)
            self.orbit |= {"example": self.seen, "token": token + 1 + options.skip, "layer": layer}

    def plain(self) -> dict[str, Any]:
        """Returns the shares as plain data; nothing where no example was deep enough."""
        if self.counts is None or self.rests is None:
            return {}
        limits: dict[str, Any] = {
            "labels": list(LIMITS),
            "options": asdict(self.options),
            "tokens": as_list(self.counts.token_rates()),
            "examples": as_list(self.counts.example_rates()),
            "moving_examples": self.counts.moving_examples / self.counts.all_examples,
            "together": as_list(self.counts.co_occurrence()),
            "by_layer": {
                "tokens": [as_list(counts.token_rates()) for counts in self.by_layer],
                "examples": [as_list(counts.example_rates()) for counts in self.by_layer],
            },
        }
        amplitudes, frequencies = torch.cat(self.orbits, dim=1)
        if len(amplitudes):
            limits["orbits"] = {
                "tokens": len(amplitudes),
                "median_amplitude": as_list(amplitudes.quantile(0.5)),
                "largest_amplitude": as_list(amplitudes.max()),
                "median_frequency": as_list(frequencies.quantile(0.5)),
            }
        if self.orbit:
            limits["orbit"] = self.orbit
        shares = self.rests.double() / self.rests.sum(1, keepdim=True)
        return {"limits": limits, "convergence": {"labels": list(CONVERGENCE), "layers": as_list(shares)}}


def _orbit(series: Tensor, numbers: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns an orbit as the classifier sees it, and the stages of the prompt that holds it."""
    curves = limit_curves(series)
    parts = {name: as_list(getattr(curves, name)) for name in ("trend", "windowed", "spectrum")}
    stages = {name: {"mean": as_list(each)} for name, each in numbers.items() if name in STAGES}
    return {"series": as_list(series), **parts, "by_place": stages}


class StepAnswers:
    """What the steps answer, over examples: the share that flips at each step, and that already says what the last step says."""

    def __init__(self, depth: int | None) -> None:
        self.depth, self.flips, self.final, self.kept = depth, Moments(), Moments(), 0
        self.settled: list[int] = []
        self.tokens: list[list[int]] = []  # of the first examples, to be read on the page

    def add(self, one: Trace) -> None:
        """Takes in one example."""
        if "answer_token" not in one.values or one.places.steps < 2:
            return
        tokens = one.values["answer_token"][0]
        self.flips.add(torch.cat([torch.tensor([math.nan]), answer_flips(tokens).float()]))
        self.final.add((tokens == tokens[-1]).float())
        self.settled.append(int(settled_step(tokens)) + 1)
        if len(self.tokens) < SHOWN_ANSWERS:
            self.tokens.append([int(token) for token in tokens])
        if self.depth is not None:
            self.kept += int(tokens[min(self.depth, len(tokens)) - 1] == tokens[-1])

    def plain(self) -> dict[str, Any]:
        """Returns the shares as plain data; nothing where there was one step only."""
        if not self.settled:
            return {}
        numbers = {"flips": self.flips.plain()["mean"], "final": self.final.plain()["mean"], "settled": sorted(self.settled)}
        numbers["tokens"] = self.tokens
        kept = {} if self.depth is None else {"depth": self.depth, "kept": self.kept / len(self.settled)}
        return {"answers": {**numbers, **kept}}


def as_list(values: Tensor, *, digits: int = DIGITS) -> Any:
    """Returns a tensor as nested lists of numbers of a few digits; None where a number is not finite."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None

    return plain(values.tolist())


def grid(metrics: Mapping[str, Any], name: str, kind: str = "mean") -> list[list[float | None]]:
    """Returns a number of the core's layers out of a summary: one list per step, of one value per layer."""
    places = Places(**metrics["places"])
    flat = metrics["by_place"][name][kind][places.looped]
    return [flat[t * places.core : (t + 1) * places.core] for t in range(places.steps)]


def one_step(metrics: Mapping[str, Any], name: str, step: int, kind: str = "mean") -> list[float | None]:
    """Returns a number over prelude, core at a step and coda."""
    values = metrics["by_place"][name][kind]
    return [values[i] for i in Places(**metrics["places"]).one_step(step)]
