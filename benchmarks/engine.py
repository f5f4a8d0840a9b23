"""P16: serving requests of many depths, beside batches at the deepest depth. P17: one tick with rows at mixed steps, beside a
lockstep step of as many rows.

P17 runs the same core step on the same number of rows and cached tokens, once over rows of the pool at their own steps and once
over a LoopCache with all rows at one step. On a GPU both are replayed graphs, of fused kernels where the model has them; a tick
also copies its numbers to the device. The lockstep batches of P16 are replayed decode passes there, their prefill not counted (that
of the engine is); what is captured or compiled once is counted nowhere.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch

import loopwright as lw
from benchmarks.decode import models
from benchmarks.pairs import compare, no_options, replayed, report, seconds
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.rows import EngineStats
from loopwright.generation.scheduler import Scheduler
from loopwright.model.decode_graph import DecodeGraph

ROWS, DEEPEST = 8, 8
LOCKSTEP_TOKENS = 12  # a batch costs the same for each token
IN_A_ROW = 8  # ticks that are queued on a GPU before they are waited for


def main() -> None:
    """Prints P17 and P16: for both sizes of a CPU, or for the shape of Ouro-1.4B in bf16 on a GPU."""
    gpu = torch.cuda.is_available()
    for name, model in (gpu_models() if gpu else models()).items():
        for tokens in (256, 1024):
            tick(name, model, tokens)
        for new in (32, 128):
            serve(name, model, new=new, ticks=3000 if gpu else 60)


def gpu_models() -> dict[str, lw.LoopedForCausalLM]:
    """Returns the random model that is timed on a GPU, by name."""
    torch.manual_seed(0)
    with torch.device("cuda"):  # here alone: a default device makes every later call of torch slower
        return {"ouro-1.4b": lw.build("ouro-1.4b").to(torch.bfloat16)}


def standing(model: lw.LoopedForCausalLM, tokens: int) -> Scheduler:
    """Returns a scheduler whose rows hold `tokens` tokens each, of random keys, and stand before a step of the next one."""
    depth = model.config.depth
    scheduler = Scheduler(model, rows=ROWS, tokens=ROWS * (tokens + 4))
    for _ in range(ROWS):
        scheduler.add(Request(RequestOptions((1,) * tokens, depth, 4)))
    scheduler._admit()
    for table in (*scheduler.pool.keys.values(), *scheduler.pool.values.values()):
        table.normal_()
    for run in scheduler.running:
        run.row.filled = {("core", t): tokens for t in range(depth)}
        run.drawn, run.phase = 1, "core"
    return scheduler


def filled_cache(model: lw.LoopedForCausalLM, tokens: int) -> lw.LoopCache:
    """Returns a cache of as many rows that holds `tokens` tokens of random keys at every step."""
    cache = lw.LoopCache(model.config, rows=ROWS, capacity=tokens + 4, fixed=True)
    _, p = model.embed(torch.ones(ROWS, 1, dtype=torch.long, device=model.device), depth=model.config.depth, cache=cache)
    for t in range(model.config.depth):
        cache.begin_step(t)
    cache.advance(p.span)
    cache.row_lengths = [tokens] * ROWS  # as if they had been run
    for table in cache.tables.values():
        table.data.normal_()
    return cache


@torch.no_grad()
def tick(name: str, model: lw.LoopedForCausalLM, tokens: int) -> None:
    """Prints P17 for one model and number of cached tokens."""
    depth = model.config.depth
    scheduler = standing(model, tokens)
    runs = list(scheduler.running)
    cache = filled_cache(model, tokens)
    if torch.cuda.is_available():
        e, p = DecodeGraph(model, cache, depth, None).begin(cache)
    else:
        e, p = model.embed(torch.ones(ROWS, 1, dtype=torch.long, device=model.device), depth=depth, cache=cache)
    scheduler.state.normal_()
    scheduler.input.normal_()
    s = model.start_state(e, p)

    def step(steps: Sequence[int]) -> None:
        for run, t in zip(runs, steps, strict=True):
            run.t = t
        if scheduler.graphs is None:
            scheduler._step(runs)
        else:
            scheduler.graphs.launch([], runs, [])

    mixed, same = partial(step, [i % depth for i in range(ROWS)]), partial(step, [1] * ROWS)

    lockstep = replayed(lambda: model.step(s, e, 1, p))
    gpu = torch.cuda.is_available()
    shape = {"model": name, "rows": ROWS, "cached_tokens": tokens, "depth": depth, "target": "<= 1.10" if gpu else "<= 1.05"}
    for count in (IN_A_ROW, 1) if gpu else (1,):
        for steps, run in (("mixed", mixed), ("equal", same)):
            a, b = (partial(repeated, call, count) for call in (run, lockstep))
            row = {**shape, "in_a_row": count, **compare(a, b, pairs=41, warm_up=5)}
            report(f"P17 tick at {steps} steps / lockstep step", row)


def repeated(call: Callable[[], object], count: int) -> None:
    """Calls it some times without waiting, as an engine does: the host prepares a tick while the device runs the one before."""
    for _ in range(count):
        call()


@torch.no_grad()
def serve(name: str, model: lw.LoopedForCausalLM, *, pairs: int = 3, prompt: int = 4, new: int = 32, ticks: int) -> None:
    """Prints P16: depths 1 to 8, uniformly, with requests always waiting, beside lockstep batches of as many rows at depth 8."""
    rows: list[dict[str, float]] = []
    for pair in range(pairs):
        scheduler = Scheduler(model, rows=ROWS, tokens=ROWS * (prompt + new) * 2)
        queue = Queue(scheduler, random.Random(pair), prompt, new)
        queue.run(until=lambda ran: ran.admitted >= 2 * ROWS)  # until rows stand at all steps
        ran = dataclasses.replace(scheduler.ran)
        asked = queue.steps_asked
        ids = torch.randint(model.config.vocab_size, (ROWS, prompt), device=model.device)
        batch = lockstep_batch(model, ids, new)
        engine_seconds = seconds(lambda: queue.run(until=lambda now: now.ticks >= ran.ticks + ticks))  # noqa: B023  # called at once
        tokens = scheduler.ran.drawn - ran.drawn
        rate = ROWS * LOCKSTEP_TOKENS / seconds(batch)
        steps = scheduler.ran.row_steps - ran.row_steps
        # by the depths that happened to be served while the clock ran
        ideal = DEEPEST * tokens / (queue.steps_asked - asked)
        ratio = tokens / engine_seconds / rate
        rows.append({
            "ratio": ratio, "ideal": ideal, "of_ideal": ratio / ideal, "tokens_per_s": tokens / engine_seconds,
            "lockstep_tokens_per_s": rate, "busy_rows": steps / (ticks * ROWS), "tick_ms": 1e3 * engine_seconds / ticks,
        })  # fmt: skip
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    shape = {"model": name, "rows": ROWS, "prompt": prompt, "new_tokens": new, "pairs": pairs, "ticks": ticks}
    spread = {"ratio_low": min(row["ratio"] for row in rows), "ratio_high": max(row["ratio"] for row in rows)}
    report("P16 throughput at depths 1 to 8 / lockstep at depth 8", {**shape, **middle, **spread})


class Queue:
    """Random requests, of which some always wait. Of every eight in order each has another depth."""

    def __init__(self, scheduler: Scheduler, draw: random.Random, prompt: int, new: int) -> None:
        self.scheduler, self.draw, self.prompt, self.new = scheduler, draw, prompt, new
        self.requests: list[Request] = []
        self.depths: list[int] = []

    def run(self, until: Callable[[EngineStats], bool]) -> None:
        """Runs ticks."""
        known = self.scheduler.model.config.vocab_size
        while not until(self.scheduler.ran):
            while len(self.scheduler._waiting) < ROWS:
                ids = tuple(self.draw.randrange(known) for _ in range(self.prompt))
                self.depths = self.depths or self.draw.sample(range(1, DEEPEST + 1), DEEPEST)
                self.requests.append(Request(RequestOptions(ids, self.depths.pop(), self.new)))
                self.scheduler.add(self.requests[-1])
            self.scheduler.tick()

    @property
    def steps_asked(self) -> int:
        """The steps of all tokens that were drawn; those of prompts are not among them."""
        drawn = {run.request: run.drawn for run in self.scheduler.running}
        return sum(request.options.depth * drawn.get(request, len(request.tokens)) for request in self.requests)


def lockstep_batch(model: lw.LoopedForCausalLM, ids: torch.Tensor, new: int) -> Callable[[], object]:
    """Returns what makes LOCKSTEP_TOKENS tokens at the deepest depth: after the prompts, on a GPU in the middle of `new` ones."""
    if not ids.is_cuda:
        options = {"max_new_tokens": LOCKSTEP_TOKENS, "do_sample": False, "eos_token_id": None}
        return lambda: model.generate(ids, depth=DEEPEST, **options)
    cache = lw.LoopCache(model.config, capacity=ids.shape[1] + new, fixed=True)
    token = model(ids, depth=DEEPEST, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)
    for _ in range((new - LOCKSTEP_TOKENS) // 2):  # the first one captures
        token = model(token, depth=DEEPEST, past_key_values=cache).logits.argmax(-1)

    def batch(token: torch.Tensor = token) -> None:
        for _ in range(LOCKSTEP_TOKENS):
            token = model(token, depth=DEEPEST, past_key_values=cache).logits.argmax(-1)

    return batch


if __name__ == "__main__":
    no_options(__doc__)
    main()
