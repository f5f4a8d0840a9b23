"""Dual numbers: a value and its tangent go through a step together, so that f(s) and J v come out of one pass, with gradients.

`torch.func.jvp` does the same, but not well enough to train on. The gradient it gives for the tangent of a layer norm is wrong
(mean and spread count as constants: pytorch issue 196700; the double-backward form has the same error), and each of its rules
is many small kernels. So the few operations that cost anything have their rule, forward and backward, written here; every other
operation goes through `torch.func.jvp` alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

aten = torch.ops.aten


class Dual:
    """A tensor and its tangent. It answers to torch's functions and to the operators and methods of a tensor."""

    __slots__ = ("primal", "tangent")

    def __init__(self, primal: Tensor, tangent: Tensor) -> None:
        self.primal = primal
        self.tangent = tangent

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(func)
        result = NotImplemented if rule is None else rule(func, *args, **kwargs)
        return by_jvp(func, args, kwargs) if result is NotImplemented else result

    def __getattr__(self, name: str) -> Any:
        member = getattr(Tensor, name)
        if callable(member):
            return partial(_call, member, self)
        value = getattr(self.primal, name)  # shape, dtype, device
        if isinstance(value, Tensor):
            raise AttributeError(f"dual: {name!r} of a dual number; allowed: methods of a tensor that are functions")
        return value


def _call(func: Callable, *args: Any, **kwargs: Any) -> Any:
    return Dual.__torch_function__(func, (), args, kwargs)


def _operator(name: str) -> Callable:
    func = getattr(Tensor, name)
    return lambda *args: _call(func, *args)


for _name in ("add", "sub", "mul", "truediv", "matmul"):
    setattr(Dual, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(Dual, f"__r{_name}__", _operator(f"__r{_name}__"))
for _name in ("__neg__", "__getitem__", "__pow__"):
    setattr(Dual, _name, _operator(_name))


def product(f: Callable[[Tensor], Tensor], s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Returns f(s) and J v, the derivative of f at s along v; both have gradients."""
    result: Any = f(Dual(s, v))  # type: ignore[arg-type]
    if not isinstance(result, Dual):  # f does not depend on s
        return result, torch.zeros_like(result)
    return result.primal, result.tangent


def by_jvp(func: Callable, args: tuple, kwargs: dict) -> Any:
    """Returns what an operation without a rule of its own makes of dual numbers."""
    # a compiler knows its own functions by no name, and follows what is changed in place
    if not torch.compiler.is_compiling() and func.__name__.endswith("_") and not func.__name__.endswith("__"):
        raise ValueError(f"dual: {func.__name__} changes a dual number in place; allowed: operations that return a new one")
    flat, form = pytree.tree_flatten((args, kwargs))
    places = [place for place, x in enumerate(flat) if isinstance(x, Dual)]

    def run(*primals: Tensor) -> Any:
        filled = list(flat)
        for place, primal in zip(places, primals, strict=True):
            filled[place] = primal
        plain_args, plain_kwargs = pytree.tree_unflatten(filled, form)
        return func(*plain_args, **plain_kwargs)

    duals = [flat[place] for place in places]
    primal, tangent = torch.func.jvp(run, tuple(d.primal for d in duals), tuple(d.tangent for d in duals))
    return pytree.tree_map(Dual, primal, tangent)


# rules: (the function itself, its arguments) → a dual number, or NotImplemented where only `by_jvp` will do


def of_each(func: Callable, x: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that is linear in its first argument and takes no other dual number."""
    if not isinstance(x, Dual) or any(isinstance(a, Dual) for a in (*args, *kwargs.values())):
        return NotImplemented
    return Dual(func(x.primal, *args, **kwargs), func(x.tangent, *args, **kwargs))


def of_unflatten(func: Callable, x: Dual, *args: Any, **kwargs: Any) -> Any:
    """An axis divided: a method that is written in Python, which a compiler follows only where it is called as one."""
    return Dual(x.primal.unflatten(*args, **kwargs), x.tangent.unflatten(*args, **kwargs))


def of_shape(func: Callable, x: Dual, *args: Any, **kwargs: Any) -> Any:
    """A question about the form of a tensor, not about its values."""
    return func(x.primal, *args, **kwargs)


def of_likeness(func: Callable, x: Any, like: Any) -> Any:
    """x in the form of another tensor."""
    like = like.primal if isinstance(like, Dual) else like
    return of_each(func, x, like) if isinstance(x, Dual) else func(x, like)


def of_sum(func: Callable, x: Any, y: Any, **kwargs: Any) -> Any:
    """x + y."""
    if kwargs:
        return NotImplemented
    if isinstance(x, Dual) and isinstance(y, Dual):
        return Dual(x.primal + y.primal, x.tangent + y.tangent)
    total, tangent = (x.primal + y, x.tangent) if isinstance(x, Dual) else (x + y.primal, y.tangent)
    return Dual(total, tangent.to(total.dtype).expand_as(total))


def of_product(func: Callable, x: Any, y: Any) -> Any:
    """x · y, elementwise."""
    if isinstance(x, Dual) and isinstance(y, Dual):
        return Dual(x.primal * y.primal, torch.addcmul(x.primal * y.tangent, x.tangent, y.primal))
    x, y = (x, y) if isinstance(x, Dual) else (y, x)
    return Dual(x.primal * y, x.tangent * y)


def of_linear(func: Callable, x: Any, weight: Any, bias: Tensor | None = None) -> Any:
    """W x + b."""
    if isinstance(weight, Dual) or isinstance(bias, Dual):
        return NotImplemented
    if torch.is_autocast_enabled(x.device.type):
        return Dual(func(x.primal, weight, bias), func(x.tangent, weight))
    return Dual(*_Linear.apply(x.primal, x.tangent, weight, bias))


def of_added_product(func: Callable, y: Any, x: Any, weight: Any) -> Any:
    """y + x W, for a caller that goes on with what is returned: y itself stays as it was."""
    if isinstance(weight, Dual) or not isinstance(x, Dual) or not isinstance(y, Dual):
        return NotImplemented
    return Dual(torch.addmm(y.primal, x.primal, weight), torch.addmm(y.tangent, x.tangent, weight))


def of_dropout(func: Callable, x: Dual, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Dropout: one mask for value and tangent, the one that the plain function would draw."""
    if not training or p == 0:
        return x
    kept = func(torch.ones_like(x.primal), p, training)
    return Dual(x.primal * kept, x.tangent * kept)


def of_gelu(func: Callable, x: Dual, approximate: str = "none") -> Any:
    """The exact GELU."""
    if approximate != "none" or x.primal.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return Dual(*_Gelu.apply(x.primal, x.tangent))


def of_silu(func: Callable, x: Dual, inplace: bool = False) -> Any:
    """x σ(x); the tangent is σ (1 + x (1 − σ)) ẋ."""
    gate, y = torch.sigmoid(x.primal), F.silu(x.primal)  # the step's own rounding
    return Dual(y, x.tangent * torch.addcmul(gate, y, 1 - gate))


def of_relu(func: Callable, x: Dual, inplace: bool = False) -> Any:
    """The rectifier."""
    return Dual(torch.relu(x.primal), x.tangent * (x.primal > 0))


def of_layer_norm(
    func: Callable, x: Any, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Any:
    """A layer norm over the last axis."""
    return _normed(func, x, shape, weight, bias, eps, centred=True)


def of_rms_norm(func: Callable, x: Any, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Any:
    """A root-mean-square norm over the last axis."""
    return _normed(func, x, shape, weight, None, torch.finfo(x.dtype).eps if eps is None else eps, centred=False)


def of_attention(
    func: Callable, q: Any, k: Any, v: Any, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Scaled-dot-product attention; its scores are held whole, [B, H, T, N]."""
    if not all(isinstance(x, Dual) for x in (q, k, v)) or scale is not None:
        return NotImplemented
    dtype = torch.get_autocast_dtype(q.device.type) if torch.is_autocast_enabled(q.device.type) else q.primal.dtype
    six = [x if x.dtype == torch.float64 else x.float() for d in (q, k, v) for x in (d.primal, d.tangent)]
    if enable_gqa:
        six = six[:2] + [x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in six[2:]]
    mask = attn_mask
    if is_causal:
        mask = torch.full(q.shape[-2:-1] + k.shape[-2:-1], -math.inf, dtype=six[0].dtype, device=q.device).triu_(1)
    kept = None
    if dropout_p > 0:
        kept = F.dropout(torch.ones(*q.shape[:3], k.shape[2], dtype=six[0].dtype, device=q.device), dropout_p)
    with torch.autocast(q.device.type, enabled=False):
        y, yt = _Attention.apply(*six, mask, kept)
    return Dual(y.to(dtype), yt.to(dtype))


def _normed(func: Callable, x: Dual, shape: Any, weight: Any, bias: Any, eps: float, *, centred: bool) -> Dual:
    if isinstance(weight, Dual) or isinstance(bias, Dual) or len(shape) != 1:
        raise ValueError(f"dual: {func.__name__} over several axes or with a moving weight; allowed: the last axis, a fixed weight")
    wide = torch.promote_types(x.dtype, torch.float32)
    weight, bias = (None if w is None else w.to(wide) for w in (weight, bias))
    y, yt = _Norm.apply(x.primal.to(wide), x.tangent.to(wide), weight, bias, eps, centred)
    # autocast leaves norms in float32 on some devices: asked of no rows
    autocast = torch.is_autocast_enabled(y.device.type)
    narrow = func(x.primal[:0], shape, eps=eps).dtype if autocast else x.dtype
    return Dual(y.to(narrow), yt.to(narrow))


class _Linear(torch.autograd.Function):
    """W x + b and W ẋ: the gradient of W is summed inside its second product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, xt: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, xt, weight)
        ctx.biased = bias is not None
        return F.linear(x, weight, bias), F.linear(xt, weight)

    @staticmethod
    def backward(ctx: Any, gy: Tensor, gt: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, xt, weight = ctx.saved_tensors
        flat_y, flat_t = gy.flatten(0, -2), gt.flatten(0, -2)
        gw = gb = None
        if ctx.needs_input_grad[2]:
            gw = (flat_t.T @ xt.flatten(0, -2)).addmm_(flat_y.T, x.flatten(0, -2))
        if ctx.biased and ctx.needs_input_grad[3]:
            gb = flat_y.sum(0)
        gxt = gt @ weight if ctx.needs_input_grad[1] else None
        return gy @ weight if ctx.needs_input_grad[0] else None, gxt, gw, gb


class _Norm(torch.autograd.Function):
    """y = w ⊙ x̂ + b with x̂ = r (x − mean), r = 1 / spread, and its tangent w ⊙ P ẋ.

    P = r (1 − x̂x̂ᵀ/n), centred in a layer norm, is symmetric: the backward kernel of the norm is P itself. With u = w ⊙ (the
    gradient of the tangent), d(uᵀP ẋ)/dx = −r/n (x̂ uᵀPẋ + Pu (ẋ·x̂) + Pẋ (u·x̂)).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, xt: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool
    ) -> tuple[Tensor, Tensor]:
        if centred:
            y, mean, r = aten.native_layer_norm(x, [x.shape[-1]], weight, bias, eps)
        else:
            mean, r = None, (x.square().mean(-1, keepdim=True) + eps).rsqrt_()
            y = x * r if weight is None else (x * r).mul_(weight)
        moved = _project(xt, x, mean, r, None)
        ctx.save_for_backward(x, xt, weight, bias, mean, r, moved)
        return y, moved.clone() if weight is None else moved * weight

    @staticmethod
    def backward(ctx: Any, gy: Tensor, gt: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, xt, weight, bias, mean, r, moved = ctx.saved_tensors
        unit = x * r if mean is None else (x - mean).mul_(r)
        if mean is None:
            gx = _project(gy, x, None, r, weight)
            gw = None if weight is None else (gy * unit).flatten(0, -2).sum(0)
            gb = None
        else:
            wanted = [True, weight is not None, bias is not None]
            gx, gw, gb = aten.native_layer_norm_backward(gy, x, [x.shape[-1]], mean, r, weight, bias, wanted)
        gxt = _project(gt, x, mean, r, weight)
        scale = r / -x.shape[-1]
        # products in memory that is at hand: large tensors cost more to get than to fill
        both = gt * moved
        bent = _summed(both, weight)
        if weight is not None:
            gw += both.flatten(0, -2).sum(0)
        beside = _summed(torch.mul(gt, unit, out=both), weight)
        along = _summed(torch.mul(xt, unit, out=both), None)
        gx.addcmul_(unit, bent.mul_(scale)).addcmul_(gxt, along.mul_(scale)).addcmul_(moved, beside.mul_(scale))
        return gx, gxt, gw, gb, None, None


def _project(z: Tensor, x: Tensor, mean: Tensor | None, r: Tensor, weight: Tensor | None) -> Tensor:
    """Returns P (w ⊙ z)."""
    if mean is not None:
        return aten.native_layer_norm_backward(z, x, [x.shape[-1]], mean, r, weight, None, [True, False, False])[0]
    z = z if weight is None else z * weight
    along = (z * x).sum(-1, keepdim=True).mul_(r.pow(3) / -x.shape[-1])
    return (z * r).addcmul_(x, along)


def _summed(x: Tensor, weight: Tensor | None) -> Tensor:
    return x.sum(-1, keepdim=True) if weight is None else (x @ weight)[..., None]


class _Gelu(torch.autograd.Function):
    """y = x Φ(x); the tangent is (Φ + x φ) ẋ, and its derivative in x is (2 − x²) φ ẋ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, xt: Tensor) -> tuple[Tensor, Tensor]:
        below = torch.mul(x, math.sqrt(0.5)).erf_().add_(1).mul_(0.5)
        y = x * below
        square = x * x
        bell = torch.mul(square, -0.5).exp_()
        slope = below.addcmul_(x, bell, value=_BELL)
        bent = square.sub_(2).mul_(bell).mul_(xt)  # times −_BELL
        ctx.save_for_backward(slope, bent)
        return y, slope * xt

    @staticmethod
    def backward(ctx: Any, gy: Tensor, gt: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        slope, bent = ctx.saved_tensors
        return (gy * slope).addcmul_(gt, bent, value=-_BELL), gt * slope


_BELL = 1 / math.sqrt(2 * math.pi)


class _Attention(torch.autograd.Function):
    """softmax(q kᵀ/√K + mask) v and its tangent. Values and tangents are stacked, so that products share a call."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, qt: Tensor, k: Tensor, kt: Tensor, v: Tensor, vt: Tensor, mask: Tensor | None, kept: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        rows, keys = q.shape[-2], k.shape[-2]
        queries = torch.cat([q, qt], dim=-2).mul_(1 / math.sqrt(q.shape[-1]))
        both_keys = torch.cat([k, kt], dim=-2)
        scores = queries @ both_keys[..., :keys, :].mT
        st = scores[..., rows:, :] + queries[..., :rows, :] @ both_keys[..., keys:, :].mT
        a = torch.softmax(scores[..., :rows, :] if mask is None else scores[..., :rows, :] + mask, dim=-1)
        moved = a * st
        total = moved.sum(-1, keepdim=True)
        shares = torch.cat([a, moved.addcmul_(a, total, value=-1)], dim=-2)
        if kept is not None:
            shares.unflatten(-2, (2, rows)).mul_(kept.unsqueeze(-3))
        out = shares @ v
        ctx.save_for_backward(queries, both_keys, v, vt, a, st, total, shares, kept)
        return out[..., :rows, :], out[..., rows:, :] + shares[..., :rows, :] @ vt

    @staticmethod
    def backward(ctx: Any, gy: Tensor, gt: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        queries, both_keys, v, vt, a, st, total, shares, kept = ctx.saved_tensors
        rows, keys = gy.shape[-2], a.shape[-1]
        down = torch.cat([gy, gt], dim=-2)
        gv, gvt = shares.mT @ down, shares[..., :rows, :].mT @ down[..., rows:, :]
        back = down @ v.mT
        ga, gat = back[..., :rows, :] + down[..., rows:, :] @ vt.mT, back[..., rows:, :]
        if kept is not None:
            ga, gat = ga * kept, gat * kept
        gm = gat - (gat * a).sum(-1, keepdim=True)
        ga = torch.addcmul(ga, gm, st).addcmul_(gat, total, value=-1)
        both = torch.cat([a * (ga - (ga * a).sum(-1, keepdim=True)), gm * a], dim=-2)  # of the scores and of their tangents
        by_key = both @ both_keys[..., :keys, :]
        gq = by_key[..., :rows, :] + both[..., rows:, :] @ both_keys[..., keys:, :]
        gk, gkt = both.mT @ queries, both[..., rows:, :].mT @ queries[..., :rows, :]
        scale = 1 / math.sqrt(queries.shape[-1])
        return gq.mul_(scale), by_key[..., rows:, :].mul_(scale), gk, gkt, gv, gvt, None, None


RULES: dict[Callable, Callable] = {
    F.linear: of_linear, Tensor.unflatten: of_unflatten, Tensor.addmm_: of_added_product, F.gelu: of_gelu, F.relu: of_relu,
    F.silu: of_silu, F.dropout: of_dropout, F.layer_norm: of_layer_norm, F.rms_norm: of_rms_norm,
    F.scaled_dot_product_attention: of_attention,
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), of_sum),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), of_product),
    **dict.fromkeys(
        (Tensor.flatten, Tensor.transpose, Tensor.roll, Tensor.flip, Tensor.__getitem__, Tensor.cumsum,
         Tensor.sum, Tensor.mean, Tensor.to, Tensor.float, Tensor.expand, Tensor.unsqueeze, Tensor.squeeze, Tensor.view,
         Tensor.reshape, Tensor.contiguous, Tensor.gather),
        of_each,
    ),
    **dict.fromkeys((Tensor.expand_as, Tensor.view_as, Tensor.type_as), of_likeness),
    **dict.fromkeys((Tensor.dim, Tensor.size, Tensor.numel, Tensor.is_floating_point, torch.zeros_like, torch.ones_like), of_shape),
}  # fmt: skip
