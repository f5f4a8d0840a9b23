"""Candidates for a modulated map: tiles of the two kernels. Device time by graphs."""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from loopwright.model.parts.adapter.modulated import Tile, _three, run_backward, run_forward

RANK = 32
INNERS = {"i1": Tile(64, 0, 128, 4, 3), "i2": Tile(128, 0, 64, 4, 4), "i3": Tile(64, 0, 64, 4, 4), "i4": Tile(64, 0, 64, 4, 3), "i5": Tile(64, 0, 128, 4, 2)}
OUTERS = {
    "A": Tile(128, 128, 64, 4, 3), "F": Tile(128, 128, 64, 4, 2), "G": Tile(128, 128, 32, 4, 4), "H": Tile(128, 128, 64, 8, 2),
}  # fmt: skip
GROUPS = {
    768: {"qkv": ((768, 768, 768), 768), "o": ((768,), 768), "gate_up": ((2048, 2048), 768), "down": ((768,), 2048)},
    2048: {"qkv": ((2048,) * 3, 2048), "o": ((2048,), 2048), "gate_up": ((5632,) * 2, 2048), "down": ((2048,), 5632)},
}


@triton.jit
def _whole_tile(
    x, w, a, d, b, y, row, column, place, tokens, length, d_row, d_token, scale,
    width: tl.constexpr, rank: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, step: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    total, inner = tl.zeros((rows, columns), tl.float32), tl.zeros((rows, rank), tl.float32)
    for k in tl.range(0, width, step, num_stages=stages):
        part = x.load([row, k])
        total = tl.dot(part, w.load([column, k]).T, total, input_precision="ieee")
        inner = tl.dot(part, a.load([0, k]).T, inner, input_precision="ieee")
    m = row + tl.arange(0, rows)
    at = (m // length).to(tl.int64) * d_row + (m % length).to(tl.int64) * d_token
    dd = tl.load(d + at[:, None] + (place * rank + tl.arange(0, rank))[None, :], mask=(m < tokens)[:, None], other=0.0)
    z = (inner * (scale * dd.to(tl.float32))).to(y.dtype)
    total = tl.dot(z, b.load([column, 0]).T, total, input_precision="ieee")
    y.store([row, column], total.to(y.dtype))


@triton.jit
def _whole(
    x, w0, w1, w2, a0, a1, a2, d, b0, b1, b2, y0, y1, y2, tokens, length, d_row, d_token, scale,
    t0: tl.constexpr, t1: tl.constexpr, tiles: tl.constexpr,
    width: tl.constexpr, rank: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, step: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    row, n = tl.program_id(0) // tiles * rows, tl.program_id(0) % tiles
    if n < t0:
        _whole_tile(x, w0, a0, d, b0, y0, row, n * columns, 0, tokens, length, d_row, d_token, scale,
                    width, rank, rows, columns, step, stages)  # fmt: skip
    if w1 is not None:
        if (n >= t0) & (n < t0 + t1):
            _whole_tile(x, w1, a1, d, b1, y1, row, (n - t0) * columns, 1, tokens, length, d_row, d_token, scale,
                        width, rank, rows, columns, step, stages)  # fmt: skip
    if w2 is not None:
        if n >= t0 + t1:
            _whole_tile(x, w2, a2, d, b2, y2, row, (n - t0 - t1) * columns, 2, tokens, length, d_row, d_token, scale,
                        width, rank, rows, columns, step, stages)  # fmt: skip


def whole(x, w, a, b, d, scale, tile):
    """One kernel for all maps, which makes z in every program."""
    tokens, width = x.shape
    ys = [x.new_empty(tokens, m.shape[0]) for m in w]
    tiles = [triton.cdiv(m.shape[0], tile.columns) for m in w]
    _whole[(triton.cdiv(tokens, tile.rows) * sum(tiles),)](
        *_three([x], tile.rows, tile.step)[:1], *_three(w, tile.columns, tile.step), *_three(a, RANK, tile.step), d,
        *_three(b, tile.columns, RANK), *_three(ys, tile.rows, tile.columns), tokens, d.shape[1], *d.stride()[:2], scale,
        tiles[0], tiles[1] if len(w) > 1 else 0, sum(tiles), width, RANK, tile.rows, tile.columns, tile.step, tile.stages,
        num_warps=tile.warps,
    )  # fmt: skip
    return ys


def given(outs: tuple[int, ...], width: int, tokens: int, device: str, dtype: torch.dtype) -> dict[str, Any]:
    """Returns the tensors of a group of maps."""
    draws = torch.Generator().manual_seed(0)

    def made(*shape: int, std: float = 1.0) -> Tensor:
        return (std * torch.randn(*shape, generator=draws)).to(device=device, dtype=dtype)

    n = len(outs)
    w, a, b = ([made(o, width, std=width**-0.5) for o in outs], [made(RANK, width, std=width**-0.5) for _ in outs],
               [made(o, RANK, std=RANK**-0.5) for o in outs])  # fmt: skip
    d = made(2, tokens // 2, 7 * RANK)[..., RANK : RANK + n * RANK]
    return {"x": made(tokens, width), "w": w, "a": a, "b": b, "d": d, "g": [made(tokens, o) for o in outs]}


def present(x, w, a, b, d, scale):
    """As the layer runs it now."""
    ys = [F.linear(x, m) for m in w]
    inner = F.linear(x, torch.cat(a) if len(a) > 1 else a[0]) * (scale * d).flatten(0, 1)
    return [y.addmm_(part, m.T) for y, part, m in zip(ys, inner.split(RANK, dim=-1), b, strict=True)]


def present_back(g, w, a, b, d, raw, scale):
    """The gradients of x and d as autograd has them."""
    flat = (scale * d).flatten(0, 1).split(RANK, dim=-1)
    inner = [gi @ bi for gi, bi in zip(g, b, strict=True)]
    dd = scale * torch.cat(inner, -1) * raw
    dz = torch.cat([i * f for i, f in zip(inner, flat, strict=True)], -1)
    dx = g[0] @ w[0]
    for gi, wi in zip(g[1:], w[1:], strict=True):
        dx = dx + gi @ wi
    return dx + dz @ torch.cat(a), dd


def frozen_back(g, w):
    """The gradient of x alone."""
    dx = g[0] @ w[0]
    for gi, wi in zip(g[1:], w[1:], strict=True):
        dx = dx + gi @ wi
    return dx


def candidates(t: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Returns every form by name."""
    x, w, a, b, d, g, s = (*(t[name] for name in ("x", "w", "a", "b", "d", "g")), 0.5)
    none = [None] * len(w)
    raw = F.linear(x, torch.cat(a))
    found: dict[str, Callable[[], Any]] = {
        "forward frozen": lambda: [F.linear(x, m) for m in w],
        "forward present": lambda: present(x, w, a, b, d, s),
        "backward frozen": lambda: frozen_back(g, w),
        "backward present": lambda: present_back(g, w, a, b, d, raw, s),
    }
    for name, tile in OUTERS.items():
        found[f"forward two i3 {name} early"] = lambda tile=tile: run_forward(x, w, none, a, b, d, s, INNERS["i3"], tile, True)[0]
        found[f"backward two i3 {name} early"] = lambda tile=tile: run_backward(g, w, a, b, d, raw, s, INNERS["i3"], tile, True)
    for name in ("i4", "i5"):
        found[f"forward two {name} F early"] = lambda n=name: run_forward(x, w, none, a, b, d, s, INNERS[n], OUTERS["F"], True)[0]
        found[f"backward two {name} F early"] = lambda n=name: run_backward(g, w, a, b, d, raw, s, INNERS[n], OUTERS["F"], True)
    found["forward two i3 F late"] = lambda: run_forward(x, w, none, a, b, d, s, INNERS["i3"], OUTERS["F"], False)[0]
    return found


def microseconds(run: Callable[[], Any], repeat: int = 20) -> float:
    """Returns what one call takes on the device, by a graph of several."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            run()
    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / repeat)
    return 1e6 * statistics.median(times)


def warm(job: tuple[int, str, str]) -> str:
    """Compiles one candidate in a process of its own, into Triton's folder."""
    width, group, name = job
    t = given(*GROUPS[width][group], 512, "cuda", torch.bfloat16)
    try:
        candidates(t)[name]()
        torch.cuda.synchronize()
    except Exception as error:  # a tile that does not fit is told in its row
        return f"{job}: {type(error).__name__}: {str(error)[:200]}"
    return ""


def main() -> None:
    """Prints a row per group and candidate."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    only_compile, only_time = "compile" in sys.argv, "time" in sys.argv
    widths = [int(w) for w in sys.argv[1:] if w.isdigit()] or [768]
    if device == "cuda" and not only_time:
        t = given((768,), 768, 512, "cpu", torch.bfloat16)
        names = [n for n in candidates(t) if "frozen" not in n and "present" not in n]
        jobs = [(w, group, name) for w in widths for group in GROUPS[w] for name in names]
        start = time.time()
        with multiprocessing.get_context("spawn").Pool(13) as pool:
            for said in pool.imap_unordered(warm, jobs):
                if said:
                    print(said, flush=True)
        print(json.dumps({"compiled": len(jobs), "seconds": round(time.time() - start, 1)}), flush=True)
    for width in [] if only_compile else widths:
        for group, (outs, inner) in GROUPS[width].items():
            if device == "cpu":
                t = given(tuple(o // 8 for o in outs), inner // 8, 128, device, torch.float32)
            else:
                t = given(outs, inner, 8192, device, torch.bfloat16)
            wanted: dict[str, Any] = {}
            for name, run in candidates(t).items():
                try:
                    way, form = name.split()[:2]
                    found = run()
                    if form == "present":
                        wanted[way] = found[0]
                    first = found[0] if isinstance(found, list | tuple) else found
                    off = None if form in ("frozen",) else float((first - wanted[way]).abs().max() / wanted[way].abs().max())
                    us = microseconds(run) if device == "cuda" else 0.0
                    print(json.dumps({"width": width, "group": group, "form": name, "us": round(us, 2), "off": off}), flush=True)
                except Exception as error:
                    print(f"{width} {group} {name}: {type(error).__name__}: {str(error)[:150]}", flush=True)


if __name__ == "__main__":
    main()
