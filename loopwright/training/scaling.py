"""What training a recipe on several GPUs costs, on paper: bytes on each GPU and seconds an update, by DDP and by FSDP2.

Compute is the FLOPs that are run over the share of the peak that was measured, and the optimiser's traffic. A ring moves
2·b·(N − 1)/N bytes through each GPU's link for an all-reduce of b bytes, half of that for an all-gather or a reduce-scatter.

What is particular to a loop: the gradient of the core is whole only after the backward pass of its first step, so DDP hides the
core's all-reduce behind that one step. FSDP2 as it is run here (`distributed.FSDP`) gathers all parameters once a pass, keeps them
through all steps and reduces once; given back after each step they would travel at every step, forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch

from loopwright.data.batch import Batch
from loopwright.data.build import DATA
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.cost import training_bytes
from loopwright.schema import build_kind, check_number, check_whole, options_of, suggest
from loopwright.training.depth import HALF, RULES, DepthRule
from loopwright.training.gradient import REMATS
from loopwright.training.model import MODELS
from loopwright.training.objectives.losses import OBJECTIVES
from loopwright.training.objectives.readout import KEPT
from loopwright.training.optim import OPTIMISERS
from loopwright.training.recipe import Recipe
from loopwright.training.report import PEAKS, Speedometer, peak_of
from loopwright.training.rollout import Objective, Plan

GB, GIB = 10**9, 2**30
# measured on an H200 with text (experiments/results/training/train-text-h200.jsonl), by whether the model is compiled:
# FLOPs run / peak, and bytes kept for the backward pass / those of `cost.training_bytes` in the same dtype
REACHED = {True: 0.505, False: 0.32}
HELD = {("bf16", True): 0.8, ("bf16", False): 1.1, ("tf32", True): 0.8, ("fp32", True): 0.8}
OPTIMISER_TRAFFIC = 40  # bytes a trained parameter: norm and clipping 12, AdamW reads 16 and writes 12
COLLECTIVE_SHARE = 0.8  # of a link's rate, which collectives reach with large messages
ROOM = 0.92  # of a card's memory: the rest is the driver's, the libraries' and lost between blocks
GRID = 16  # quantiles of a depth rule, each way, over which time is averaged


@dataclass(frozen=True)
class Card:
    """A GPU: bytes of memory as its driver reports them, bytes a second to it, and to other GPUs of its node (each direction)."""

    memory: float
    bandwidth: float
    link: float


CARDS = {
    "B200": Card(178 * GIB, 8.0e12, 900 * GB), "GH200": Card(95 * GIB, 4.0e12, 450 * GB), "H200": Card(140 * GIB, 4.8e12, 450 * GB),
    "H100 PCIe": Card(79 * GIB, 2.0e12, 64 * GB), "H100": Card(79 * GIB, 3.35e12, 450 * GB),
    "A100": Card(79 * GIB, 2.0e12, 300 * GB), "L40S": Card(44 * GIB, 0.86e12, 32 * GB), "RTX 4090": Card(24 * GIB, 1.0e12, 32 * GB),
    "RTX 3090": Card(24 * GIB, 0.94e12, 32 * GB), "A10G": Card(22 * GIB, 0.6e12, 32 * GB), "L4": Card(22 * GIB, 0.3e12, 32 * GB),
}  # fmt: skip
assert CARDS.keys() == PEAKS.keys()


class Cluster:
    """`gpus` of one kind, `per_node` to a node. `link`: GB/s of a GPU to the others of its node; `network`: of a node to others."""

    def __init__(
        self, gpus: int = 8, gpu: str = "H200", per_node: int = 8, link: float | None = None, network: float = 400.0
    ) -> None:
        self.gpus, self.per_node = check_whole("gpus", gpus, 1, 2**20), check_whole("per-node", per_node, 1)
        if gpu not in CARDS:
            raise ValueError(f"gpu: {gpu!r} is not known; {suggest(gpu, CARDS)}")
        self.gpu, self.card = gpu, CARDS[gpu]
        self.link = self.card.link if link is None else check_number("link", link, above=0) * GB
        self.network = check_number("network", network, above=0) * GB

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return -(-self.gpus // self.per_node)

    @property
    def bus(self) -> float:
        """Bytes a second through each GPU in a ring over all of them: the slower of its link and its node's network."""
        return COLLECTIVE_SHARE * (self.link if self.nodes == 1 else min(self.link, self.network))

    def gather(self, size: float) -> float:
        """Returns the seconds of an all-gather to `size` bytes, or of a reduce-scatter of as many."""
        return size * (self.gpus - 1) / self.gpus / self.bus

    def all_reduce(self, size: float) -> float:
        """Returns the seconds of an all-reduce of `size` bytes."""
        return 2 * self.gather(size)


@dataclass(frozen=True)
class Way:
    """One way to spread a run: bytes on each GPU by what they hold, and seconds an update; `exposed` is communication that no
    computation hides. Seconds are None where a card's peak in the precision is not known."""

    name: str
    weights: float
    gradients: float
    optimiser: float
    activations: float
    fits: bool
    compute: float | None
    communication: float
    exposed: float
    tokens: int

    @property
    def total(self) -> float:
        """Bytes in all."""
        return self.weights + self.gradients + self.optimiser + self.activations

    @property
    def seconds(self) -> float | None:
        """Seconds an update."""
        return None if self.compute is None else self.compute + self.exposed

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens a second over all GPUs."""
        return None if self.seconds is None else self.tokens / self.seconds


class Workload:
    """What a recipe asks of each of some GPUs. `depth` stands in the place of those that its rule draws, `length` of its data's."""

    def __init__(self, recipe: Recipe, cluster: Cluster, *, depth: int | None = None, length: int | None = None) -> None:
        self.recipe, self.cluster = recipe, cluster
        size = recipe.batch // recipe.accumulate
        if size % cluster.gpus:
            raise ValueError(
                f"gpus must divide batch / accumulate = {size} (got {cluster.gpus}); change batch=… or accumulate=… with it"
            )
        self.rows, self.length = size // cluster.gpus, _length(recipe, length)
        self.model: LoopedForCausalLM = build_kind(recipe.model, MODELS).outline()
        self.config = self.model.config
        optim = build_kind(recipe.optim, OPTIMISERS)
        optim.prepare(self.model)
        self.optimiser_bytes = float(sum(4 * form.numel() for form in optim(self.model).state_forms().values()))
        self.objective: Objective = build_kind(recipe.objective, OBJECTIVES)
        if self.objective.sampled:
            raise ValueError(f"objective {recipe.objective['kind']!r} samples completions, whose time nothing here models")
        self.remat = build_kind(recipe.remat_spec, REMATS)
        # auto compiles where all batches have one shape; the data are not read for that, so their kind must say it
        alike = getattr(DATA[recipe.data["kind"]], "alike", False)
        self.compiled = recipe.compile if isinstance(recipe.compile, bool) else alike
        self.rule: DepthRule = build_kind(recipe.depth, RULES)
        if depth is not None:
            self.rule = RULES["fixed"](self.config.check_depth(depth), self.rule.grad_steps)
        self.speed = Speedometer(self.config, self.objective, recipe.precision, torch.device("cpu"))
        self.peak = peak_of(cluster.gpu, recipe.precision)

    # bytes

    def size(self, *stacks: str, trained: bool = False) -> float:
        """Returns the bytes of the parameters of some modules at the top of the model (none named: all), or of their gradients."""
        named = [(name.partition(".")[0], p) for name, p in self.model.named_parameters() if p.requires_grad or not trained]
        return float(sum(p.numel() * p.element_size() for top, p in named if not stacks or top in stacks))

    @cached_property
    def averages(self) -> float:
        """The bytes of the running average, where there is one."""
        return self.size(trained=True) if self.recipe.average is not None else 0.0

    @cached_property
    def activations(self) -> float:
        """The most bytes that a batch keeps for its backward pass, at the deepest of 98 in 100 draws."""
        plan = Plan(self.rule.span[2], self.rule.grad_steps or self.rule.span[2])
        kept = min(plan.grad_steps, plan.depth)
        every = self.objective.reads == "every" and self.config.is_looped
        once, step = self._pass_bytes()
        cost = self.remat.cost(kept - 1, "every" if every else "last")
        tokens = self.rows * self.length
        states = (cost.states + (kept if every else 0)) * tokens * self.config.hidden_size * 4
        # logits and their gradient are kept in the pass's own dtype up to a share of the memory, and made in chunks beyond it
        logits = (kept if every else 1) * tokens * self.config.vocab_size * 2 * self._dtype.itemsize
        held = HELD.get((self.recipe.precision, self.compiled), 1.0)
        return held * (once + (1 + cost.whole) * step) + states + min(logits, KEPT * self.cluster.card.memory)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.recipe.precision == "bf16" else torch.float32

    def _pass_bytes(self) -> tuple[float, float]:
        """The bytes that a pass keeps once, without its logits, and those of each step."""

        @lru_cache
        def kept(depth: int) -> float:
            shape: dict[str, Any] = {"batch": self.rows, "context": self.length, "dtype": self._dtype}
            size = training_bytes(self.config, depth=depth if self.config.is_looped else None, **shape)
            return size - 4 * self.rows * self.length * self.config.vocab_size

        if not self.config.is_looped:
            return kept(1), 0.0
        step = kept(2) - kept(1) if self.config.max_steps != 1 else kept(1)
        return kept(1) - step, step

    # seconds

    @cached_property
    def plans(self) -> list[Plan]:
        """Plans at quantiles of the depth rule: what is averaged over."""
        if self.rule.depth_at(0.0, HALF) == self.rule.depth_at(HALF, HALF) == self.rule.depth_at(0.999, HALF):
            return [self.rule.plan(self.recipe.updates, HALF, HALF)]
        points = [(place + 0.5) / GRID for place in range(GRID)]
        return [self.rule.plan(self.recipe.updates, u, v) for u in points for v in points]

    @cached_property
    def step_seconds(self) -> float:
        """The seconds of one step forward."""
        return self._seconds(self.speed.step_flops(self.rows, self.length))

    @cached_property
    def batch_seconds(self) -> float:
        """The mean seconds of a batch's forward and backward passes, steps that run again included."""
        ids = torch.empty(self.rows, self.length, dtype=torch.long, device="meta")
        flops = self.speed.flops([(Batch(ids, ids), plan) for plan in self.plans]) / len(self.plans)
        kept = [min(plan.grad_steps, plan.depth) if self.config.is_looped else 1 for plan in self.plans]
        again = sum(self.remat.cost(steps - 1, self.objective.reads).reruns for steps in kept) / len(kept)
        return self._seconds(flops) + again * self.step_seconds

    @cached_property
    def outside_seconds(self) -> float:
        """The seconds forward of prelude and coda."""
        return self._seconds(self.speed.outside_flops(self.rows, self.length))

    def _seconds(self, flops: float) -> float:
        return flops / (REACHED[self.compiled] * self.peak) if self.peak else 0.0

    def compute(self, divided: int = 1) -> float | None:
        """Returns the seconds an update computes, its optimiser's work divided over so many GPUs; None where no peak is known."""
        if not self.peak:
            return None
        traffic = OPTIMISER_TRAFFIC * self.size(trained=True) / 4
        return self.recipe.accumulate * self.batch_seconds + traffic / divided / self.cluster.card.bandwidth

    @property
    def steps(self) -> tuple[float, float]:
        """The mean numbers of steps of a batch, and of those with a gradient."""
        if not self.config.is_looped:
            return 0.0, 0.0
        depths = [(plan.depth, min(plan.grad_steps, plan.depth)) for plan in self.plans]
        return sum(depth for depth, _ in depths) / len(depths), sum(kept for _, kept in depths) / len(depths)


def _length(recipe: Recipe, asked: int | None) -> int:
    if asked is not None:
        return check_whole("context", asked, 1)
    options = options_of(DATA[recipe.data["kind"]])
    if "length" not in options:
        raise ValueError(f"data {recipe.data['kind']!r} does not say how long its rows are; give --context")
    return check_whole("data.length", recipe.data.get("length", options["length"].default), 1)


# the ways

BEFORE = ("embed_tokens", "embed_positions", "embed_norm", "state")  # modules whose gradients come last of all
AFTER = ("coda", "norm", "halting", "lm_head")  # and first


def ways(work: Workload) -> list[Way]:
    """Returns what an update costs on one GPU that takes its rows in as many batches more, and on all by each way to spread it."""
    return [_single(work), *([_ddp(work), _fsdp_kept(work), _fsdp_each_step(work)] if work.cluster.gpus > 1 else [])]


def _single(work: Workload) -> Way:
    compute = work.compute()
    more = (work.cluster.gpus - 1) * work.recipe.accumulate * work.batch_seconds
    name = "one GPU" if work.cluster.gpus == 1 else f"one GPU, accumulate × {work.cluster.gpus}"
    return _way(work, name, _whole_sizes(work), compute=None if compute is None else compute + more)


def _ddp(work: Workload) -> Way:
    """Gradients are summed as they become whole, in the last batch: those after the loop at once, those of the core while its
    first step is differentiated, layer by layer, the embedding's when all is done."""
    link, core = work.cluster, [name for name, _ in work.model.named_children() if name not in (*BEFORE, *AFTER, "prelude")]
    layers = max(work.config.core_layers, 1)
    first_step = 2 * work.step_seconds  # its backward pass
    prelude = 2 * work.outside_seconds * work.config.prelude_layers / max(work.config.prelude_layers + work.config.coda_layers, 1)
    loop = first_step * work.steps[1]
    parts = [(-loop - prelude, work.size(*AFTER, trained=True))]
    share = work.size(*core, trained=True) / layers
    parts += [((layer - layers) / layers * first_step - prelude, share) for layer in range(1, layers + 1)]
    parts += [(0.0, work.size("prelude", *BEFORE, trained=True))]
    finished = parts[0][0]
    for ready, size in parts:  # seconds before the end of the backward pass
        finished = max(finished, ready) + link.all_reduce(size)
    total = link.all_reduce(work.size(trained=True))
    return _way(work, "DDP", _whole_sizes(work), compute=work.compute(), communication=total, exposed=max(finished, 0.0))


def _fsdp_kept(work: Workload) -> Way:
    """All parameters are one group: gathered before each batch, held whole with their gradients until it is done, reduced at the
    end. Nothing hides that: the pass waits for the one, the optimiser for the other."""
    weights, gradients, n = work.size(), work.size(trained=True), work.cluster.gpus
    moved = work.recipe.accumulate * work.cluster.gather(weights) + work.cluster.gather(gradients)
    sizes = [
        weights / n + weights, gradients / n + gradients, (work.optimiser_bytes + work.averages) / n,
        max(work.activations, gradients),  # the reduction copies the gradients, when the activations are gone
    ]  # fmt: skip
    return _way(work, "FSDP2, kept", sizes, compute=work.compute(n), communication=moved, exposed=moved)


def _fsdp_each_step(work: Workload) -> Way:
    """Each layer is a group of its own: gathered whenever it runs, forward and backward, reduced after each step's backward pass.
    All of it runs beside the computation, but for the first layer's gathering and the last one's reduction."""
    (depth, kept), n, link = work.steps, work.cluster.gpus, work.cluster
    blocks = max(work.config.prelude_layers + work.config.core_layers + work.config.coda_layers, 1)
    layer, trained = work.size("prelude", "core", "coda") / blocks, work.size("prelude", "core", "coda", trained=True) / blocks
    core, core_trained = work.size("core"), work.size("core", trained=True)
    rest, rest_trained = work.size() - core, work.size(trained=True) - core_trained
    batches = work.recipe.accumulate
    gathered = batches * (link.gather(depth * core + rest) + link.gather(kept * core + work.size("prelude", "coda")))
    moved = gathered + link.gather(kept * core_trained + rest_trained)
    compute = work.compute(n)
    outside = work.size() - work.size("prelude", "core", "coda")
    gradients = work.size(trained=True)
    sizes = [
        work.size() / n + outside + 2 * layer, gradients / n + (gradients if batches > 1 else 2 * trained),
        (work.optimiser_bytes + work.averages) / n, work.activations,
    ]  # fmt: skip
    exposed = max(moved - (compute or 0.0), 0.0) + link.gather(layer + trained)
    return _way(work, "FSDP2, each step", sizes, compute=compute, communication=moved, exposed=min(exposed, moved))


def _whole_sizes(work: Workload) -> list[float]:
    return [work.size(), work.size(trained=True), work.optimiser_bytes + work.averages, work.activations]


def _way(
    work: Workload, name: str, sizes: Sequence[float], *, compute: float | None, communication: float = 0.0, exposed: float = 0.0
) -> Way:
    weights, gradients, optimiser, activations = sizes
    fits = sum(sizes) <= ROOM * work.cluster.card.memory
    tokens = work.recipe.batch * work.length
    return Way(name, weights, gradients, optimiser, activations, fits, compute, communication, exposed, tokens)
