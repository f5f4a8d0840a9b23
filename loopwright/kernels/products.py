"""Triton kernels of a decode pass around its linear maps: residual, norms and SwiGLU belong to the product that comes next.

A branch ends with its bare product y; the kernel that follows adds it: x′ = R(x + O(y)), h = I(x′), with the norms of `Residual`;
a norm that is absent is None. Weights are read where the parameters lie: maps that share an input (q, k, v) are rows of one
product, found by a pointer per row, so that nothing is copied and nothing can be out of date.

Where `early` holds, a kernel is launched before the one before it has ended (programmatic dependent launch, Hopper): it loads what
depends on nothing, waits, and goes on. A kernel that leaves room beside it lets the next one start at once; one that fills the
processors (many tokens) only when its programs are about to end, because those that wait would take its place.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

if os.environ.get("TRITON_INTERPRET") != "1":
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def go_early(early: tl.constexpr):
    """Lets the next kernel start."""
    if early:
        gdc_launch_dependents()


@triton.jit
def wait_early(early: tl.constexpr):
    """Waits until the kernel before has ended."""
    if early:
        gdc_wait()


def launch_options(warps: int, *, early: bool) -> dict[str, int | bool]:
    """Returns how a kernel of so many warps is launched. An option that a card does not know is left out, not switched off."""
    return {"num_warps": warps, "launch_pdl": True} if early else {"num_warps": warps}


@triton.jit
def _fetch(rows, begin, end, columns: tl.constexpr):
    """Brings the first `columns` columns of some rows, from `begin` to before `end`, on their way to the cache of the card."""
    line: tl.constexpr = 1024 // rows.dtype.element_ty.primitive_bitwidth  # numbers of 128 bytes
    at = tl.minimum(begin + tl.arange(0, columns // line) * line, end - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [(rows[:, None] + at[None, :]).to(tl.int64)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _rms(x, width, eps):
    return x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / width + eps))


@triton.jit
def _gain(weight, k, width):
    return tl.load(weight + k, mask=k < width, other=0.0).to(tl.float32)


@triton.jit
def _rows_of(w0, w1, w2, n, first, second, width):
    """Returns where the rows n of up to three matrices lie, of which the first have `first` and `second` rows."""
    at = w0 + n.to(tl.int64) * width
    if w1 is not None:
        at = tl.where(n < first, at, w1 + (n - first).to(tl.int64) * width)
        at = tl.where(n < first + second, at, w2 + (n - first - second).to(tl.int64) * width)
    return at


@triton.jit
def _bias_of(b0, b1, b2, n, count, first, second):
    """Returns the biases of the rows n of up to three maps; a map without one has None."""
    bias = tl.zeros(n.shape, tl.float32)
    if b0 is not None:
        bias += tl.load(b0 + n, mask=n < first, other=0.0).to(tl.float32)
    if b1 is not None:
        bias += tl.load(b1 + n - first, mask=(n >= first) & (n < first + second), other=0.0).to(tl.float32)
    if b2 is not None:
        bias += tl.load(b2 + n - first - second, mask=(n >= first + second) & (n < count), other=0.0).to(tl.float32)
    return bias


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def norm_gemv(
    x_at, y_at, output, residual, enter, x_out, w0, w1, w2, b0, b1, b2, up, up_bias, out, eps,
    count: tl.constexpr, first: tl.constexpr, second: tl.constexpr, width: tl.constexpr, padded: tl.constexpr,
    rows: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """One token: out = W h (or silu(W h) · up h), `rows` rows of W a program; the first program keeps x′."""
    program = tl.program_id(0)
    go_early(early)
    n, k = program * rows + tl.arange(0, rows), tl.arange(0, padded)
    inside = (n[:, None] < count) & (k[None, :] < width)
    w = tl.load(_rows_of(w0, w1, w2, n, first, second, width)[:, None] + k[None, :], mask=inside, other=0.0)
    bias = _bias_of(b0, b1, b2, n, count, first, second)
    if up is not None:
        w_up = tl.load(up + n[:, None].to(tl.int64) * width + k[None, :], mask=inside, other=0.0)
    if output is not None:
        output_gain = _gain(output, k, width)
    if residual is not None:
        residual_gain = _gain(residual, k, width)
    if enter is not None:
        enter_gain = _gain(enter, k, width)
    wait_early(early)
    x = tl.load(x_at + k, mask=k < width, other=0.0).to(tl.float32)
    if y_at is not None:
        y = tl.load(y_at + k, mask=k < width, other=0.0).to(tl.float32)
        if output is not None:
            y = _rms(y, width, eps) * output_gain
        x += y
        if residual is not None:
            x = _rms(x, width, eps) * residual_gain
    if program == 0:
        tl.store(x_out + k, x, mask=k < width)
    if enter is not None:
        x = _rms(x, width, eps) * enter_gain
    total = tl.sum(w.to(tl.float32) * x[None, :], 1) + bias
    if up is not None:
        other = tl.sum(w_up.to(tl.float32) * x[None, :], 1) + _bias_of(up_bias, None, None, n, count, first, second)
        total = _silu(total) * other
    tl.store(out + n, total, mask=n < count)


@triton.jit
def gemv(w, b, x_at, out, count: tl.constexpr, width: tl.constexpr, inner: tl.constexpr, rows: tl.constexpr, early: tl.constexpr):
    """One token: out = W x, in chunks of `inner` columns."""
    go_early(early)
    n, k = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, inner)
    at = w + n[:, None].to(tl.int64) * width + k[None, :]
    part = tl.load(at, mask=(n[:, None] < count) & (k[None, :] < width), other=0.0)
    bias = _bias_of(b, None, None, n, count, count, 0)
    wait_early(early)
    total = tl.sum(part.to(tl.float32) * tl.load(x_at + k, mask=k < width, other=0.0).to(tl.float32)[None, :], 1)
    for c in tl.static_range(inner, width, inner):
        part = tl.load(at + c, mask=(n[:, None] < count) & (k[None, :] + c < width), other=0.0)
        x = tl.load(x_at + c + k, mask=k + c < width, other=0.0).to(tl.float32)
        total += tl.sum(part.to(tl.float32) * x[None, :], 1)
    tl.store(out + n, total + bias, mask=n < count)


@triton.jit
def norm_rows(
    x_at, y_at, output, residual, enter, x_out, h_out, tokens, eps,
    width: tl.constexpr, padded: tl.constexpr, splits: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """Many tokens, one a program: x′ and h; y comes in `splits` parts [splits, tokens, width] that are added up here."""
    row = tl.program_id(0)
    go_early(early)
    k = tl.arange(0, padded)
    if output is not None:
        output_gain = _gain(output, k, width)
    if residual is not None:
        residual_gain = _gain(residual, k, width)
    if enter is not None:
        enter_gain = _gain(enter, k, width)
    wait_early(early)
    x = tl.load(x_at + row * width + k, mask=k < width, other=0.0).to(tl.float32)
    if y_at is not None:
        y = tl.load(y_at + row * width + k, mask=k < width, other=0.0).to(tl.float32)
        for i in tl.static_range(1, splits):
            y += tl.load(y_at + (i * tokens + row) * width + k, mask=k < width, other=0.0).to(tl.float32)
        if output is not None:
            y = _rms(y, width, eps) * output_gain
        x += y
        if residual is not None:
            x = _rms(x, width, eps) * residual_gain
    tl.store(x_out + row * width + k, x, mask=k < width)
    if h_out is not None:
        if enter is not None:
            x = _rms(x, width, eps) * enter_gain
        tl.store(h_out + row * width + k, x, mask=k < width)


@triton.jit
def gemm_rows(
    a, w0, w1, w2, b0, b1, b2, up, up_bias, out, tokens,
    count: tl.constexpr, first: tl.constexpr, second: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
    columns: tl.constexpr, inner: tl.constexpr, splits: tl.constexpr, stages: tl.constexpr, ahead: tl.constexpr,
    early: tl.constexpr,
):  # fmt: skip
    """Many tokens: out = a Wᵀ (or silu(a Wᵀ) · a upᵀ) by tensor cores, `columns` rows of W and a part of their width a program."""
    split = tl.program_id(1)
    m = tl.program_id(2) * block + tl.arange(0, block)
    n = tl.program_id(0) * columns + tl.arange(0, columns)
    k = tl.arange(0, inner)
    share: tl.constexpr = ((width + inner - 1) // inner + splits - 1) // splits * inner
    start, end = split * share, min(split * share + share, width)
    if early and ahead > 0:  # weights depend on nothing
        real = tl.minimum(n, count - 1)
        _fetch(_rows_of(w0, w1, w2, real, first, second, width), start, end, ahead)
        if up is not None:
            _fetch(up + real.to(tl.int64) * width, start, end, ahead)
    w_at = _rows_of(w0, w1, w2, n, first, second, width)[None, :] + k[:, None]
    if up is not None:
        up_at = up + n[None, :].to(tl.int64) * width + k[:, None]
    a_at = a + m[:, None] * width + k[None, :]
    total = tl.zeros([block, columns], tl.float32)
    other = tl.zeros([block, columns], tl.float32)
    wait_early(early)
    for c in tl.range(start, end, inner, num_stages=stages):
        if width % inner == 0 and count % columns == 0:
            x = tl.load(a_at + c, mask=m[:, None] < tokens, other=0.0)
            total = tl.dot(x, tl.load(w_at + c), total, input_precision="ieee")
            if up is not None:
                other = tl.dot(x, tl.load(up_at + c), other, input_precision="ieee")
        else:
            inside = (n[None, :] < count) & (k[:, None] + c < width)
            x = tl.load(a_at + c, mask=(m[:, None] < tokens) & (k[None, :] + c < width), other=0.0)
            total = tl.dot(x, tl.load(w_at + c, mask=inside, other=0.0), total, input_precision="ieee")
            if up is not None:
                other = tl.dot(x, tl.load(up_at + c, mask=inside, other=0.0), other, input_precision="ieee")
    go_early(early)
    if split == 0:
        total += _bias_of(b0, b1, b2, n, count, first, second)[None, :]
    if up is not None:
        total = _silu(total) * (other + _bias_of(up_bias, None, None, n, count, first, second)[None, :])
    at = out + (split * tokens + m[:, None]) * count + n[None, :]
    tl.store(at, total, mask=(m[:, None] < tokens) & (n[None, :] < count))
