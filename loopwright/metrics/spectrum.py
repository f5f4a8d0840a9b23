"""The spectrum of a map's derivative J at a state, without gradients and without ever holding J.

A map is a callable f: s → f(s) on states [B, T, D] whose rows do not touch one another: a step of a looped model at a fixed
input. ρ(J) decides whether small differences grow or die out. It is not ‖Jv‖ for a random v of norm 1, whose square has the
mean ‖J‖²_F / n: a map with ρ = 2 can read 0.75.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from loopwright.metrics.dual import product
from loopwright.schema import check_whole

Map = Callable[[Tensor], Tensor]
LEADING = 6  # eigenvectors that a round hands to the next


def spectral_radius(
    f: Map, s: Tensor, *, mask: Tensor | None = None, krylov: int = 40, restarts: int = 2, seed: int = 0, products: str = "dual"
) -> Tensor:
    """Returns ρ(J) per row [B], by Arnoldi's method: complex pairs are seen as what they are.

    `mask` [B, T] says which tokens are real; padding is left out. See `leading_eigenvalues` for the rest.
    """
    values = leading_eigenvalues(f, s, 1, mask=mask, krylov=krylov, restarts=restarts, seed=seed, products=products)
    return values.abs()[:, 0]


def leading_eigenvalues(
    f: Map,
    s: Tensor,
    k: int = 4,
    *,
    mask: Tensor | None = None,
    krylov: int = 40,
    restarts: int = 2,
    seed: int = 0,
    products: str = "dual",
) -> Tensor:
    """Returns the `k` eigenvalues of J of largest modulus per row, complex [B, k], largest first.

    Each round builds an orthonormal basis of v, Jv, J²v … with `krylov` products and reads the eigenvalues of J inside it; the
    next starts from the leading eigenvectors found. Exact where `krylov` reaches tokens × channels; before that an
    eigenvalue is as good as its residual, and a strongly non-normal J (long sequences that only pass things on) wants a
    larger `krylov`. `products`: see `PRODUCTS`. NaN for a row where J is not finite.
    """
    if not 1 <= k <= krylov:
        raise ValueError(f"spectrum: k is {k} with krylov {krylov}; allowed: 1 to krylov")
    check_whole("spectrum: restarts", restarts, 0)
    with torch.no_grad():
        times = product_of(f, s, mask, products)
        v = random_directions(s, mask, seed)
        size = min(krylov, s[0].numel())
        finite = torch.ones(s.shape[0], dtype=torch.bool)
        for _ in range(restarts + 1):
            basis, h = _arnoldi(times, v, size)
            h = h.cpu()  # small, and not every build has `eig` on a GPU
            finite = finite & h.isfinite().flatten(1).all(1)  # the solver refuses what is not
            values, vectors = torch.linalg.eig(h.where(finite[:, None, None], 0))
            order = values.abs().argsort(dim=-1, descending=True)
            values = values.gather(-1, order)
            # several, lest an eigenvalue that this round underrated is lost
            leading = vectors.gather(-1, order[:, None, : max(k, LEADING)].expand(-1, size, -1))
            # a complex pair spans the same plane as the real and imaginary parts of one of its vectors
            mixed = leading.real.sum(-1) + leading.imag.sum(-1)
            v = _unit(torch.einsum("bm,bmtd->btd", mixed.to(s), basis))
    eigenvalues = torch.zeros(s.shape[0], k, dtype=values.dtype)
    eigenvalues[:, : values.shape[-1]] = values[:, :k]
    eigenvalues[~finite] = torch.nan
    return eigenvalues.to(s.device)


def path_eigenvalues(
    maps: Sequence[Map],
    states: Sequence[Tensor],
    k: int = 4,
    *,
    mask: Tensor | None = None,
    krylov: int = 40,
    restarts: int = 2,
    seed: int = 0,
    products: str = "dual",
) -> Tensor:
    """Returns the leading eigenvalues at each state of a path, complex [S, B, k]; each state comes with its map."""
    if len(maps) != len(states):
        raise ValueError(f"spectrum: {len(maps)} maps for {len(states)} states; allowed: one for each")
    eigenvalues = [
        leading_eigenvalues(f, s, k, mask=mask, krylov=krylov, restarts=restarts, seed=seed, products=products)
        for f, s in zip(maps, states, strict=True)
    ]
    return torch.stack(eigenvalues)


def turn_frequency(eigenvalues: Tensor) -> Tensor:
    """Returns |arg λ| / 2π, the cycles per step at which an eigenvalue turns, in [0, ½]: an orbit's frequency where |λ| ≈ 1."""
    return eigenvalues.angle().abs() / (2 * torch.pi)


def causal_radius(
    f: Map, s: Tensor, *, mask: Tensor | None = None, positions: Tensor | None = None, chunk: int = 64, products: str = "jvp"
) -> Tensor:
    """Returns ρ(J) per row [B] exactly, for a map in which no token sees a later one.

    J is then block triangular, and its spectrum that of the D × D blocks on its diagonal. `positions` [P] restricts this to
    some tokens (a lower bound then).
    """
    blocks = diagonal_blocks(f, s, positions=positions, chunk=chunk, products=products)
    radius = torch.linalg.eigvals(blocks.cpu()).abs().amax(-1).to(s.device)
    if mask is not None:
        radius = radius.masked_fill(~(mask if positions is None else mask[:, positions]).bool(), 0)
    return radius.amax(-1)


def diagonal_blocks(f: Map, s: Tensor, *, positions: Tensor | None = None, chunk: int = 64, products: str = "jvp") -> Tensor:
    """Returns ∂f(s)_i / ∂s_i at each token i of `positions` (None: all), [B, P, D, D]: `chunk` channels at a time, D·P products."""
    rows, length, width = s.shape
    positions = torch.arange(length, device=s.device) if positions is None else positions.to(s.device)
    with torch.no_grad():
        times = product_of(f, s, None, products)
        units = torch.eye(width, dtype=s.dtype, device=s.device)

        def column(unit: Tensor, position: Tensor) -> Tensor:
            """Returns the block's column: what moving one channel of one token does to that token."""
            here = (torch.arange(length, device=s.device) == position).to(s.dtype)
            moved = times((here[:, None] * unit).expand(rows, -1, -1))
            return torch.einsum("btd,t->bd", moved, here)

        columns = torch.func.vmap(torch.func.vmap(column, in_dims=(0, None), chunk_size=chunk), in_dims=(None, 0), chunk_size=1)
        return columns(units, positions).permute(2, 0, 3, 1)


def frobenius_reading(
    f: Map, s: Tensor, *, mask: Tensor | None = None, draws: int = 1, seed: int = 0, products: str = "dual"
) -> Tensor:
    """Returns the mean of ‖Jv‖² over `draws` random v of norm 1, per row [B]: an estimate of ‖J‖²_F / n, not of ρ²."""
    check_whole("spectrum: draws", draws, 1)
    with torch.no_grad():
        times = product_of(f, s, mask, products)
        readings = [times(random_directions(s, mask, seed + draw)).flatten(1).square().sum(1) for draw in range(draws)]
    return torch.stack(readings).mean(0)


# products J v


def product_of(f: Map, s: Tensor, mask: Tensor | None, products: str) -> Map:
    """Returns v ↦ J v on the tokens that are real."""
    if products not in PRODUCTS:
        raise ValueError(f"spectrum: products {products!r}; allowed: {', '.join(PRODUCTS)}")
    times = PRODUCTS[products](f, s)
    if mask is None:
        return times
    real = mask[..., None].to(s.dtype)
    return lambda v: times(v * real) * real


def dual_product(f: Map, s: Tensor) -> Map:
    """J v by dual numbers: the cheapest, for maps made of torch's own functions."""
    return lambda v: product(f, s, v)[1]


def jvp_product(f: Map, s: Tensor) -> Map:
    """J v by `torch.func.jvp`, which `vmap` takes; attention uses the one kernel that has it."""

    def times(v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return torch.func.jvp(f, (s,), (v,))[1]

    return times


def difference_product(f: Map, s: Tensor) -> Map:
    """J v by a central difference, for maps that the others do not know; f should run in float64."""
    step = torch.finfo(s.dtype).eps ** (1 / 3) * s.flatten(1).norm(dim=1)[:, None, None].clamp(min=1e-3)

    def times(v: Tensor) -> Tensor:
        size = v.flatten(1).norm(dim=1)[:, None, None]
        way = step / size.clamp(min=torch.finfo(s.dtype).tiny)
        return (f(s + way * v) - f(s - way * v)) / (2 * way)

    return times


PRODUCTS: dict[str, Callable[[Map, Tensor], Map]] = {"dual": dual_product, "jvp": jvp_product, "difference": difference_product}


def random_directions(s: Tensor, mask: Tensor | None, seed: int) -> Tensor:
    """Returns random directions of norm 1, one per row [B, T, D], zero at padding; no generator but its own moves."""
    noise = torch.randn(s.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    v = noise.to(device=s.device, dtype=s.dtype)
    return _unit(v if mask is None else v * mask[..., None])


def _unit(v: Tensor) -> Tensor:
    return v / v.flatten(1).norm(dim=1)[:, None, None].clamp(min=torch.finfo(v.dtype).tiny)


def _arnoldi(times: Map, v: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Returns an orthonormal basis [B, m, T, D] of v, Jv, J²v … and J inside it, [B, m, m]."""
    rows = v.shape[0]
    basis = v.new_zeros(rows, size + 1, v[0].numel())
    h = v.new_zeros(rows, size + 1, size)
    basis[:, 0] = v.flatten(1)
    for j in range(size):
        w = times(basis[:, j].view_as(v)).flatten(1)
        whole = w.norm(dim=1)
        for _ in range(2):  # once is not enough in floating point
            part = torch.einsum("bmn,bn->bm", basis[:, : j + 1], w)
            h[:, : j + 1, j] += part
            w = w - torch.einsum("bm,bmn->bn", part, basis[:, : j + 1])
        rest = w.norm(dim=1)
        # nothing new is left: the space is closed, and what follows is zero
        alive = rest > 10 * torch.finfo(v.dtype).eps * whole
        h[:, j + 1, j] = torch.where(alive, rest, 0)
        basis[:, j + 1] = torch.where(alive[:, None], w / rest.clamp(min=torch.finfo(v.dtype).tiny)[:, None], 0)
    return basis[:, :size].unflatten(-1, v.shape[1:]), h[:, :size]
