"""Optimisers (AdamW, Huginn's Adam, and Muon for the matrices of blocks with AdamW for the rest), schedules, averages of weights.

Torch's optimisers do the work; what torch lacks stands first. What stands here is who gets which rate and decay, and state by
parameter name, so that a checkpoint needs no pickle and a fresh optimiser goes on bit for bit.

A schedule returns the factor, from 0 to 1, by which every learning rate is scaled. Update u runs from 0 to N − 1. Warm-up over W
updates gives (u + 1) / (W + 1), so that the first update already moves and update W is the first at the full rate; a decay that
begins at update B of N is at progress (u − B) / (N − B), so that the last update still moves and the floor would be reached at
update N, where it stays. A run no longer than its warm-up warms up to its end.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from loopwright.checkpoints.families.family import listed
from loopwright.model.layers import NORMS
from loopwright.model.parts.part import Part as ModelPart
from loopwright.schema import Kinds, check_choice, check_form, check_number, check_whole, refuse_unknown
from loopwright.training.trainable import choose, counted, nearest
from loopwright.untrusted import shown


class EllisAdam(torch.optim.Optimizer):
    """Huginn's Adam (Geiping et al., arXiv 2502.05171). Its step is an angle:
    p ← p − rate / max(1, rms) / (1 − β₁ᵗ) · atan2(m, √(v / (1 − β₂ᵗ))).

    m and v begin as the first gradient and its square, and are then corrected as if they had begun at 0, as in the public code:
    the first step is 2.2 times the rate with betas 0.9 and 0.95. rms is that of g / √v over a tensor: where a gradient is larger
    than those before it, the tensor moves less. At the full rate an update takes `weight_decay` of a weight away, whatever the
    rate is, and less as the schedule lowers it. `eps` only keeps √v off 0.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float], eps: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            group["base_lr"] = group["lr"]  # the full rate, which a schedule leaves alone

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Moves the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return loss

    def _move(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state.update(step=torch.tensor(0.0), exp_avg=grad.clone(), exp_avg_sq=grad.square())
        state["step"] += 1
        steps = state["step"].item()  # it stays on the CPU: nobody waits for a device
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(grad, 1 - first)
        square.mul_(second).addcmul_(grad, grad, value=1 - second).clamp_(min=group["eps"] ** 2)
        rms = grad.square().div_(square).mean().sqrt()
        angle = torch.atan2(mean, square.sqrt().div_(math.sqrt(1 - second**steps)))
        share = group["lr"] / group["base_lr"] if group["base_lr"] else 0.0
        parameter.mul_(1 - share * group["weight_decay"])
        parameter.sub_(angle.div_(rms.clamp(min=1.0)), alpha=group["lr"] / (1 - first**steps))


def whole(tensor: Tensor) -> Tensor:
    """Returns all of a tensor; of one that is spread over processes, each must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread(tensor: Tensor, like: Tensor) -> Tensor:
    """Returns a whole tensor spread over processes as another one is."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


PACKS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class PackedMuon(torch.optim.Muon):
    """Muon of matrices that stand on one another: the rows of a pack are one matrix, as where a model holds them in one.

    The momentum is that of each parameter, so a run can go on with the packs or without them.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Moves the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for names in packs(group["param_names"]):
                together = [p for n, p in zip(group["param_names"], group["params"], strict=True) if n in names]
                moving = [p for p in together if p.grad is not None]
                if moving:
                    self._move(moving, {k: v for k, v in group.items() if k in self.defaults})
        return loss

    def _move(self, parameters: list[nn.Parameter], options: Mapping[str, Any]) -> None:
        grads = [whole(_given(p.grad)) for p in parameters]
        before = [whole(self.state[p].get("momentum_buffer", torch.zeros_like(p))) for p in parameters]
        joined = nn.Parameter(torch.cat([whole(p.detach()) for p in parameters]))
        joined.grad = torch.cat(grads)
        muon = torch.optim.Muon([joined], **options)
        muon.state[joined]["momentum_buffer"] = momentum = torch.cat(before)
        muon.step()
        sizes = [len(grad) for grad in grads]
        for p, moved, kept in zip(parameters, joined.detach().split(sizes), momentum.split(sizes), strict=True):
            p.copy_(spread(moved, p))
            self.state[p]["momentum_buffer"] = spread(kept.clone(), p)


def packs(names: Iterable[str]) -> list[list[str]]:
    """Returns names of weights in packs: the maps of one module that PACKS puts together, every other weight alone."""
    together: dict[tuple[str, int | str], list[str]] = {}
    for name in names:
        module, _, map_name = name.removesuffix(".weight").rpartition(".")
        places = [place for place, pack in enumerate(PACKS) if map_name in pack]
        together.setdefault((module, places[0]) if places else (name, ""), []).append(name)
    return list(together.values())


def _given(grad: Tensor | None) -> Tensor:
    assert grad is not None
    return grad


DECAYS = ("matrices", "all")
MUON_STACKS = ("prelude", "core", "coda", "injection")
# what a torch optimiser keeps of a parameter, and whether that has the parameter's shape (else it is one number)
Slots = Mapping[type[torch.optim.Optimizer], Mapping[str, bool]]
SLOTS: Slots = {
    torch.optim.AdamW: {"step": False, "exp_avg": True, "exp_avg_sq": True},
    torch.optim.Muon: {"momentum_buffer": True},
    PackedMuon: {"momentum_buffer": True},
    EllisAdam: {"step": False, "exp_avg": True, "exp_avg_sq": True},
}


class Optimiser:
    """Torch optimisers as one. Parameters have names; every rate is its own base times one factor, that of the schedule.

    `slots` says what a torch optimiser that is not in SLOTS keeps of a parameter: a checkpoint is checked against it.
    """

    def __init__(self, optimisers: Sequence[torch.optim.Optimizer], lr: float, slots: Slots | None = None) -> None:
        self.optimisers, self.slots = list(optimisers), {**SLOTS, **(slots or {})}
        unknown = [type(optimiser).__name__ for optimiser in self.optimisers if type(optimiser) not in self.slots]
        if unknown:
            raise ValueError(
                f"optim: nothing says what {unknown[0]} keeps of a parameter; give its `slots`: {{{unknown[0]}: {{name: …}}}}"
            )
        self.base_lr = lr
        self.factor = 1.0
        for group in self.param_groups:
            group["base_lr"] = group["lr"]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all of them."""
        return [group for optimiser in self.optimisers for group in optimiser.param_groups]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name."""
        return {n: p for group in self.param_groups for n, p in zip(group["param_names"], group["params"], strict=True)}

    @property
    def lr(self) -> float:
        """The rate as it is now, of whatever has no other of its own."""
        return self.base_lr * self.factor

    def set_factor(self, factor: float) -> None:
        """Sets every rate to its base times `factor`."""
        self.factor = factor
        for group in self.param_groups:
            group["lr"] = group["base_lr"] * factor

    def step(self) -> None:
        """Moves the parameters."""
        for optimiser in self.optimisers:
            optimiser.step()

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """Returns all state as "parameter/slot" tensors, whole where they are spread over processes (then all must ask).

        A parameter that has never had a gradient has none.
        """
        tensors: dict[str, Tensor] = {}
        for optimiser in self.optimisers:
            for name, parameter in _named(optimiser).items():
                tensors |= {f"{name}/{slot}": whole(value) for slot, value in optimiser.state.get(parameter, {}).items()}
        return tensors

    def state_forms(self) -> dict[str, Tensor]:
        """Returns tensors without content in the names, shapes and dtypes that `state_tensors` can have."""
        forms: dict[str, Tensor] = {}
        for optimiser in self.optimisers:
            for name, parameter in _named(optimiser).items():
                for slot, alike in self.slots[type(optimiser)].items():
                    shape = parameter.shape if alike else ()
                    forms[f"{name}/{slot}"] = torch.empty(shape, dtype=torch.float32, device="meta")
        return forms

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on from the state of another optimiser of the same parameters."""
        forms = self.state_forms()
        unknown = [name for name in tensors if name not in forms]
        if unknown:
            near = difflib.get_close_matches(unknown[0], forms, n=1) or ["nothing like it"]
            raise ValueError(f"optimiser state: {unknown[0]} is of no trained parameter; near: {near[0]}")
        wrong = [name for name, value in tensors.items() if value.shape != forms[name].shape]
        if wrong:
            raise ValueError(
                f"optimiser state: {wrong[0]} is {list(tensors[wrong[0]].shape)}; allowed: {list(forms[wrong[0]].shape)}"
            )
        for optimiser in self.optimisers:
            state: dict[int, dict[str, Tensor]] = {}
            for place, (name, parameter) in enumerate(_named(optimiser).items()):
                slots = self.slots[type(optimiser)]
                stored = [slot for slot in slots if f"{name}/{slot}" in tensors]
                if stored and len(stored) < len(slots):
                    raise ValueError(f"optimiser state: {name} has only {', '.join(stored)}; allowed: {', '.join(slots)}")
                # a copy: torch would keep the very tensors it is given
                values = {slot: tensors[f"{name}/{slot}"].clone() for slot in stored}
                if values:
                    state[place] = {slot: spread(value, parameter) if slots[slot] else value for slot, value in values.items()}
            optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


@dataclass(frozen=True)
class ParameterRule:
    """What a name pattern sets for the parameters it decides: its own rate or decay, or that they are not trained."""

    lr: float | None = None
    weight_decay: float | None = None
    freeze: bool = False


Trained = Mapping[str, tuple[nn.Parameter, ParameterRule]]


class AdamW:
    """AdamW. `decay` says what weight decay reaches: "matrices" (no norm, no bias) or "all" (as in STARS).

    `train` lists patterns of parameter names ("adapters.*", "coda.-1.*"): what none of them names is frozen. Left out: all that
    the model itself leaves trainable. `parts` maps patterns to an `lr` or `weight_decay` of their own (of what `decay`
    reaches), or to `freeze: true`; where several match, the last one decides alone.
    """

    slots: ClassVar[Slots] = SLOTS

    def __init__(
        self,
        lr: float,
        betas: list[float] | tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decay: str = "matrices",
        parts: dict[str, Any] | None = None,
        train: list[str] | None = None,
    ) -> None:
        self.lr = check_number("optim.lr", lr, above=0)
        self.betas = _betas(betas)
        self.eps = check_number("optim.eps", eps, above=0)
        self.weight_decay = check_number("optim.weight_decay", weight_decay, least=0)
        self.decay = check_choice("optim", "decay", decay, DECAYS)
        self.parts = _read_parts(parts or {})
        self.train = _read_patterns(train)

    def prepare(self, model: nn.Module) -> None:
        """Freezes what `train` does not name and what `parts` freezes, and gives everything trainable fp32 master weights; before
        the model is wrapped."""
        if self.train is not None:
            choose(model, self.train)
        freeze(model, self.parts)
        as_masters(model)

    def __call__(self, model: nn.Module) -> Optimiser:
        """Returns the optimiser of a prepared model."""
        return Optimiser(self.over(model, _trainable(model, self.parts)), self.lr, self.slots)

    def groups(self, model: nn.Module, trained: Trained) -> list[dict[str, Any]]:
        """Returns the parameters as groups of equal rate and decay, in the form that torch's optimisers take."""
        return _groups(trained, self.lr, self.weight_decay, _decayed(model, self.decay))

    def over(self, model: nn.Module, trained: Trained) -> list[torch.optim.Optimizer]:
        """Returns torch's optimiser of these parameters of a model; none where there are none."""
        groups = self.groups(model, trained)
        fused = all(parameter.device.type in ("cpu", "cuda") for parameter, _ in trained.values())
        return [torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=fused)] if groups else []


class Ellis(AdamW):
    """Huginn's Adam (ELLISAdam): a step by atan2, tensors held back where their gradient is unusually large, moments that begin
    as the first gradient's.

    The options are those of AdamW, but `weight_decay` is what an update takes of a weight at the full rate, whatever that rate is.
    """

    def over(self, model: nn.Module, trained: Trained) -> list[torch.optim.Optimizer]:
        """Returns the optimiser of these parameters of a model; none where there are none."""
        groups = self.groups(model, trained)
        return [EllisAdam(groups, lr=self.lr, betas=self.betas, eps=self.eps)] if groups else []


class Muon:
    """Muon for the matrices of blocks and injection, AdamW at `adam_lr` for the rest: embeddings, head, adapters, norms, biases.

    Muon moves a matrix along the nearest orthogonal matrix to its momentum, by torch's own Newton–Schulz. `scale` is how a
    rate is fitted to a matrix [A, B]: "original", √max(1, A/B), or "match_rms_adamw", 0.2·√max(A, B), which takes rates
    that suit AdamW. `packed` takes q, k and v of a layer as one matrix, and gate and up. The other options are those of AdamW,
    for all parameters.
    """

    def __init__(
        self,
        lr: float,
        adam_lr: float,
        momentum: float = 0.95,
        scale: str = "original",
        betas: list[float] | tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decay: str = "matrices",
        parts: dict[str, Any] | None = None,
        train: list[str] | None = None,
        packed: bool = False,
    ) -> None:
        self.packed = packed
        self.lr = check_number("optim.lr", lr, above=0)
        self.momentum = check_number("optim.momentum", momentum, least=0, below=1)
        self.scale = check_choice("optim", "scale", scale, ("original", "match_rms_adamw"))
        self.rest = AdamW(check_number("optim.adam_lr", adam_lr, above=0), betas, eps, weight_decay, decay, parts, train)

    def prepare(self, model: nn.Module) -> None:
        """Freezes, and gives everything trainable fp32 master weights, as AdamW's own does."""
        self.rest.prepare(model)

    def __call__(self, model: nn.Module) -> Optimiser:
        """Returns the optimiser of a prepared model."""
        trained, matrices = _trainable(model, self.rest.parts), _linear_weights(model, MUON_STACKS)
        mine = {name: pair for name, pair in trained.items() if name in matrices}
        if not mine:
            raise ValueError(f"optim: muon has nothing to move: no trainable matrix in {', '.join(MUON_STACKS)}; use adamw")
        others = {name: pair for name, pair in trained.items() if name not in matrices}
        groups = _groups(mine, self.lr, self.rest.weight_decay, _decayed(model, self.rest.decay))
        if self.packed:
            _check_packs([name for name, _ in model.named_parameters() if name in matrices], groups)
        kind = PackedMuon if self.packed else torch.optim.Muon
        muon = kind(groups, lr=self.lr, momentum=self.momentum, adjust_lr_fn=self.scale)
        return Optimiser([muon, *self.rest.over(model, others)], self.lr)


def freeze(model: nn.Module, parts: Mapping[str, ParameterRule]) -> None:
    """Makes the parameters untrainable that `parts` freezes."""
    for name, part in _deciding(model, parts).items():
        if part.freeze:
            model.get_parameter(name).requires_grad_(False)


def as_masters(model: nn.Module) -> None:
    """Casts every trainable parameter to float32, in place; what is frozen keeps its dtype."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def clip(parameters: Iterable[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scales the gradients down where their common norm is above `max_norm`; returns the norm before, without waiting for it."""
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    if max_norm is None:
        return whole(nn.utils.get_total_norm([parameter.grad for parameter in trained]))
    return whole(nn.utils.clip_grad_norm_(trained, max_norm))


# who gets what


def _trainable(model: nn.Module, parts: Mapping[str, ParameterRule]) -> dict[str, tuple[nn.Parameter, ParameterRule]]:
    """The parameters that are trained, by name, each with what `parts` sets for it."""
    deciding = _deciding(model, parts)
    trained = {n: (p, deciding.get(n, ParameterRule())) for n, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("optim: the model has no trainable parameter")
    left = [name for name, (_, part) in trained.items() if part.freeze]
    coarse = [f"{name} is {p.dtype}" for name, (p, _) in trained.items() if p.dtype != torch.float32]
    if left or coarse:
        raise ValueError(f"optim: {(left or coarse)[0]} and trainable; the model must be prepared first")
    return trained


def _deciding(model: nn.Module, parts: Mapping[str, ParameterRule]) -> dict[str, ParameterRule]:
    """The part that decides for each parameter that any pattern matches; every pattern must decide for one."""
    names = [name for name, _ in model.named_parameters()]
    forms = {pattern: counted(pattern, model) for pattern in parts}
    last = {name: [pattern for pattern, form in forms.items() if fnmatchcase(name, form)][-1:] for name in names}
    for pattern in parts:
        if [pattern] in last.values():
            continue
        if any(fnmatchcase(name, forms[pattern]) for name in names):
            raise ValueError(f"optim: parts: {pattern!r} decides nothing: later patterns match all that it matches")
        raise ValueError(f"optim: parts: {pattern!r} matches no parameter; {nearest(pattern, model, names)}")
    return {name: parts[patterns[0]] for name, patterns in last.items() if patterns}


def _groups(trained: Trained, lr: float, weight_decay: float, decayed: set[str]) -> list[dict[str, Any]]:
    """Groups of equal rate and decay, each parameter in exactly one."""
    groups: dict[tuple[float, float], list[tuple[str, nn.Parameter]]] = {}
    for name, (parameter, part) in trained.items():
        drop = weight_decay if part.weight_decay is None else part.weight_decay
        key = (lr if part.lr is None else part.lr, drop if name in decayed else 0.0)
        groups.setdefault(key, []).append((name, parameter))
    return [{"params": pairs, "lr": rate, "weight_decay": drop} for (rate, drop), pairs in groups.items()]


def _decayed(model: nn.Module, decay: str) -> set[str]:
    """The names of what weight decay reaches. A norm or bias with one row per step is no matrix, and a part may spare some."""
    if decay == "all":
        return {name for name, _ in model.named_parameters()}
    spared = {id(m.get_parameter(name)) for m in model.modules() if isinstance(m, ModelPart) for name in m.undecayed}
    norms = tuple(NORMS.values())
    inside = {id(p) for module in model.modules() if isinstance(module, norms) for p in module.parameters()}
    named = [(name, p) for name, p in model.named_parameters() if p.dim() >= 2 and id(p) not in inside | spared]
    return {name for name, _ in named if name.split(".")[-1] != "bias"}


def _linear_weights(model: nn.Module, stacks: Sequence[str]) -> set[str]:
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return {f"{name}.weight" for name in linear if name.split(".")[0] in stacks}


def _check_packs(matrices: Iterable[str], groups: Sequence[Mapping[str, Any]]) -> None:
    """Raises a ValueError where the maps of a pack do not move alike: what is one matrix has one rate and one decay."""
    alike = [{name for name, _ in group["params"]} for group in groups]
    for pack in packs(matrices):
        if any(set(pack) & group for group in alike) and not any(set(pack) <= group for group in alike):
            raise ValueError(f"optim: packed: {', '.join(pack)} must all train, at one rate and decay; or packed: false")


def _named(optimiser: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    groups = optimiser.param_groups
    return {n: p for group in groups for n, p in zip(group["param_names"], group["params"], strict=True)}


# checks


def _read_parts(parts: Mapping[str, Any]) -> dict[str, ParameterRule]:
    rules = {}
    for pattern, data in parts.items():
        where = f"optim: parts: {pattern}"
        check_form(where, data, "dict")
        refuse_unknown(where, data, ("lr", "weight_decay", "freeze"))
        if not data or (data.get("freeze") and len(data) > 1):
            raise ValueError(f"{where}: {dict(data)}; allowed: lr, weight_decay or both, or freeze: true alone")
        for name, form in (("lr", "float"), ("weight_decay", "float"), ("freeze", "bool")):
            if name in data:
                check_form(f"{where}: {name}", data[name], form)
                if form == "float":
                    check_number(f"optim.parts.{pattern}.{name}", data[name], least=0)
        rules[pattern] = ParameterRule(**data)
    return rules


def _read_patterns(patterns: Sequence[str] | None) -> list[str] | None:
    if patterns is None:
        return None
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f"optim: train is {shown(patterns)}; allowed: a list of patterns of parameter names")
    return list(patterns)


def _betas(values: Sequence[float]) -> tuple[float, float]:
    if not isinstance(values, list | tuple) or len(values) != 2:
        raise ValueError(f"optim.betas must be two numbers >= 0 and < 1 (got {values!r})")
    first, second = (float(check_number("optim.betas", value, least=0, below=1)) for value in values)
    return first, second


OPTIMISERS = Kinds("optim", {"adamw": AdamW, "ellis-adam": Ellis, "muon": Muon}, offers=["prepare", "__call__"])


# schedules


class Constant:
    """The full rate after the warm-up."""

    def __init__(self, warmup: int = 0) -> None:
        self.warmup = check_whole("schedule.warmup", warmup, 0)

    def __call__(self, update: int, updates: int) -> float:
        """Returns the factor of one update."""
        return _warm(update, self.warmup)


class Falling:
    """From the full rate down to `floor` of it. Abstract: a kind says along which `shape`, and from when on."""

    shape: str

    def __init__(self, warmup: int = 0, floor: float = 0.0) -> None:
        self.warmup = check_whole("schedule.warmup", warmup, 0)
        self.floor = check_number("schedule.floor", floor, least=0, most=1)

    def __call__(self, update: int, updates: int) -> float:
        """Returns the factor of one update."""
        fall = SHAPES[self.shape](_progress(update, self.begin(updates), updates))
        return _warm(update, self.warmup) * (self.floor + (1 - self.floor) * fall)

    def begin(self, updates: int) -> int:
        """Returns the update at which the rate begins to fall."""
        return self.warmup


class CosineSchedule(Falling):
    """Half a cosine from the full rate down to `floor` of it."""

    shape = "cosine"


class Linear(Falling):
    """A straight line from the full rate down to `floor` of it."""

    shape = "linear"


class WarmupStableDecay(Falling):
    """The full rate, then down to `floor` of it over the last `decay` updates, along a straight line or 1 − √progress."""

    def __init__(self, decay: int, warmup: int = 0, shape: str = "linear", floor: float = 0.0) -> None:
        super().__init__(warmup, floor)
        self.decay = check_whole("schedule.decay", decay, 0)
        if shape not in SHAPES:
            raise ValueError(f"schedule: shape is {shown(shape)}; allowed: {', '.join(SHAPES)}")
        self.shape = shape

    def begin(self, updates: int) -> int:
        """Returns the update at which the rate begins to fall."""
        return max(self.warmup, updates - self.decay)


def cut_short(schedule: Callable[[int, int], float], updates: int) -> list[str]:
    """Returns, in a line each, what a run of so many updates is too short for."""
    warmup, decay = getattr(schedule, "warmup", 0), getattr(schedule, "decay", 0)
    left = updates - warmup
    if left <= 0:
        return [f"schedule: warmup is {warmup:,} and the run has {updates:,} updates: it never comes to the full rate"]
    if decay > left:
        return [f"schedule: decay is {decay:,} and the run has {left:,} updates after its warmup: the rate falls over these alone"]
    return []


def _warm(update: int, warmup: int) -> float:
    return min(1.0, (update + 1) / (warmup + 1))


def _progress(update: int, begin: int, end: int) -> float:
    """How far an update is between two others, from 0 to 1."""
    if update < begin:
        return 0.0
    return 1.0 if update >= end else (update - begin) / (end - begin)


# how far the rate has still to fall, by progress
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "sqrt": lambda x: 1 - math.sqrt(x),
}
SCHEDULES = Kinds(
    "schedule", {"constant": Constant, "cosine": CosineSchedule, "linear": Linear, "wsd": WarmupStableDecay}, offers=["__call__"]
)


# averages


class Average:
    """An exponential moving average of trainable parameters: a ← d·a + (1 − d)·p after each update.

    With a `warmup`, d grows with the update u (from 0) as min(decay, (u + 1) / (u + 1 + warmup)), so that the start is soon
    forgotten. d is a function of the update alone: the averages are all there is to save.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, decay: float, warmup: int) -> None:
        self.decay = decay
        self.warmup = warmup
        self.parameters = dict(parameters)
        self.values = {name: parameter.detach().float().clone() for name, parameter in self.parameters.items()}

    def decay_at(self, update: int) -> float:
        """Returns d of one update."""
        return min(self.decay, (update + 1) / (update + 1 + self.warmup))

    @torch.no_grad()
    def take_in(self, update: int) -> None:
        """Moves the averages towards the parameters as they are after update `update`."""
        now = [parameter.detach().float() for parameter in self.parameters.values()]
        get_ema_multi_avg_fn(self.decay_at(update))(list(self.values.values()), now, update)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Lets the averages stand in the place of the parameters for a while; the parameters come back bit for bit."""
        kept = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        try:
            self._fill(self.values)
            yield
        finally:
            self._fill(kept)

    def state_tensors(self) -> dict[str, Tensor]:
        """Returns the averages by parameter name, whole where they are spread over processes (then all must ask)."""
        return {name: whole(value) for name, value in self.values.items()}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on from averages of the same parameters."""
        odd = sorted(set(tensors) ^ set(self.values))
        odd += [name for name in sorted(self.values) if name in tensors and tensors[name].shape != self.values[name].shape]
        if odd:
            raise ValueError(f"average: does not fit the trainable parameters: {listed(odd)}")
        for name, value in self.values.items():
            value.copy_(spread(tensors[name], value))

    @torch.no_grad()
    def _fill(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])


class EMA:
    """The exponential moving average as a recipe names it."""

    def __init__(self, decay: float = 0.999, warmup: int = 0) -> None:
        check_number("average.decay", decay, least=0, below=1)
        check_whole("average.warmup", warmup, 0)
        self.decay = decay
        self.warmup = warmup

    def __call__(self, model: nn.Module) -> Average:
        """Returns the average of a model's trainable parameters, as they are now."""
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        return Average(trained, decay=self.decay, warmup=self.warmup)


AVERAGES: dict[str, type] = {"ema": EMA}
