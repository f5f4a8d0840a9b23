"""Triton kernels of one decode pass. A branch ends with its bare product; the kernel that comes next adds it to the residual.

Every kernel may be launched before the one before it has ended (programmatic dependent launch, Hopper): it loads its weights,
which depend on nothing, waits, and goes on.
"""

# ruff: noqa: N803
# what Triton compiles is not Python's to type; names are those of the equations
from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _go(PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()


@triton.jit
def _wait(PDL: tl.constexpr):
    if PDL:
        gdc_wait()


@triton.jit
def _rms(x, width, eps):
    return x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / width + eps))


@triton.jit
def norm_gemv(
    W, X, Y, WO, WR, WI, X_OUT, OUT, N, K: tl.constexpr, KP: tl.constexpr, eps,
    BN: tl.constexpr, NORM: tl.constexpr, RESIDUAL: tl.constexpr, SWIGLU: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row: x′ = R(x + O(y)), h = I(x′), out = W h (or silu(gate) · up), BN rows of W a program; the first one keeps x′."""
    program = tl.program_id(0)
    _go(PDL)
    n = program * BN + tl.arange(0, BN)
    k = tl.arange(0, KP)
    inside = (n[:, None] < N) & (k[None, :] < K)
    w = tl.load(W + n[:, None].to(tl.int64) * K + k[None, :], mask=inside, other=0.0)
    if SWIGLU:
        w_up = tl.load(W + (n[:, None] + N).to(tl.int64) * K + k[None, :], mask=inside, other=0.0)
    if NORM:
        wi = tl.load(WI + k, mask=k < K, other=0.0).to(tl.float32)
        wo = tl.load(WO + k, mask=k < K, other=0.0).to(tl.float32)
        if RESIDUAL:
            wr = tl.load(WR + k, mask=k < K, other=0.0).to(tl.float32)
    _wait(PDL)
    x = tl.load(X + k, mask=k < K, other=0.0).to(tl.float32)
    if NORM:
        x = x + _rms(tl.load(Y + k, mask=k < K, other=0.0).to(tl.float32), K, eps) * wo
        if RESIDUAL:
            x = _rms(x, K, eps) * wr
        if program == 0:
            tl.store(X_OUT + k, x, mask=k < K)
        x = _rms(x, K, eps) * wi
    out = tl.sum(w.to(tl.float32) * x[None, :], 1)
    if SWIGLU:
        out = out / (1.0 + tl.exp(-out)) * tl.sum(w_up.to(tl.float32) * x[None, :], 1)
    tl.store(OUT + n, out, mask=n < N)


@triton.jit
def gemv(W, X, OUT, N, K: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr):
    """One row: out = W x, in chunks of BK columns, for widths that are no power of two."""
    program = tl.program_id(0)
    _go(PDL)
    n = program * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    base = W + n[:, None].to(tl.int64) * K + k[None, :]
    w = tl.load(base, mask=(n[:, None] < N) & (k[None, :] < K), other=0.0)
    _wait(PDL)
    total = tl.sum(w.to(tl.float32) * tl.load(X + k, mask=k < K, other=0.0).to(tl.float32)[None, :], 1)
    for c in tl.static_range(BK, K, BK):
        w = tl.load(base + c, mask=(n[:, None] < N) & (k[None, :] + c < K), other=0.0)
        x = tl.load(X + c + k, mask=k + c < K, other=0.0).to(tl.float32)
        total += tl.sum(w.to(tl.float32) * x[None, :], 1)
    tl.store(OUT + n, total, mask=n < N)


@triton.jit
def norm_rows(X, Y, WO, WR, WI, X_OUT, H, K: tl.constexpr, KP: tl.constexpr, eps, RESIDUAL: tl.constexpr, PDL: tl.constexpr):
    """Many rows, one a program: x′ = R(x + O(y)), h = I(x′)."""
    row = tl.program_id(0)
    _go(PDL)
    k = tl.arange(0, KP)
    wi = tl.load(WI + k, mask=k < K, other=0.0).to(tl.float32)
    wo = tl.load(WO + k, mask=k < K, other=0.0).to(tl.float32)
    if RESIDUAL:
        wr = tl.load(WR + k, mask=k < K, other=0.0).to(tl.float32)
    _wait(PDL)
    x = tl.load(X + row * K + k, mask=k < K, other=0.0).to(tl.float32)
    x = x + _rms(tl.load(Y + row * K + k, mask=k < K, other=0.0).to(tl.float32), K, eps) * wo
    if RESIDUAL:
        x = _rms(x, K, eps) * wr
    tl.store(X_OUT + row * K + k, x, mask=k < K)
    tl.store(H + row * K + k, _rms(x, K, eps) * wi, mask=k < K)


@triton.jit
def gemm_rows(
    A, W, OUT, M, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SWIGLU: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Up to BM rows: out = a Wᵀ (or silu(gate) · up) by tensor cores; every weight is read once."""
    _go(PDL)
    m = tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    w_at = W + n[None, :].to(tl.int64) * K + k[:, None]
    a_at = A + m[:, None] * K + k[None, :]
    total = tl.zeros([BM, BN], tl.float32)
    up = tl.zeros([BM, BN], tl.float32)
    _wait(PDL)
    for c in tl.range(0, K, BK, num_stages=STAGES):
        a = tl.load(a_at + c, mask=m[:, None] < M, other=0.0)
        total = tl.dot(a, tl.load(w_at + c, mask=n[None, :] < N, other=0.0), total)
        if SWIGLU:
            up = tl.dot(a, tl.load(w_at + N.to(tl.int64) * K + c, mask=n[None, :] < N, other=0.0), up)
    if SWIGLU:
        total = total / (1.0 + tl.exp(-total)) * up
    tl.store(OUT + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))
