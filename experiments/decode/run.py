"""Times a fused decode pass of the Ouro-1.4B shape (random weights, bf16, depth 4, 544 keys) beside the bandwidth bound.

python -m experiments.decode.run OUT.jsonl        on a CUDA device of the Hopper kind
TRITON_INTERPRET=1 python -m experiments.decode.run -    tiny sizes on a CPU, against plain torch, nothing timed
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.decode_gpu import copy_bandwidth
from experiments.decode.attention import attend_many, attend_one
from experiments.decode.kernels import INTERPRETED, gemm_rows, gemv, norm_gemv, norm_rows

DEVICE = "cpu" if INTERPRETED else "cuda"
EPS = 1e-6
# blocks and warps that were fastest on an H200, of some 40 tried each
ONE: dict[str, Any] = {
    "pdl": True, "chunk": 64, "block": 64, "warps": 4, "stages": 2, "bk": 2048,
    "qkv": (8, 8), "o": (4, 4), "gate_up": (4, 4), "down": (2, 4), "head": (4, 4),
}  # fmt: skip
MANY: dict[str, Any] = {
    "pdl": False, "chunk": 592, "block": 32, "warps": 4, "stages": 3,
    "qkv": None, "o": (16, 512, 4, 3), "gate_up": (64, 128, 4, 5), "down": (16, 256, 4, 4),
}  # fmt: skip


class Stack:
    """A looped stack of pre-sandwich blocks with a norm at the end of each step, its cache, and the buffers of a pass."""

    def __init__(
        self, *, layers: int = 24, depth: int = 4, rows: int = 1, width: int = 2048, inner: int = 5632, heads: int = 16,
        key_heads: int = 16, vocab: int = 49152, context: int = 544, capacity: int = 592, dtype: torch.dtype = torch.bfloat16,
    ) -> None:  # fmt: skip
        torch.manual_seed(0)
        self.depth, self.rows, self.width, self.inner, self.heads, self.key_heads = depth, rows, width, inner, heads, key_heads
        self.context, self.capacity, self.dtype, self.size = context, capacity, dtype, width // heads
        wide = (heads + 2 * key_heads) * self.size

        def matrix(*shape: int) -> Tensor:
            return (torch.randn(*shape, device=DEVICE) * 0.02).to(dtype)

        def norm() -> Tensor:
            return (1 + 0.1 * torch.randn(width, device=DEVICE)).to(dtype)

        self.layers = [
            {
                "qkv": matrix(wide, width), "o": matrix(width, heads * self.size), "gate_up": matrix(2 * inner, width),
                "down": matrix(width, inner), "in1": norm(), "out1": norm(), "in2": norm(), "out2": norm(),
            }
            for _ in range(layers)
        ]  # fmt: skip
        self.end, self.head, self.one = norm(), matrix(vocab, width), torch.ones(width, device=DEVICE, dtype=dtype)
        slots = (layers * depth, rows, capacity, key_heads, self.size)
        self.keys, self.values = (torch.randn(slots, device=DEVICE).to(dtype) for _ in range(2))
        self.index = torch.full((rows,), context, dtype=torch.int32, device=DEVICE)
        angle = context * (1e6 ** (-torch.arange(0, self.size, 2, device=DEVICE).float() / self.size))
        self.cos = torch.cat([angle.cos(), angle.cos()]).expand(rows, -1).contiguous()
        self.sin = torch.cat([-angle.sin(), angle.sin()]).expand(rows, -1).contiguous()
        self.x0 = torch.randn(rows, width, device=DEVICE)
        kept = torch.float32 if rows == 1 else dtype
        self.states = [torch.zeros(rows, width, device=DEVICE) for _ in range(2)]
        self.y, self.h, self.a = (torch.zeros(rows, width, device=DEVICE, dtype=kept) for _ in range(3))
        self.z = torch.zeros(rows, wide, device=DEVICE, dtype=kept)
        self.g = torch.zeros(rows, inner, device=DEVICE, dtype=kept)
        self.logits = torch.zeros(rows, vocab, device=DEVICE)
        most = rows * heads * triton.cdiv(capacity, 16)
        self.parts, self.stats = torch.zeros(most, self.size, device=DEVICE), torch.zeros(most, 2, device=DEVICE)
        self.count = torch.zeros(rows * heads, dtype=torch.int32, device=DEVICE)

    def reference(self) -> Tensor:
        """Returns the logits by plain float32 arithmetic."""

        def rms(x: Tensor, weight: Tensor) -> Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight.float()

        def turned(x: Tensor) -> Tensor:
            return x * self.cos[:, None] + x.roll(self.size // 2, -1) * self.sin[:, None]

        x, heads, key_heads, size = self.x0.clone(), self.heads, self.key_heads, self.size
        for step in range(self.depth):
            for place, layer in enumerate(self.layers):
                slot = step * len(self.layers) + place
                z = rms(x, layer["in1"]) @ layer["qkv"].float().T
                q, k, v = (
                    part.unflatten(-1, (-1, size)) for part in z.split([heads * size, key_heads * size, key_heads * size], -1)
                )
                k, v = (part.to(self.dtype).float()[:, None] for part in (turned(k), v))
                keys = torch.cat([self.keys[slot, :, : self.context].float(), k], 1).transpose(1, 2)
                values = torch.cat([self.values[slot, :, : self.context].float(), v], 1).transpose(1, 2)
                y = torch.nn.functional.scaled_dot_product_attention(turned(q)[:, :, None], keys, values, enable_gqa=True)
                x = x + rms(y[:, :, 0].flatten(1) @ layer["o"].float().T, layer["out1"])
                gate, up = (rms(x, layer["in2"]) @ layer["gate_up"].float().T).chunk(2, -1)
                x = x + rms((torch.nn.functional.silu(gate) * up) @ layer["down"].float().T, layer["out2"])
            x = rms(x, self.end)
        return x @ self.head.float().T

    def attention(self, slot: int, c: dict[str, Any]) -> None:
        """Makes `a` of `z` and a slot of the cache."""
        splits = triton.cdiv(self.capacity, c["chunk"])
        given = (
            self.z, self.keys[slot], self.values[slot], self.cos, self.sin, self.index, self.parts, self.stats, self.count, self.a,
            self.capacity, self.size**-0.5, self.heads, self.key_heads, self.size, splits, triton.next_power_of_2(splits),
            c["chunk"],
        )  # fmt: skip
        launch = {"num_warps": c["warps"], "num_stages": c["stages"], **_dependent(c)}
        if self.rows == 1:
            attend_one[(self.heads, splits, 1)](*given, c["block"], c["pdl"], **launch)
        else:
            attend_many[(self.key_heads, splits, self.rows)](*given, c["block"], 16, c["stages"], c["pdl"], **launch)

    def _normed(
        self, name: str, matrix: Tensor, out: Tensor, c: dict[str, Any], norms: tuple[Tensor, Tensor | None, Tensor], *,
        swiglu: bool = False,
    ) -> None:  # fmt: skip
        """One row: the residual with `y` added, its norm, a product; the two buffers of the state change places."""
        block, warps = c[name]
        after, residual, before = norms
        norm_gemv[(triton.cdiv(out.shape[1], block),)](
            matrix, self.states[0], self.y, after, self.one if residual is None else residual, before, self.states[1], out,
            out.shape[1], self.width, triton.next_power_of_2(self.width), EPS, block, True, residual is not None, swiglu, c["pdl"],
            num_warps=warps, **_dependent(c),
        )  # fmt: skip
        self.states.reverse()

    def _bare(self, name: str, matrix: Tensor, x: Tensor, out: Tensor, c: dict[str, Any]) -> None:
        block, warps = c[name]
        gemv[(triton.cdiv(out.shape[1], block),)](
            matrix, x, out, out.shape[1], matrix.shape[1], min(c["bk"], triton.next_power_of_2(matrix.shape[1])), block, c["pdl"],
            num_warps=warps, **_dependent(c),
        )  # fmt: skip

    def one_row(self, c: dict[str, Any]) -> Tensor:
        """Returns the logits: five kernels a layer run."""
        self.states[0].copy_(self.x0)
        self.y.zero_()
        after, residual = self.one, None
        for step in range(self.depth):
            for place, layer in enumerate(self.layers):
                self._normed("qkv", layer["qkv"], self.z, c, (after, residual, layer["in1"]))
                self.attention(step * len(self.layers) + place, c)
                self._bare("o", layer["o"], self.a, self.y, c)
                self._normed("gate_up", layer["gate_up"], self.g, c, (layer["out1"], None, layer["in2"]), swiglu=True)
                self._bare("down", layer["down"], self.g, self.y, c)
                after, residual = layer["out2"], None
            residual = self.end
        self._normed_rows(c, (after, residual, self.one))
        self._bare("head", self.head, self.states[0], self.logits, c)
        return self.logits

    def _normed_rows(self, c: dict[str, Any], norms: tuple[Tensor, Tensor | None, Tensor]) -> None:
        after, residual, before = norms
        norm_rows[(self.rows,)](
            self.states[0], self.y, after, self.one if residual is None else residual, before, self.states[1], self.h,
            self.width, triton.next_power_of_2(self.width), EPS, residual is not None, c["pdl"], num_warps=8, **_dependent(c),
        )  # fmt: skip
        self.states.reverse()

    def _product(self, name: str, a: Tensor, matrix: Tensor, out: Tensor, c: dict[str, Any], *, swiglu: bool = False) -> None:
        if c[name] is None:  # cuBLAS was faster
            torch.mm(a, matrix.T, out=out)
            return
        block, inner, warps, stages = c[name]
        gemm_rows[(triton.cdiv(out.shape[1], block),)](
            a, matrix, out, self.rows, out.shape[1], matrix.shape[1], max(16, triton.next_power_of_2(self.rows)), block, inner,
            swiglu, stages, c["pdl"], num_warps=warps, num_stages=stages, **_dependent(c),
        )  # fmt: skip

    def many_rows(self, c: dict[str, Any]) -> Tensor:
        """Returns the logits: seven kernels a layer run."""
        self.states[0].copy_(self.x0)
        self.y.zero_()
        after, residual = self.one, None
        for step in range(self.depth):
            for place, layer in enumerate(self.layers):
                self._normed_rows(c, (after, residual, layer["in1"]))
                self._product("qkv", self.h, layer["qkv"], self.z, c)
                self.attention(step * len(self.layers) + place, c)
                self._product("o", self.a, layer["o"], self.y, c)
                self._normed_rows(c, (layer["out1"], None, layer["in2"]))
                self._product("gate_up", self.h, layer["gate_up"], self.g, c, swiglu=True)
                self._product("down", self.g, layer["down"], self.y, c)
                after, residual = layer["out2"], None
            residual = self.end
        self._normed_rows(c, (after, residual, self.one))
        return self.states[0].to(self.dtype) @ self.head.T

    def bytes_of_a_pass(self) -> int:
        """Returns what a pass must read: the layers once per step, the head, and the keys and values that are held."""
        weights = self.depth * sum(w.nbytes for layer in self.layers for w in layer.values()) + self.head.nbytes
        held = self.depth * len(self.layers) * self.rows * self.context * self.key_heads * self.size
        return weights + 2 * held * self.keys.element_size()


def _dependent(c: dict[str, Any]) -> dict[str, bool]:
    return {"launch_pdl": True} if c["pdl"] else {}


def milliseconds(work: Any, repeats: int = 30) -> float:
    """Returns the median time of a captured graph of the work."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 4)]
    for mark in marks:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in pairwise(marks[3:]))
    return times[len(times) // 2]


def compare_on_a_cpu() -> float:
    """Returns the largest difference of the kernels, interpreted, from plain torch, over one row and many, grouped heads too."""
    worst = 0.0
    small = {"layers": 2, "depth": 2, "width": 64, "inner": 96, "heads": 4, "vocab": 100, "context": 37, "capacity": 64}
    for rows, key_heads, chunk in ((1, 4, 16), (1, 2, 16), (5, 4, 16), (3, 2, 64)):
        stack = Stack(rows=rows, key_heads=key_heads, dtype=torch.float32, **small)
        c = {"pdl": False, "chunk": chunk, "block": 16 if rows > 1 else 8, "warps": 4, "stages": 1, "bk": 32}
        names = ("qkv", "o", "gate_up", "down", "head")
        c |= dict.fromkeys(names, (4, 4)) if rows == 1 else dict.fromkeys(names, (16, 16, 4, 1))
        found = (stack.one_row if rows == 1 else stack.many_rows)(c)
        worst = max(worst, float((found - stack.reference()).abs().max()))
    return worst


def main() -> None:
    """Prints a row per batch size and adds it to the file."""
    if INTERPRETED:
        print(f"largest difference from plain torch: {compare_on_a_cpu():.1e}")
        return
    bandwidth = copy_bandwidth()
    for rows, c in ((1, ONE), (32, MANY)):
        stack = Stack(rows=rows)
        work = stack.one_row if rows == 1 else stack.many_rows
        found, wanted = work(c).float(), stack.reference()
        taken, bound = milliseconds(lambda: work(c)), stack.bytes_of_a_pass() / bandwidth * 1e3  # noqa: B023
        row = {
            "rows": rows, "ms": taken, "bound_ms": bound, "share_of_bound": bound / taken,
            "relative_error": float((found - wanted).norm() / wanted.norm()), "copy_TB_per_s": bandwidth / 1e12, "settings": c,
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        with open(sys.argv[1], "a") as file:
            file.write(json.dumps(row) + "\n")
        del stack
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
