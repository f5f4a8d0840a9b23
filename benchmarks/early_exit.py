"""P18: drafts at a low depth against plain decoding at full depth. P19: early exit against full depth, at equal held-out loss.

Both decode greedily after prompts of held-out text, by the same engine, alternating. P18 sets the ratio beside the formula at the
measured acceptance; c, the cost of prelude, coda and head in core passes, comes from plain decoding at two depths. P19 times the
rules that `evaluate --exit` found within 0.01 nats of full depth.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import loopwright as lw
from benchmarks.pairs import seconds
from loopwright.engine.request import Request, RequestOptions
from loopwright.engine.running import EngineStats
from loopwright.engine.scheduler import Scheduler
from loopwright.engine.speculation import AUTO, draft_depths, speed_up
from loopwright.generate.exit_rules import build_exit, parse_exit

Prompts = Sequence[Sequence[int]]


class Decoding:
    """Decodes after prompts, `rows` at a time, by one scheduler: what it compiles or captures, it does once."""

    def __init__(
        self, model: lw.LoopedForCausalLM, prompts: Prompts, depth: int, new: int, *, rows: int = 1, **options: Any
    ) -> None:
        longest = max(map(len, prompts)) + new
        readings = depth if options.get("exit") is not None else 1 + len(draft_depths(depth))
        self.scheduler = Scheduler(model, rows=rows, tokens=rows * longest, depth=depth, readings=readings)
        self.wishes = [RequestOptions(tuple(prompt), depth, new, **options) for prompt in prompts]

    @torch.no_grad()
    def __call__(self) -> Served:
        """Returns what decoding gave and cost."""
        scheduler, requests = self.scheduler, [Request(wish) for wish in self.wishes]
        scheduler.prefixes.forget()  # else a prompt would be run once only
        scheduler.choices.clear()
        scheduler.ran = EngineStats()
        for request in requests:
            scheduler.add(request)

        def serve() -> None:
            while scheduler.busy:
                scheduler.tick()

        return Served(seconds(serve), [request.result(0) for request in requests], scheduler.ran)


class Served:
    """Answers, the seconds they took, and what was run."""

    def __init__(self, time: float, results: list[Any], ran: EngineStats) -> None:
        self.seconds, self.results, self.ran = time, results, ran

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens of each answer."""
        return [result.tokens for result in self.results]

    @property
    def mean_depth(self) -> float:
        """The mean steps of a token."""
        depths = [depth for result in self.results for depth in result.depths]
        return sum(depths) / len(depths)


def compared(
    model: lw.LoopedForCausalLM, prompts: Prompts, depth: int, new: int, pairs: int, rows: int, options: Mapping[str, Any]
) -> tuple[dict[str, float], Served, Served]:
    """Returns plain seconds over those with options, median and quartiles over alternating pairs, and the last answers of both."""
    ratios = []
    decode = Decoding(model, prompts, depth, new, rows=rows)
    decode_so = Decoding(model, prompts, depth, new, rows=rows, **options)
    for pair in range(pairs + 1):
        plain, other = decode(), decode_so()
        if pair:  # the first warms up
            ratios.append(plain.seconds / other.seconds)
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    made = sum(map(len, other.tokens))
    row = {
        "ratio": middle, "ratio_q1": low, "ratio_q3": high, "pairs": pairs, "plain_tokens_per_s": made / plain.seconds,
        "tokens_per_s": made / other.seconds,
    }  # fmt: skip
    return row, plain, other


def edge_cost(model: lw.LoopedForCausalLM, prompts: Prompts, depth: int, new: int, repeats: int = 3) -> float:
    """Returns what prelude, coda, head and all around them cost, in core passes: t(d) = core · (d + c) at two depths."""
    found, decodes = [], [Decoding(model, prompts, d, new) for d in (1, depth)]
    for repeat in range(repeats + 1):
        one, deep = (decode().seconds for decode in decodes)
        if repeat:  # the first warms up
            core = (deep - one) / (depth - 1)
            found.append(one / core - 1)
    return statistics.median(found)


def speculation(
    name: str, model: lw.LoopedForCausalLM, prompts: Prompts, *, depth: int, new: int, pairs: int = 7, tokens: int = 4
) -> list[dict[str, Any]]:
    """Returns rows of P18: drafts at each depth, and at the depths that are chosen while running."""
    cost, rows = edge_cost(model, prompts, depth, new), []
    for shallow in (*draft_depths(depth), AUTO):
        options = {"draft_depth": shallow, "draft_tokens": 8 if shallow == AUTO else tokens}
        ratio, plain, drafts = compared(model, prompts, depth, new, pairs, 1, options)
        ran = drafts.ran
        acceptance = ran.accepted / ran.tried if ran.tried else 0.0
        row = {
            "benchmark": "P18 drafts / plain decoding", "model": name, "depth": depth, "draft_depth": shallow, "new_tokens": new,
            "prompts": len(prompts), "acceptance": acceptance, "cost": cost, "equal_tokens": plain.tokens == drafts.tokens, **ratio,
            "rounds": {f"{r}x{k}": count for (r, k), count in sorted(ran.rounds.items())},
        }  # fmt: skip
        if shallow != AUTO:
            formula = speed_up(acceptance, int(shallow), tokens, depth, cost)
            row |= {"draft_tokens": tokens, "formula": formula, "of_formula": ratio["ratio"] / formula}
        rows.append(row)
    return rows


def early_exit(
    name: str,
    model: lw.LoopedForCausalLM,
    prompts: Prompts,
    rules: Sequence[str],
    *,
    depth: int,
    new: int,
    pairs: int = 7,
    many: Prompts,
) -> list[dict[str, Any]]:
    """Returns rows of P19: each rule beside full depth, for `prompts` one by one and `many` at once.

    The bound is depth over the mean exit depth."""
    rows = []
    for rule in rules:
        for batch, asked in ((1, prompts), (len(many), many)):
            options = {"exit": build_exit(parse_exit(rule), model)}
            ratio, _, exits = compared(model, asked, depth, new, pairs, batch, options)
            bound = depth / exits.mean_depth
            rows.append({
                "benchmark": "P19 early exit / full depth", "model": name, "rule": rule, "batch": batch, "depth": depth,
                "new_tokens": new, "mean_steps": exits.mean_depth, "bound": bound, "of_bound": ratio["ratio"] / bound, **ratio,
            })  # fmt: skip
    return rows
