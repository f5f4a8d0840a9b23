"""P6: what rematerialising costs in time at depth 16, beside the plain loop: torch's checkpoint around each step, and the tree.
P7: what it saves in bytes at depth 64, and what the tree saves beyond it at 64 and 256.

Each variant runs forward and backward through a rollout with a loss on the last step; the gradients are compared first, bit by
bit. Bytes are those of live storage at its peak, less what was there before the pass (parameters, batch): on a GPU the
allocator's count, on a CPU that of every storage an operation returned, from then until it is freed. Gradients count in both.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import loopwright as lw
from benchmarks.pairs import compare, no_options, report
from loopwright.data.batch import Batch
from loopwright.training.rollout import Plan, rollout

PAIRS = 11


def looped(width: int, device: str, **changes: Any) -> lw.LoopedForCausalLM:
    """Returns a random model of Huginn's kind (sandwich norms, swiglu, the input concatenated), two layers in the core."""
    torch.manual_seed(0)
    shape = {
        "hidden_size": width, "intermediate_size": 11 * width // 4, "num_attention_heads": 4, "vocab_size": 64,
        "prelude_layers": 1, "core_layers": 2, "coda_layers": 1, "embedding_scale": width**0.5, "state": {"scale": width**0.5},
    }  # fmt: skip
    return lw.build("huginn", **{**shape, **changes}).to(device).train()


def addition(width: int, device: str) -> lw.LoopedForCausalLM:
    """Returns a random model of the STARS study's kind: one layer, post-sandwich; no dropout, so that all variants do the same."""
    torch.manual_seed(0)
    changes = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": max(2, width // 64)}
    return lw.build("stars-addition", dropout=0.0, **changes).to(device).train()


def tokens(model: lw.LoopedForCausalLM, rows: int, length: int) -> Batch:
    """Returns a batch of random tokens."""
    ids = torch.randint(0, model.config.vocab_size, (rows, length), device=model.device)
    return Batch(ids, ids)


def pass_through(model: lw.LoopedForCausalLM, batch: Batch, depth: int, variant: str) -> None:
    """Leaves the gradients of the final-step loss in the parameters. `variant` is a kind of REMATS."""
    model.zero_grad(set_to_none=True)
    path = rollout(model, batch, Plan(depth, depth), remat=variant, keeps="last")
    logits = model.read_out(path.last, path.p)
    F.cross_entropy(logits[:, :-1].flatten(0, 1), batch.input_ids[:, 1:].flatten()).backward()


def gradients(model: lw.LoopedForCausalLM, batch: Batch, depth: int, variant: str) -> list[torch.Tensor]:
    """Returns the gradients of one pass."""
    pass_through(model, batch, depth, variant)
    return [x.grad.clone() for x in model.parameters() if x.grad is not None]


class Live(TorchDispatchMode):
    """Counts the bytes of the storages that operations return, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation and counts what it made."""
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                self._see(x.untyped_storage())
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        place, size = storage._cdata, storage.nbytes()
        if place not in self.known:
            self.known.add(place)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, place, size)

    def _gone(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.now -= size


def peak_bytes(run: Callable[[], object]) -> int:
    """Returns the most bytes that were live at once during a call, beyond those live before it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() - before
    with Live() as live:
        run()
    return live.peak


def time_rows(device: str) -> None:
    """Prints P6, and beside it what the tree costs."""
    large, depth = device == "cuda", 16
    cases = (
        ("huginn kind, 2 layers", looped(1024 if large else 256, device), (8, 512) if large else (2, 128)),
        ("stars kind, 1 layer", addition(512, device), (512 if large else 16, 17)),
        ("stars kind, 1 layer", addition(64, device), (512 if large else 64, 17)),
    )
    for name, model, shape in cases:
        batch = tokens(model, *shape)
        about = {"model": name, "width": model.config.hidden_size, "batch": "x".join(map(str, shape)), "depth": depth}
        plain = gradients(model, batch, depth, "none")
        # some backward kernels of a GPU add in no fixed order: then not even the plain loop equals itself
        again = all(torch.equal(x, y) for x, y in zip(gradients(model, batch, depth, "none"), plain, strict=True))
        about["plain_equals_itself"] = again
        for a, b, target in (("step", "none", "<= 1.35"), ("tree", "none", "none")):
            equal = all(torch.equal(x, y) for x, y in zip(gradients(model, batch, depth, a), plain, strict=True))
            pair = (partial(pass_through, model, batch, depth, variant) for variant in (a, b))
            row = compare(*pair, pairs=PAIRS, warm_up=1)
            report(f"P6 time of {a} / {b}", {**about, "target": target, "bitwise_equal_to_plain": equal, **row})


def byte_rows(device: str) -> None:
    """Prints P7, for the loop alone and with a layer before and after it, and the tree at 64 and 256 steps."""
    large = device == "cuda"
    width, shape = (512, (16, 512)) if large else (64, (8, 128))
    alone = looped(width, device, prelude_layers=0, coda_layers=0)
    cases = (
        ("2-layer core alone", alone, shape, 64, ("step", "tree")),
        ("2-layer core, prelude and coda of 1", looped(width, device), shape, 64, ("step", "tree")),
        ("stars kind, 1-layer core alone", addition(width, device), (512 if large else 60, 17), 64, ("step", "tree")),
        ("2-layer core alone", alone, (shape[0] // 4, shape[1]), 256, ("step", "tree")),
    )
    for name, model, rows, depth, variants in cases:
        batch = tokens(model, *rows)
        state = batch.input_ids.numel() * model.config.hidden_size * 4
        plain = peak_bytes(partial(pass_through, model, batch, depth, "none"))
        for variant in variants:
            found = peak_bytes(partial(pass_through, model, batch, depth, variant))
            report(
                f"P7 peak bytes of {variant} / none",
                {
                    "model": name, "width": width, "batch": "x".join(map(str, rows)), "depth": depth,
                    "target": "<= 0.045" if (variant, depth, name) == ("step", 64, "2-layer core alone") else "none",
                    "ratio": found / plain, "MB": found / 1e6, "plain_MB": plain / 1e6,
                    "states": found / state, "plain_states": plain / state,
                },
            )  # fmt: skip


def main() -> None:
    """Prints P6 and P7."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    time_rows(device)
    byte_rows(device)


if __name__ == "__main__":
    no_options(__doc__)
    main()
