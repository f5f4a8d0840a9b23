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
from benchmarks.decode import SMALL
from benchmarks.pairs import no_options, report, seconds
from loopwright.generation.exit_rules import build_exit, parse_exit
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.rows import EngineStats
from loopwright.generation.scheduler import Scheduler
from loopwright.generation.speculation import AUTO, draft_depths, speed_up

Prompts = Sequence[Sequence[int]]


class Decoding:
    """Decodes after prompts, `rows` at a time, by one scheduler: what it compiles or captures, it does once."""

    def __init__(
        self, model: lw.LoopedForCausalLM, prompts: Prompts, depth: int, new: int, *, rows: int = 1, **options: Any
    ) -> None:
        longest = max(map(len, prompts)) + new
        readings = depth if options.get("exit") is not None else 1 + len(draft_depths(depth))
        self.scheduler = Scheduler(model, rows=rows, tokens=rows * longest, depth=depth, readings=readings)
        self.options = [RequestOptions(tuple(prompt), depth, new, **options) for prompt in prompts]

    @torch.no_grad()
    def __call__(self) -> Served:
        """Returns what decoding gave and cost."""
        scheduler, requests = self.scheduler, [Request(options) for options in self.options]
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


@torch.no_grad()
def agreeing(**changes: Any) -> lw.LoopedForCausalLM:
    """Returns a random model of Ouro-1.4B's shape whose every depth says the same: all drafts hold, and states come to rest.

    Its passes cost what those of any weights cost, so it shows what the engine makes of the best a model could do.
    """
    model = lw.build("ouro-1.4b", **changes).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.zero_()
    return model


def main() -> None:
    """Prints P18 and P19 of a model that agrees with itself: of full size in bfloat16 on a GPU, else small on one core."""
    draw = torch.Generator().manual_seed(0)
    if torch.cuda.is_available():
        with torch.device("cuda"):
            name, new, model = "ouro-1.4b, every depth alike", 64, agreeing().to(torch.bfloat16)  # type: ignore[call-arg]
    else:
        torch.set_num_threads(1)
        name, new, model = "ouro-small, every depth alike", 16, agreeing(**SMALL)
    prompts = torch.randint(model.config.vocab_size, (16, 16), generator=draw).tolist()
    rows = speculation(name, model, prompts[:1], depth=8, new=new, pairs=5)
    rows += early_exit(name, model, prompts[:1], ["change:0.5", "entropy:100"], depth=8, new=new // 2, pairs=5, many=prompts)
    for row in rows:
        report(row.pop("benchmark"), row)


if __name__ == "__main__":
    no_options(__doc__)
    main()
