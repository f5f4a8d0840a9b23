"""How fast a model decodes, by the engine, greedily: at several depths and batch sizes, and under exit rules beside full depth.

Decoding reads weights and keys far more than it computes. The bound of a token, for all rows at once: the core's weights once per
step, prelude, coda and head once, and every row's keys and values, at the speed at which this machine copies memory. Adapters,
norms and activations are not counted, so the bound is never too strict. A small model may lie in the processor's caches and read
faster than memory allows.

Exit rules run after the beginnings of measured rows, one row at a time and many at once, with exact keys (`backfill`) and without
end tokens, so that every run makes as many tokens. Full depth is timed again before every few rules, and a rule's time is divided
by the last one: what else the machine does meanwhile falls on both. Prompts are read in the timed part too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from loopwright.data.batch import Batch
from loopwright.evaluation.report import Progress, number_table
from loopwright.generation.exit_rules import build_exit, write_exit
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.scheduler import Scheduler
from loopwright.metrics.score import IGNORED
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.cost import cache_bytes, parameters
from loopwright.plot import Shown
from loopwright.plot.drawing import Curve, Drawing, Plotted
from loopwright.plot.figures import throughput_by_batch

if TYPE_CHECKING:
    from rich.table import Table

COPIED = {"cpu": 2**27, "cuda": 2**30}  # bytes of a copy: more than any processor's caches hold
REPEATS = 3
FEWEST = 4  # new tokens: at depth 1 the first tick makes two, and the rest are timed

BATCHES = (1, 16)  # of exit rules
ROUNDS = 5  # of all rules, after one that warms up
BETWEEN = 4  # rules that one run of full depth stands for
PROMPT, NEW = 16, 24  # tokens, at most

Prompts = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Throughput:
    """One depth and batch size. `first_token_s` is the wait for the last row's first token, `memory` the bytes of weights and keys
    (on a GPU the most that was allocated), `bound` the tokens per second that the memory bandwidth allows."""

    depth: int
    batch: int
    tokens_per_s: float
    first_token_s: float
    memory: int
    bound: float

    @property
    def share(self) -> float:
        """What part of the bound was reached."""
        return self.tokens_per_s / self.bound


@dataclass(frozen=True)
class BenchReport(Plotted, Shown):
    """Throughput by depth and batch size, and the shape it was measured at; `bandwidth` is in bytes per second."""

    source: str
    device: str
    dtype: str
    threads: int
    prompt_tokens: int
    new_tokens: int
    bandwidth: float
    rows: tuple[Throughput, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data."""
        return {**asdict(self), "rows": [{**asdict(row), "share": row.share} for row in self.rows]}

    def drawing(self) -> Drawing:
        """Returns tokens per second over the batch size, a line per depth, and the bound of each."""
        speeds, bounds = dict[str, Curve](), dict[str, Curve]()
        for depth in dict.fromkeys(row.depth for row in self.rows):
            rows = [row for row in self.rows if row.depth == depth]
            x = [row.batch for row in rows]
            speeds[f"depth {depth}"], bounds[f"depth {depth}"] = (
                Curve(x, [row.tokens_per_s for row in rows]),
                Curve(x, [row.bound for row in rows]),
            )
        return throughput_by_batch(speeds, bounds)

    def table(self, width: int | None = None) -> Table:
        """Returns the numbers as a rich table for a window of this width."""
        heads = ["depth", "batch", "tokens/s", "first token", "memory", "bound, tokens/s", "share"]
        rows = [
            [
                str(r.depth), str(r.batch), f"{r.tokens_per_s:,.1f}", f"{1e3 * r.first_token_s:,.0f} ms",
                f"{r.memory / 2**20:,.1f} MiB", f"{r.bound:,.0f}", f"{r.share:.3f}",
            ]
            for r in self.rows
        ]  # fmt: skip
        table = number_table(heads, rows, width)
        table.title = (
            f"{self.source}: {self.prompt_tokens} prompt tokens, {self.new_tokens} new ones, {self.dtype} on {self.device}"
        )
        speed = f"{self.bandwidth / 1e9:.1f} GB/s"
        table.caption = f"bound: weights and keys are read at {speed}, the speed of a copy here (read and write)"
        return table


def copy_bandwidth(device: torch.device, repeats: int = 7) -> float:
    """Returns bytes per second of a copy in a device's memory, read and write counted: the best of some copies."""
    source = torch.zeros(COPIED.get(device.type, COPIED["cpu"]), dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)  # written once, so that no page is made while the clock runs
    times = []
    for _ in range(repeats):
        _wait(device)
        begin = time.perf_counter()
        target.copy_(source)
        _wait(device)
        times.append(time.perf_counter() - begin)
    return 2 * source.numel() / min(times)


def decode_bytes(model: LoopedForCausalLM, depth: int, batch: int, cached: int) -> int:
    """Returns the bytes that decoding one token of each row must read: weights, and the keys of `cached` tokens a row."""
    config, size = model.config, model.dtype.itemsize
    counts = parameters(config)
    head = config.vocab_size * config.hidden_size
    weights = counts["prelude"].unique + counts["coda"].unique + depth * counts["core"].unique + head
    steps = depth if config.is_looped else None
    return weights * size + cache_bytes(config, depth=steps, batch=batch, context=cached, dtype=model.dtype)["keys and values"]


def throughput(
    model: LoopedForCausalLM,
    depths: Iterable[int],
    batches: Iterable[int],
    *,
    prompt_tokens: int,
    new_tokens: int,
    source: str = "",
    tell: Callable[[str], object] | None = None,
) -> BenchReport:
    """Returns how fast a model decodes at every depth and batch size, by the engine, greedily, from random prompts of one length.

    Args:
        tell: called with a line about what is measured next.
    """
    sizes = {"prompt_tokens": (prompt_tokens, 1), "new_tokens": (new_tokens, FEWEST)}
    for name, (value, least) in sizes.items():
        if value < least:
            raise ValueError(f"{name} must be a whole number >= {least} (got {value})")
    room = model.config.max_position_embeddings
    if model.config.positions != "none" and prompt_tokens + new_tokens > room:
        raise ValueError(f"bench: {prompt_tokens} + {new_tokens} tokens are more than the model's {room} positions; take fewer")
    asked = [
        (depth if not model.config.is_looped else model.config.check_depth(depth), batch) for depth in depths for batch in batches
    ]
    for _, batch in asked:
        if batch < 1:
            raise ValueError(f"batch must be a whole number >= 1 (got {batch})")
    tell = tell or (lambda line: None)
    tell("copy bandwidth")
    device = model.device
    bandwidth = copy_bandwidth(device)
    rows = []
    for depth, batch in asked:
        tell(f"depth {depth}, batch {batch}")
        rows.append(_measured(model, depth, batch, prompt_tokens, new_tokens, bandwidth))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    dtype = str(model.dtype).removeprefix("torch.")
    return BenchReport(source, name, dtype, torch.get_num_threads(), prompt_tokens, new_tokens, bandwidth, tuple(rows))


@torch.no_grad()
def _measured(model: LoopedForCausalLM, depth: int, batch: int, prompt: int, new: int, bandwidth: float) -> Throughput:
    device = model.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    _served(model, depth, batch, prompt, FEWEST)  # warm-up
    runs = [_served(model, depth, batch, prompt, new) for _ in range(REPEATS)]
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else runs[0][2]
    per_second = 1 / statistics.median(run[1] for run in runs)
    bound = batch * bandwidth / decode_bytes(model, depth, batch, prompt + new // 2)
    return Throughput(depth, batch, per_second, statistics.median(run[0] for run in runs), memory, bound)


def _served(model: LoopedForCausalLM, depth: int, batch: int, prompt: int, new: int) -> tuple[float, float, int]:
    """Returns seconds to the first token of all rows, seconds per token after it, and the bytes of weights and keys."""
    scheduler = Scheduler(model, rows=batch, tokens=batch * (prompt + new), depth=depth, chunk=max(256, batch * prompt))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (batch, prompt), generator=generator).tolist()
    requests = [Request(RequestOptions(tuple(row), depth, new)) for row in ids]
    to_first, rest, tokens = _run(model, scheduler, requests)
    for request in requests:
        try:
            request.result(0)  # raises what went wrong
        except ValueError as error:
            raise ValueError(f"bench: depth {depth}, batch {batch}: {str(error).removeprefix('request: ')}") from None
    tables = (*model.parameters(), *scheduler.pool.keys.values(), *scheduler.pool.values.values())
    memory = sum(table.numel() * table.element_size() for table in tables)
    return to_first, rest / (batch * new - tokens), memory


# exit rules


@dataclass(frozen=True)
class ExitTime:
    """The time of one rule over that of full depth, median and quartiles of some rounds, and the mean steps of what was decoded."""

    rule: str
    batch: int
    mean_steps: float
    ratio: float
    low: float
    high: float


def prompts_of(batch: Batch, *, answers: bool) -> tuple[Prompts, int]:
    """Returns how the rows of a batch begin, and how many tokens follow: the questions and the shortest answer, or running text."""
    asked = batch.labels != IGNORED
    real = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask
    rows = [ids[mask.bool()].tolist() for ids, mask in zip(batch.input_ids, real, strict=True)]
    if answers:
        first = asked.int().argmax(1).tolist()
        return [tuple(row[:place]) for row, place in zip(batch.input_ids.tolist(), first, strict=True)], int(asked.sum(1).min())
    shortest = min(map(len, rows))
    prompt = max(1, min(PROMPT, shortest // 2))
    return [tuple(row[:prompt]) for row in rows], max(1, min(NEW, shortest - prompt))


@torch.no_grad()
def exit_times(
    model: LoopedForCausalLM,
    prompts: Prompts,
    new_tokens: int,
    specs: Sequence[Mapping[str, Any]],
    depth: int,
    *,
    batches: Sequence[int] = BATCHES,
    rounds: int = ROUNDS,
    tell: Progress | None = None,
) -> tuple[ExitTime, ...]:
    """Returns the times of every fixed depth below `depth` and of every rule, for each batch size that there are prompts for."""
    times: list[ExitTime] = []
    runs: dict[str, dict[str, Any]] = {f"depth:{d}": {"depth": d} for d in range(1, depth)}
    runs |= {write_exit(spec): {"depth": depth, "exit": build_exit(spec, model)} for spec in specs}
    sizes = sorted({min(size, len(prompts)) for size in batches})
    total, done = len(sizes) * (rounds + 1) * len(runs), 0
    for size in sizes:
        chosen = prompts[: sizes[-1]]  # the same for every size: a few texts may be odd ones
        ratios: dict[str, list[float]] = {name: [] for name in runs}
        steps: dict[str, float] = {}
        for turn in range(rounds + 1):
            for place, (name, options) in enumerate(runs.items()):
                if place % BETWEEN == 0:
                    full, _ = _decode(model, chosen, size, new_tokens, {"depth": depth}, depth)
                taken, steps[name] = _decode(model, chosen, size, new_tokens, options, depth)
                if turn:  # the first warms up
                    ratios[name].append(taken / full)
                done += 1
                if tell is not None:
                    tell(done, total)
        for name, each in ratios.items():
            low, middle, high = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
            times.append(ExitTime(name, size, steps[name], middle, low, high))
    return tuple(times)


def _decode(
    model: LoopedForCausalLM, prompts: Prompts, rows: int, new: int, options: Mapping[str, Any], deepest: int
) -> tuple[float, float]:
    """Returns the seconds of all answers, and the mean steps of their tokens."""
    readings = deepest if options.get("exit") is not None else 1
    longest = max(map(len, prompts)) + new
    scheduler = Scheduler(model, rows=rows, tokens=rows * longest, depth=options["depth"], readings=readings)
    requests = [Request(RequestOptions(prompt, max_new_tokens=new, **options)) for prompt in prompts]
    read = time.process_time if clock_of(model) == "processor" else time.perf_counter
    to_first, rest, _ = _run(model, scheduler, requests, read)
    depths = [depth for request in requests for depth in request.result(0).depths]
    return to_first + rest, sum(depths) / len(depths)


# the clock


def clock_of(model: LoopedForCausalLM) -> str:
    """Returns which clock measures: the processor's with one thread, which is the wall time of an idle machine; else the wall's."""
    return "processor" if model.device.type == "cpu" and torch.get_num_threads() == 1 else "wall"


def _run(
    model: LoopedForCausalLM, scheduler: Scheduler, requests: Sequence[Request], read: Callable[[], float] = time.perf_counter
) -> tuple[float, float, int]:
    """Returns the seconds until every request has a token, those of the rest, and how many tokens there were at the first time."""
    for request in requests:
        scheduler.add(request)
    _wait(model.device)
    begin = read()
    while scheduler.busy and not all(request.tokens for request in requests):  # one that failed has none
        scheduler.tick()
    first = read()
    tokens = sum(len(request.tokens) for request in requests)
    while scheduler.busy:
        scheduler.tick()
    _wait(model.device)
    return first - begin, read() - first, tokens


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
