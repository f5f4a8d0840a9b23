"""JSRR, the Jacobian penalty of STARS: the mean over rows of ‖J v‖², J the derivative of one step in the state, v of norm 1.

With a random v the mean of ‖J v‖² is ‖J‖²_F / n (n = tokens × channels of a row): the penalty shrinks the whole derivative and
does not estimate the spectral radius, which `metrics.spectrum` measures.

What flows back. `fd` and `exact` share the last step's own pass: s_T comes out of the same call. Their gradient is that of the
number they return, through the map and through the state it is taken at; it costs nothing more, since the loss goes the same
way. Sharing allows nothing else: a difference with only one of its ends cut off from the trajectory leaves a term of size 1/ε.
`detach_state` trains the map alone, as the released code does, and pays for it: `fd` then takes the difference of two moved
copies, s + εv and s − εv, and `exact` a second pass.

Rows and directions are a pure function of (seed, place of the row in the order of samples, place of the token in the row,
channel), so neither the number of processes nor padding nor a resumed run changes them. A place comes once; rows that do not
know theirs take the update into account.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from loopwright.data.batch import Batch
from loopwright.metrics.dual import product
from loopwright.model.backbone import StepRunner
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.parts.state import hashed_normal, mix, signed
from loopwright.model.passes import Pass
from loopwright.model.traced import cached_constant
from loopwright.schema import suggest
from loopwright.training.compile import CompiledStep
from loopwright.training.gradient import random_state, set_random_state
from loopwright.training.objectives.readout import wide
from loopwright.training.rollout import Penalty, Rollout, evaluating

POOL = 1 << 18  # normal values that directions are cut from
_LOW = (1 << 64) - 1
LARGEST_ERROR = 0.05  # of a finite difference against the exact product
LEAST_SHARE = 1e-6  # of the rows; where fewer are probed the penalty says nothing


class Directions:
    """Random directions. Each token takes a window of one long row of normal values, from a hashed place on.

    Hashing every value (`hashed_normal`) would cost more than the rest of a finite difference; so only places are hashed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, update: int, rows: Tensor, places: Tensor, like: Tensor, valid: Tensor | None = None) -> Tensor:
        """Returns a direction of norm 1 for each of `rows` [N], zero where not `valid` [N, T]: [N, T, D], as wide as `like`.

        `places` [N or 1, T] says where in its row each token stands.
        """
        key = rows * signed(0x9E3779B97F4A7C15) + signed(_mix_int(_mix_int(self.seed) + update))
        start = mix(mix(key)[:, None] + places * signed(0xD1342543DE82EF95)) & (POOL - 1)
        v = windows(self.seed, like.device, like.shape[-1])[start].to(torch.promote_types(like.dtype, torch.float32))
        if valid is not None:
            v = v * valid[..., None]
        return v / norms(v).clamp(min=torch.finfo(v.dtype).tiny)


@cached_constant(16)
def windows(seed: int, device: torch.device, width: int) -> Tensor:
    """Returns all windows of the seed's row of normal values, which closes to a ring: a view [POOL, width] of it."""
    pool = hashed_normal(seed, torch.arange(POOL // 256, device=device)[None], 256).flatten()
    return pool[torch.arange(POOL + width - 1, device=device) % POOL].unfold(0, width, 1)


class JacobianProbe:
    """The rows that are probed (`index` None: all), a direction for each [N, T, D], and which of their tokens are real."""

    def __init__(self, index: Tensor | None, v: Tensor, valid: Tensor | None) -> None:
        self.index, self.v, self.valid = index, v, valid

    def pick(self, x: Tensor) -> Tensor:
        """Returns the probed rows of a tensor."""
        return x if self.index is None else x.index_select(0, self.index)

    def real(self, x: Tensor) -> Tensor:
        """Returns rows [N, T, D] with zeros at padding."""
        return x if self.valid is None else x * self.valid[..., None]


def token_places(valid: Tensor | None, s: Tensor) -> Tensor:
    """Returns the place of each token among the real ones of its row [N or 1, T]."""
    return torch.arange(1, s.shape[1] + 1, device=s.device)[None] if valid is None else valid.long().cumsum(1)


def norms(x: Tensor) -> Tensor:
    """Returns the norm of each row [N, 1, 1] of x [N, T, D]."""
    return torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)


def _mix_int(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _LOW
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _LOW
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _LOW
    return x ^ (x >> 31)


class JacobianPenalty(Penalty):
    """The mean over rows of ‖J v‖², one direction v of norm 1 per row (over its real tokens), by one of four modes.

    `fd`: a difference (Φ(s + εv) − Φ(s)) / ε computed in the last step as further rows of the batch. `exact`: the product
    itself, from the last step's own pass. `paper`: the product at s_T, after `power_steps` − 1 rounds of v ← J v / ‖J v‖, all
    with a gradient. `released`: as the public code has it, vᵀJ at s_T, v of norm 1 over the whole batch, padding included.
    The last two apply the last step once more; dropout is held over the rounds of `paper`.

    `share` is the part of the rows that is probed (1/n; a quarter in `fd`, else all), `eps` the step of the difference
    relative to the norm of a row's state (None: by precision, see EPS).
    """

    def __init__(
        self,
        mode: str = "fd",
        power_steps: int = 1,
        share: float | None = None,
        eps: float | None = None,
        seed: int = 0,
        detach_state: bool | None = None,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"jacobian: unknown mode {mode!r}; {suggest(mode, MODES)}")
        if power_steps < 1 or (power_steps > 1 and mode != "paper"):
            raise ValueError(f"jacobian: power_steps {power_steps} in mode {mode!r}; allowed: 1, or more in mode 'paper'")
        if share is None:
            share = 0.25 if mode == "fd" else 1.0
        if not LEAST_SHARE <= share <= 1 or abs(share * round(1 / share) - 1) > 0.01:
            raise ValueError(f"jacobian: share {share}; allowed: 1, 1/2, 1/3, 1/4 …")
        if eps is not None and (mode != "fd" or eps <= 0):
            raise ValueError(f"jacobian: eps {eps} in mode {mode!r}; allowed: a number above 0, in mode 'fd'")
        if mode == "released" and detach_state is False:
            raise ValueError("jacobian: detach_state false in mode 'released'; allowed: true, as the released code has it")
        self.mode, self.power_steps, self.every, self.eps = mode, power_steps, round(1 / share), eps
        self.detach_state = mode == "released" if detach_state is None else detach_state
        self.in_last_step = mode in ("fd", "exact")
        self.directions = Directions(seed)
        self.random = False  # whether the step drew random numbers (dropout) when it was last watched

    def run_last_step(
        self, step: StepRunner, s: Tensor, e: Tensor, t: int, p: Pass, batch: Batch, update: int
    ) -> tuple[Tensor, Tensor]:
        """Returns the state after the step, and the penalty (0 in the modes that are not computed there)."""
        if not self.in_last_step:
            return step(s, e, t, p), s.new_zeros(())
        site = PenaltySite(step, s, e, t, p, self.probe(s, batch, update), detached=self.detach_state)
        y, jv = site.exact() if self.mode == "exact" else self._difference(site)
        return y, self.mean(jv, batch)

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> Tensor:
        """Returns the penalty of a rollout: what was measured on the way, else measured now, at the cost of another step."""
        if not model.config.is_looped:
            raise ValueError("jacobian: this model has no core, so no step to take the derivative of; allowed: core_layers above 0")
        return rollout.probe if self.in_last_step and rollout.probe is not None else MODES[self.mode](self, model, rollout)

    def first_notes(self, model: LoopedForCausalLM, path: Callable[[], Rollout], processes: int) -> list[str]:
        """Says how good a finite difference is here, and where its gradient may jump."""
        if self.mode != "fd" or not model.config.is_looped:
            return []
        error = self.self_check(model, path())
        verdict = "" if error <= LARGEST_ERROR else f"; warning: above {LARGEST_ERROR:.0%}, set eps or take mode exact"
        notes = [f"jacobian: the finite difference is {error:.2%} off the exact product{verdict}"]
        if processes > 1 and model.config.mlp == "relu":
            notes.append(
                "jacobian: over ReLU the gradient of a finite difference jumps where rounding changes the sign of a unit; "
                "another number of processes may then give another run (mode exact does not jump)"
            )
        return notes

    def self_check(self, model: LoopedForCausalLM, rollout: Rollout) -> float:
        """Returns how far ‖J v‖² by difference is off, relative to the exact one, on the first row and without dropout.

        0 in the modes that take no difference. Rounding, where ε is too small for the precision, makes it large at once; what
        ε itself does to J v is odd in v and leaves no trace in ‖J v‖² to first order.
        """
        if self.mode != "fd":
            return 0.0
        device, dtype = rollout.e.device, next(model.parameters()).dtype
        one = torch.zeros(1, dtype=torch.long, device=device)
        s, e, p = rollout.before[:1].detach(), rollout.e[:1].detach(), rollout.p.rows(one)
        valid = rollout.batch.valid[:1]
        probe = JacobianProbe(None, self.directions(rollout.plan.update, one, token_places(valid, s), s, valid), valid)
        with evaluating(model), torch.no_grad():
            site = PenaltySite(model.step, s, e, rollout.last_step, p, probe, detached=self.detach_state)
            difference = site.in_batch(self._eps(s))[1]
            with torch.autocast(device.type, enabled=False):
                true = PenaltySite(model.step, s.to(dtype), e.to(dtype), rollout.last_step, p, probe).exact()[1]
        return float((difference.square().sum() / true.square().sum() - 1).abs())

    def probe(self, s: Tensor, batch: Batch, update: int, *, padding: bool = False) -> JacobianProbe:
        """Returns the rows of a batch that are probed at an update, and their directions; `padding`: not left out."""
        rows = torch.arange(len(batch), device=s.device) if batch.rows is None else batch.rows.to(s.device, non_blocking=True)
        index = None
        if self.every > 1:
            index = self.probed(rows, len(batch))
            rows = rows.index_select(0, index)
        valid = None
        if not padding and batch.padded:
            valid = batch.valid if index is None else batch.valid.index_select(0, index)
        update = update if batch.rows is None else 0  # a place in the order of samples comes once: it says the update too
        v = self.directions(update, rows, token_places(valid, s), s, valid)
        return JacobianProbe(index, v, valid)

    def probed(self, rows: Tensor, count: int) -> Tensor:
        """Returns which of `count` neighbouring rows are probed: those whose place is a multiple of n.

        Where n divides the count, without asking the device how many they are.
        """
        if count % self.every:
            return (rows % self.every == 0).nonzero().squeeze(1)
        return torch.arange(0, count, self.every, device=rows.device) + (-rows[0]) % self.every

    def mean(self, jv: Tensor, batch: Batch) -> Tensor:
        """Returns the sum of squares over the number of rows that a batch of this size has probed in the mean.

        So the mean over the parts of a batch is that of the whole, however the probed rows fall to the parts.
        """
        return jv.square().sum() * (self.every / len(batch))

    def _eps(self, s: Tensor) -> float:
        return default_eps(s) if self.eps is None else self.eps

    def _difference(self, site: PenaltySite) -> tuple[Tensor, Tensor]:
        """Returns the state after the step and J v by difference: inside the batch, or beside it where there is dropout."""
        device, eps = site.s.device, self._eps(site.s)
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            if self.random:
                raise ValueError("jacobian: mode 'fd' holds dropout fixed, which a captured pass cannot; allowed: mode 'exact'")
            return site.in_batch(eps)
        before = random_state(device)
        if not self.random:
            result = site.in_batch(eps)
            if torch.equal(random_state(device), before):
                return result
            set_random_state(device, before)  # the copies got masks of their own: as if this pass had not been
        result = site.second_pass(eps)
        self.random = not torch.equal(random_state(device), before)
        return result


class PenaltySite:
    """One step at one place, and the ways to have J v with it, of the rows that are probed."""

    def __init__(
        self, step: StepRunner, s: Tensor, e: Tensor, t: int, p: Pass, probe: JacobianProbe, *, detached: bool = False
    ) -> None:
        self.step, self.s, self.e, self.t, self.p, self.probe, self.detached = step, s, e, t, p, probe, detached

    def exact(self) -> tuple[Tensor, Tensor]:
        """Returns s′ and J v from one pass of dual numbers (a second pass where the state is detached)."""
        here, jv = self.product(self.probe.v)
        return (self.step(self.s, self.e, self.t, self.p) if self.detached else self.joined(here)), jv

    def product(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Returns s′ of the probed rows and J v."""
        e, p = self.rows(self.probe.index)
        s = self.probe.pick(self.s.detach() if self.detached else self.s)
        if isinstance(self.step, CompiledStep):
            here, jv = self.step.product(s, v.to(s.dtype), e, self.t, p)
        else:
            here, jv = product(lambda x: self.step(x, e, self.t, p), s, v.to(s.dtype))
        return here, self.probe.real(wide(jv))

    def in_batch(self, eps: float) -> tuple[Tensor, Tensor]:
        """Returns s′ and J v by difference, the moved states as further rows of the batch: one call of the step."""
        moved, distance = self.moved(eps)
        every = torch.arange(self.s.shape[0], device=self.s.device)
        picked = every if self.probe.index is None else self.probe.index
        e, p = self.rows(torch.cat([every, *[picked] * len(moved)]))
        after = self.step(torch.cat([self.s, *moved]), e, self.t, p)
        y, *ends = after.split([every.numel(), *[picked.numel()] * len(moved)])
        return y, self.slope(ends[0], ends[1] if self.detached else self.probe.pick(y), distance)

    def second_pass(self, eps: float) -> tuple[Tensor, Tensor]:
        """Returns s′ and J v by difference, both ends with the same dropout masks: equal shapes from an equal random state.

        One end of each probed row and half of the other rows run in a first call, the other ends and the other half in a
        second: the work of `in_batch`, in two calls. So the rows of the two halves share their masks in pairs.
        """
        moved, distance = self.moved(eps)
        every = torch.arange(self.s.shape[0], device=self.s.device)
        index = every if self.probe.index is None else self.probe.index
        others = every if self.detached else self.rest()
        probed, left = index.numel(), others.numel()
        half = (left + 1) // 2
        before = random_state(self.s.device)
        perturbed = self.call(moved[0], index, others[:half])
        set_random_state(self.s.device, before)
        base = self.call(moved[1] if self.detached else self.probe.pick(self.s), index, others[left - half :])
        y = torch.cat([perturbed[probed:], base[probed + 2 * half - left :]])  # an odd number: one row is in both halves
        if not self.detached:
            y = torch.cat([base[:probed], y]).index_select(0, torch.cat([index, others]).argsort())
        return y, self.slope(perturbed[:probed], base[:probed], distance)

    def call(self, ends: Tensor, index: Tensor, others: Tensor) -> Tensor:
        """Returns the states after the step of one end of the probed rows, and of some others as they are."""
        e, p = self.rows(torch.cat([index, others]))
        return self.step(torch.cat([ends, self.s.index_select(0, others)]), e, self.t, p)

    def moved(self, eps: float) -> tuple[list[Tensor], Tensor]:
        """Returns the probed states moved along v (and against it, where detached), and the distance of both ends [N, 1, 1]."""
        s = self.probe.pick(self.s.detach() if self.detached else self.s)
        size = norms(self.probe.real(wide(s.detach())))
        size = eps * torch.where(size > 0, size, math.sqrt(s.shape[1] * s.shape[2]))  # zeros: as if the entries were 1
        shift = (size * self.probe.v).to(s.dtype)
        return ([s + shift, s - shift], 2 * size) if self.detached else ([s + shift], size)

    def slope(self, perturbed: Tensor, base: Tensor, distance: Tensor) -> Tensor:
        """Returns the difference of two ends over the distance between them."""
        return self.probe.real((wide(perturbed) - wide(base)) / distance)

    def joined(self, here: Tensor) -> Tensor:
        """Returns s′ of the whole batch, given that of the probed rows."""
        if self.probe.index is None:
            return here
        rest = self.rest()
        e, p = self.rows(rest)
        others = self.step(self.s.index_select(0, rest), e, self.t, p)
        return torch.cat([here, others]).index_select(0, torch.cat([self.probe.index, rest]).argsort())

    def rest(self) -> Tensor:
        """Returns the rows that are not probed; how many they are is known without asking the device."""
        if self.probe.index is None:
            return torch.empty(0, dtype=torch.long, device=self.s.device)
        probed = torch.zeros(self.s.shape[0], dtype=torch.int8, device=self.s.device).index_fill(0, self.probe.index, 1)
        return probed.argsort(stable=True)[: self.s.shape[0] - self.probe.index.numel()]

    def rows(self, index: Tensor | None) -> tuple[Tensor, Pass]:
        """Returns the input and the pass of some rows."""
        return (self.e, self.p) if index is None else (self.e.index_select(0, index), self.p.rows(index))


# the modes that take a step of their own


def once_more(penalty: JacobianPenalty, model: LoopedForCausalLM, rollout: Rollout) -> Tensor:
    """Returns what the last step would have measured on the way."""
    return penalty.run_last_step(
        rollout.step, rollout.before, rollout.e, rollout.last_step, rollout.p, rollout.batch, rollout.plan.update
    )[1]


def at_last_state(penalty: JacobianPenalty, model: LoopedForCausalLM, rollout: Rollout) -> Tensor:
    """Returns ‖J v‖² at s_T after the power steps: the penalty as the paper writes it."""
    probe = penalty.probe(rollout.last, rollout.batch, rollout.plan.update)
    site = PenaltySite(model.step, rollout.last, rollout.e, rollout.last_step, rollout.p, probe, detached=penalty.detach_state)
    before = random_state(rollout.e.device)
    jv = site.product(probe.v)[1]
    for _ in range(penalty.power_steps - 1):
        set_random_state(rollout.e.device, before)
        jv = site.product(jv / norms(jv).clamp(min=torch.finfo(jv.dtype).tiny))[1]
    return penalty.mean(jv, rollout.batch)


def as_released(penalty: JacobianPenalty, model: LoopedForCausalLM, rollout: Rollout) -> Tensor:
    """Returns ‖vᵀJ‖² at s_T over the whole tensor, v of norm 1 over all of it: by double backward, as the public code."""
    probe = penalty.probe(rollout.last, rollout.batch, rollout.plan.update, padding=True)
    v = probe.v / math.sqrt(len(rollout.batch) / penalty.every)  # each row has norm 1; so parts of a batch add up to the whole
    e, p = PenaltySite(model.step, rollout.last, rollout.e, rollout.last_step, rollout.p, probe).rows(probe.index)
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        s = probe.pick(rollout.last.detach()).requires_grad_()
        y = model.step(s, e, rollout.last_step, p)
        (vj,) = torch.autograd.grad(y, s, v.to(y.dtype), create_graph=True)
        value = wide(vj).square().sum()
    return value if torch.is_grad_enabled() else value.detach()


def default_eps(s: Tensor) -> float:
    """Returns the relative step of a difference in the precision that a step on s runs in."""
    kind = torch.get_autocast_dtype(s.device.type) if torch.is_autocast_enabled(s.device.type) else s.dtype
    if kind == torch.float32 and s.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        return TF32_EPS
    return EPS[kind]


# rounding over ε against curvature times ε: about the square root of the rounding, times what a step's many sums add
EPS = {torch.float64: 1e-6, torch.float32: 3e-3, torch.float16: 3e-2, torch.bfloat16: 0.1}
TF32_EPS = 3e-2
MODES: dict[str, Callable[[JacobianPenalty, LoopedForCausalLM, Rollout], Tensor]] = {
    "fd": once_more, "exact": once_more, "paper": at_last_state, "released": as_released,
}  # fmt: skip
