"""P5: what modulation costs. A layer whose seven linear maps are modulated per token at rank 32, against the same layer frozen.

`layer`: the diagonals are given. `controller`: a step of the loop with a controller that makes them, pooling causally. `forward`
alone, and `training`: forward and backward with everything frozen but what makes the diagonals, on a GPU replayed as a graph and
`launched` kernel by kernel, the host's time included. The FLOP overhead is what a product-bound device could not go below; the
target allows 1.6 times that. `plain` is the equation map by map, each with an
update of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.pairs import compare, replayed, report
from loopwright.kernels.gate import free_launches
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.cost import pass_flops
from loopwright.model.parts.adapters import diagonal
from loopwright.model.parts.adapters.diagonal import Bases
from loopwright.model.parts.part import FIRST
from loopwright.model.passes import Adaptation, Effects, Pass, Place

Run = Callable[[Tensor], Tensor]
RANK, ALLOWED = 32, 1.6
SHAPES = {
    768: {"intermediate_size": 2048, "num_attention_heads": 12},
    2048: {"intermediate_size": 5632, "num_attention_heads": 32},
}
PLACE = Place("core", FIRST, 0)


def looped(width: int, kind: str | None, device: str, dtype: torch.dtype) -> LoopedForCausalLM:
    """Returns a random model of one looped layer, frozen but for what makes the diagonals."""
    torch.manual_seed(0)
    adapters = [] if kind is None else [{"kind": kind, "rank": RANK}]
    config = LoopedConfig(
        vocab_size=64, hidden_size=width, depth=1, adapters=adapters, max_steps=1 if adapters else None, **SHAPES[width]
    )
    model = LoopedForCausalLM(config).to(device=device, dtype=dtype).eval()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("adapters.") and ".bases." not in name)
    return model


def overhead(width: int, kind: str, rows: int, length: int, *, trained: bool) -> float:
    """Returns the FLOPs that an adapter adds, as a share of the frozen layer's.

    What is frozen, layer and bases, is multiplied twice in training (forward, and back to its input), a controller three times.
    """

    def share(kind: str) -> float:
        flops = pass_flops(looped(width, kind, "meta", torch.float32).config, batch=rows, length=length)
        return flops[kind] / (flops["core"] + flops["attention"])

    bases = share("diagonal")
    return bases + (share(kind) - bases) * (1.5 if trained else 1.0)


def map_by_map(bases: Bases, diagonals: Tensor) -> Effects:
    """Returns the modulation as one writes it first: per map two products, a scaling and a sum."""

    def update(layer: int, name: str, x: Tensor, weight: Tensor | None) -> Tensor:
        d = diagonals[..., layer, bases.names.index(name), :]
        return F.linear(F.linear(x, bases.a[name][layer]) * (bases.scale * d), bases.b[name][layer])

    return Effects(update=lambda layer, name, x, weight: update(layer, name, x, weight) if name in bases.names else None)


def forced(run: Run, *, kernels: bool) -> Run:
    """Returns a run of modulated maps by kernels whatever their size, or by products as where no kernels are offered."""

    def call(x: Tensor) -> Tensor:
        kept = {name: getattr(diagonal, name) for name in ("RANKS", "WIDEST", "LEAST", "LEAST_REPLAYED")}
        for name, value in ({"WIDEST": 2**20, "LEAST": 0, "LEAST_REPLAYED": 0} if kernels else {"RANKS": ()}).items():
            setattr(diagonal, name, value)
        try:
            return run(x)
        finally:
            for name, value in kept.items():
                setattr(diagonal, name, value)

    return call


def layer_runs(width: int, rows: int, length: int, device: str, dtype: torch.dtype, made: Callable[[Run], Run]) -> dict[str, Run]:
    """Returns the layer on a state: frozen and modulated, on a GPU by kernels and by products, `made` of plain functions; else
    as it is and map by map."""
    model = looped(width, "diagonal", device, dtype)
    bases, block = model.adapters[0].bases, model.core[0]
    _, p = model.embed(inputs_embeds=torch.zeros(rows, length, width, device=device, dtype=dtype))
    diagonals = (0.1 * torch.randn(rows, length, 1, len(bases.names), RANK)).to(device=device, dtype=dtype).requires_grad_()

    def modulated(x: Tensor) -> Tensor:
        return block(x, p, PLACE, Adaptation([Effects(modulate=bases.modulated(diagonals))]))

    runs = {"frozen": made(lambda x: block(x, p, PLACE))}
    if device == "cuda":
        runs["modulated by kernels"] = forced(made(lambda x: modulated(x)), kernels=True)
        runs["modulated by products"] = forced(made(lambda x: modulated(x)), kernels=False)
    else:
        runs["modulated"] = modulated
        runs["plain"] = lambda x: block(x, p, PLACE, Adaptation([map_by_map(bases, diagonals)]))
    return runs


def step_runs(width: int, rows: int, length: int, device: str, dtype: torch.dtype, made: Callable[[Run], Run]) -> dict[str, Run]:
    """Returns a step of the loop: frozen, and under a controller; each is `made` of a plain function."""
    found: dict[str, Run] = {}

    def run(model: LoopedForCausalLM, p: Pass) -> Run:
        return made(lambda x: model.step(x, x, 0, p))

    for name, kind in (("frozen", None), ("modulated", "controller")):
        model = looped(width, kind, device, dtype)
        found[name] = run(model, model.embed(inputs_embeds=torch.zeros(rows, length, width, device=device, dtype=dtype))[1])
    return found


def _as_it_is(run: Run) -> Run:
    return run


def launched(call: Callable[[], object]) -> Callable[[], object]:
    """Returns the call, its kernels launched one by one: the same kernels as if that cost nothing."""

    def run() -> None:
        with free_launches():
            call()

    return run


def forward(run: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], object]:
    """Returns a forward pass without gradients."""

    def call() -> None:
        with torch.no_grad():
            run(x)

    return call


def training(run: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], object]:
    """Returns a forward and a backward pass, to the state and to whatever trains."""
    state = x.clone().requires_grad_()
    grad = torch.randn_like(x)
    return lambda: run(state).backward(grad)


def rows_of(width: int, rows: int, length: int, device: str, dtype: torch.dtype, pairs: int) -> None:
    """Prints P5 at one width."""
    x = torch.randn(rows, length, width).to(device=device, dtype=dtype)
    facts: dict[str, Any] = {"width": width, "rank": RANK, "tokens": rows * length, "dtype": str(dtype).removeprefix("torch.")}
    for what, kind, runs in (("layer", "diagonal", layer_runs), ("controller", "controller", step_runs)):
        for mode, compiled in product((forward, training), (False, True) if device == "cuda" else (False,)):
            torch.compiler.reset()
            made = runs(width, rows, length, device, dtype, partial(torch.compile, dynamic=False) if compiled else _as_it_is)
            flops = overhead(width, kind, rows, length, trained=mode is training)
            row = {**facts, "compiled": compiled, "flop_overhead": flops, "bound": 1 + flops}
            row["target"] = f"<= {1 + ALLOWED * flops:.3f}"
            for name in [name for name in made if name != "frozen"]:
                for timed in (replayed, launched) if device == "cuda" else (launched,):
                    ratio = compare(timed(mode(made[name], x)), timed(mode(made["frozen"], x)), pairs=pairs)
                    report(f"P5 {name} {what} / frozen, {mode.__name__}", {**row, "replayed": timed is replayed, **ratio})


def main() -> None:
    """Prints P5: on a GPU in bfloat16 at two widths, replayed as graphs; else at d = 768 on one core."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--widths", type=int, nargs="*", default=list(SHAPES), help="on a GPU")
    parser.add_argument("--rows", type=int, default=4, help="rows of 2,048 tokens, on a GPU")
    parser.add_argument("--pairs", type=int, default=31)
    options = parser.parse_args()
    if torch.cuda.is_available():
        with torch.cuda.stream(torch.cuda.Stream()):
            for width in options.widths:
                rows_of(width, options.rows, 2048, "cuda", torch.bfloat16, options.pairs)
        return
    torch.set_num_threads(1)
    rows_of(768, 1, 512, "cpu", torch.float32, options.pairs)


if __name__ == "__main__":
    main()
