"""Modulation between fixed bases: y += (alpha/rank) · B ((A x) ⊙ d_t), with d a static table per step or a controller's output.

The controller (Ouroboros) pools the state, joins a step embedding, and predicts the diagonals of all linear maps:
    z = SiLU(W_p pool(s) + b),  c = MLP([z; step embedding]),  d = H c,  H starting at zero.
The bases A, B come from the SVD of what the conversion removed; they are frozen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopwright.kernels import gate
from loopwright.kernels.gate import can_compile, is_plain, warn_once
from loopwright.model.parts.adapters.controllers import CHUNK, Conditioned
from loopwright.model.parts.adapters.effects import Adapter, Factored, FactorTable, Site, chosen_shapes, scale_of
from loopwright.model.parts.part import StepIndex, take
from loopwright.model.passes import Effects, Modulation, Pass, Place, flat_outputs

HOPPER = 9  # the kernels read whole blocks as no older card can, and were measured on no newer one
# numbers of an input that make the kernels worth their launch, which takes the host longer than that of a product; then where
# launches are free
LEAST, LEAST_REPLAYED = 2**25, 2**22
WIDEST = 1024  # the narrower side of W: the wider, the more of the time is the product by W, which cuBLAS does faster
RANKS = (16, 32, 64)  # blocks have powers of two, and must fit beside each other


class Bases(Factored):
    """Frozen bases per target: a [L, r, in] and b [L, out, r]."""

    frozen = True

    def __init__(self, site: Site, rank: int, alpha: float, targets: str | Sequence[str]) -> None:
        super().__init__()
        shapes = chosen_shapes(site, targets, branches=False)
        self.names, self.rank = list(shapes), rank
        self.a = FactorTable(shapes, (site.layers,), rank, "a").requires_grad_(False)
        self.b = FactorTable(shapes, (site.layers,), rank, "b").requires_grad_(False)
        self.scale = scale_of(alpha, rank)

    def modulated(self, diagonals: Tensor) -> Modulation:
        """Returns the modulation by diagonals [..., L, targets, r], with leading axes that broadcast against [B, T].

        No ΔW is formed: A x of maps that share x is one product, and B adds its own into what W has made, or, where kernels can run
        it, the sum of W goes on into B.
        """

        def modulate(layer: int, linears: Mapping[str, nn.Module], x: Tensor, ys: Sequence[Tensor] | None) -> Sequence[Tensor]:
            mine = [name for name in linears if name in self.names]
            if not mine:
                return flat_outputs(linears, x) if ys is None else ys
            first = self.names.index(mine[0])  # maps that share an input stand side by side
            d = diagonals[..., layer, first : first + len(mine), :].flatten(-2)
            bases = (table[name] for table in (self.a, self.b) for name in mine)
            kind = None if ys is not None else kernel_dtype(x, [linears[name] for name in mine], self.rank)
            if kind is not None and all(map(is_plain, bases)):
                return self._by_kernels(layer, linears, mine, x, d, kind)
            ys = flat_outputs(linears, x) if ys is None else ys
            a = [self.a[name][layer] for name in mine]
            inner = F.linear(x, torch.cat(a) if len(a) > 1 else a[0]) * (self.scale * d)
            parts = dict(zip(mine, inner.flatten(0, -2).split(self.rank, dim=-1), strict=True))
            return [
                y.addmm_(parts[name].to(y.dtype), self.b[name][layer].to(y.dtype).T) if name in parts else y
                for name, y in zip(linears, ys, strict=True)
            ]

        return modulate

    def _by_kernels(
        self, layer: int, linears: Mapping[str, nn.Module], mine: Sequence[str], x: Tensor, d: Tensor, kind: torch.dtype
    ) -> list[Tensor]:
        from loopwright.model.parts.adapters.modulated import modulated  # Triton comes with torch, where there is a GPU

        flat = x.to(kind).flatten(0, -2)
        outputs = modulated(
            flat, [linears[name].weight for name in mine],
            [self.a[name][layer].to(kind) for name in mine], [self.b[name][layer].to(kind) for name in mine],
            d.expand(*x.shape[:-1], -1), self.scale, *[linears[name].bias for name in mine], *[None] * (3 - len(mine)),
        )  # fmt: skip
        by_name = dict(zip(mine, outputs, strict=False))
        return [by_name[name] if name in by_name else linear(flat) for name, linear in linears.items()]


def kernel_dtype(x: Tensor, linears: Sequence[nn.Module], rank: int) -> torch.dtype | None:
    """Returns the type that kernels run modulated maps of x in; None where they do not, or are not known to be faster:
    without a Hopper GPU, for few tokens or wide maps, in float32, where weights would have to be cast, where derivatives forward or
    of derivatives may be asked for (attention is then told to do without its own kernels)."""
    if type(x) is not Tensor or not x.is_cuda or x.dim() != 3 or rank not in RANKS:
        return None
    if x.numel() < (LEAST_REPLAYED if gate.launches_are_free else LEAST):
        return None
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    if kind not in (torch.bfloat16, torch.float16) or torch.cuda.get_device_properties(x.device).major != HOPPER:
        return None
    if not all(_as_it_was_made(linear, kind) for linear in linears):
        return None
    # a compiled step has Triton, and nobody differentiates it twice or forward
    return kind if torch.compiler.is_compiling() or _can_launch(x, linears) else None


def _can_launch(x: Tensor, linears: Sequence[nn.Module]) -> bool:
    """Says whether kernels can take the place of maps that run one by one: nobody looks on or asks for other derivatives."""
    if not torch.backends.cuda.flash_sdp_enabled() or derived_otherwise() or not all(_unwatched(linear, x) for linear in linears):
        return False
    if not can_compile():
        warn_once("adapters: modulated maps run by products: for their kernels install Triton and a C compiler (gcc, clang)")
        return False
    return True


def derived_otherwise() -> bool:
    """Says whether derivatives forward, or those of torch.func, are being taken: the kernels have none, and would say 0."""
    return torch.autograd.forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def _unwatched(linear: nn.Module, x: Tensor) -> bool:
    """Says whether nothing runs around a map (hooks of all modules, a forward of its own, as offloading has) and W can be read."""
    module = torch.nn.modules.module
    hooks = (module._global_forward_hooks, module._global_forward_pre_hooks, module._global_backward_hooks)
    if any(hooks) or module._global_backward_pre_hooks or linear._backward_pre_hooks or "forward" in vars(linear):
        return False
    return linear.weight.device == x.device and linear.weight.data_ptr() % 16 == 0


def _as_it_was_made(linear: nn.Module, kind: torch.dtype) -> bool:
    """Says whether a map is W x + b and nothing else, with W in a type and of a size that the kernels are for."""
    if type(linear) is not nn.Linear or linear._forward_hooks or linear._forward_pre_hooks or linear._backward_hooks:
        return False
    weight, bias = linear.weight, linear.bias
    return (
        min(weight.shape) <= WIDEST and weight.shape[0] % 8 == 0 and weight.shape[1] % 8 == 0 and weight.is_contiguous()
        and is_plain(weight) and weight.dtype == kind and (bias is None or (is_plain(bias) and bias.dtype == kind))
    )  # fmt: skip


def shown(diagonals: Tensor, stack: str, step: StepIndex, s: Tensor, p: Pass) -> Tensor:
    """Shows diagonals [..., L, targets, r] to the tap, layer by layer [B, T, targets, r], and returns what it makes of them."""
    if p.tap is None:
        return diagonals
    layers = diagonals.expand(*s.shape[:2], *diagonals.shape[-3:]).unbind(-3)
    return torch.stack([p.see("diagonal", d, Place(stack, step, layer)) for layer, d in enumerate(layers)], dim=-3)


class StaticDiagonal(Adapter):
    """One diagonal per step, layer and map, zero at the start: what a controller without input would learn."""

    diagonal = True
    per_step = True
    second_output = False
    starts_from = "bases"

    def __init__(self, site: Site, rank: int = 32, alpha: float = 16.0, targets: str | Sequence[str] = "linears") -> None:
        super().__init__()
        self.bases = Bases(site, rank, alpha, targets)
        self.table = nn.Parameter(torch.empty(site.rows, site.layers, len(self.bases.names), rank))

    def start(self) -> None:
        nn.init.zeros_(self.table)

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        diagonals = take(self.table, step)
        if diagonals.dim() == 4:  # one step per row
            diagonals = diagonals[:, None]
        return Effects(modulate=self.bases.modulated(shown(diagonals, self.stack, step, s, p)))


class Controller(Conditioned):
    """Diagonals from the pooled state and the step."""

    diagonal = True
    starts_from = "bases"

    def __init__(
        self,
        site: Site,
        rank: int = 32,
        alpha: float = 16.0,
        style: int = 128,
        pooling: str = "prefix",
        chunk: int = CHUNK,
        leak_future: bool = False,
        pool_norm: str = "none",
        dropout: float = 0.0,
        init: str = "normal",
        targets: str | Sequence[str] = "linears",
    ) -> None:
        super().__init__("controller", pooling, chunk, leak_future, pool_norm, dropout, init)
        self.bases = Bases(site, rank, alpha, targets)
        self.shape = (site.layers, len(self.bases.names), rank)
        self.state_proj = self.reader(site, 2 * style)
        self.step_embedding = nn.Parameter(torch.empty(site.rows, style))
        self.style1 = nn.Linear(style if self.state_proj is None else 3 * style, 2 * style)
        self.style2 = nn.Linear(2 * style, style)
        self.heads = nn.Parameter(torch.empty(math.prod(self.shape), style))

    def start(self) -> None:
        super().start()
        nn.init.normal_(self.step_embedding)
        nn.init.zeros_(self.heads)

    @property
    def token_numbers(self) -> int:
        return 0 if self.pooling == "sequence" else self.heads.shape[0]

    def diagonals(self, step: StepIndex, s: Tensor, p: Pass) -> Tensor:
        """Returns the diagonals [B, T, L, targets, r] (T is 1 for pooling "sequence")."""
        pooled = self.pooled(self.state_proj, step, s, p)
        z = torch.cat([F.silu(pooled), self.place(self.step_embedding, step, pooled)], dim=-1)
        z = self.drop(F.silu(self.style1(z)))
        z = self.drop(F.silu(self.style2(z)))
        return F.linear(z, self.heads).unflatten(-1, self.shape)

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        return Effects(modulate=self.bases.modulated(shown(self.diagonals(step, s, p), self.stack, step, s, p)))
