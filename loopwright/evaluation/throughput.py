"""How fast a model decodes at several depths and batch sizes, beside what the machine's memory allows.

Decoding reads weights and keys far more than it computes. The bound of a token, for all rows at once: the core's weights once per
step, prelude, coda and head once, and every row's keys and values, at the speed at which this machine copies memory. Adapters,
norms and activations are not counted, so the bound is never too strict. A small model may lie in the processor's caches and read
faster than memory allows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from loopwright.evaluation.by_depth import number_table
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.scheduler import Scheduler
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

Told = Callable[[str], object]


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
    tell: Told | None = None,
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
    for request in requests:
        scheduler.add(request)
    _wait(model.device)
    begin = time.perf_counter()
    while scheduler.busy and not all(request.tokens for request in requests):  # one that failed has none
        scheduler.tick()
    first = time.perf_counter()
    tokens = sum(len(request.tokens) for request in requests)
    while scheduler.busy:
        scheduler.tick()
    _wait(model.device)
    end = time.perf_counter()
    for request in requests:
        try:
            request.result(0)  # raises what went wrong
        except ValueError as error:
            raise ValueError(f"bench: depth {depth}, batch {batch}: {str(error).removeprefix('request: ')}") from None
    tables = (*model.parameters(), *scheduler.pool.keys.values(), *scheduler.pool.values.values())
    memory = sum(table.numel() * table.element_size() for table in tables)
    return first - begin, (end - first) / (batch * new - tokens), memory


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
