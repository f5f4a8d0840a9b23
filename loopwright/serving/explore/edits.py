"""Edits as the page asks for them: a mapping with a kind and its fields, read strictly and made into a tap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from loopwright.analysis.trace.edit import at, check_edit, noise, patch, swap, zero
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import STACKS
from loopwright.model.taps import Tap
from loopwright.schema import refuse_unknown, suggest
from loopwright.serving.explore.passes import UnrolledPass, unrolled
from loopwright.serving.schema import Check, number, text, whole
from loopwright.untrusted import shown

MOST = 2**20  # of a step or layer: what is beyond the model is refused where the model is known
POINTS_TO_ZERO = ("mlp", "attention")
LARGEST_NOISE = 10.0


def _one_of(*words: str) -> Check:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"{name}: {shown(value)}; allowed: {', '.join(words)}")
        return value

    return check


_PLACE: dict[str, Check] = {"stack": _one_of(*STACKS), "layer": whole(0, MOST), "step": whole(0, MOST)}
# the fields of each kind; those of _NEEDED must be given
FIELDS: dict[str, dict[str, Check]] = {
    "zero": {"point": _one_of(*POINTS_TO_ZERO), **_PLACE},
    "noise": {"step": whole(0, MOST), "size": number(0, LARGEST_NOISE), "seed": whole(0)},
    "patch": {"step": whole(0, MOST), "prompt": text, "token": whole(0, MOST)},
    "swap": {"first": whole(0, MOST), "second": whole(0, MOST)},
}
_NEEDED = {"zero": ("point",), "noise": ("size",), "patch": ("step", "prompt"), "swap": ("first", "second")}


def read_edit(name: str, value: Any) -> dict[str, Any]:
    """Checks the fields of an edit; a place that is left out means every one."""
    if not isinstance(value, Mapping):
        raise ValueError(f'{name}: {shown(value)}; allowed: a mapping such as {{"kind": "zero", "point": "mlp", "layer": 0}}')
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise ValueError(f"{name}: unknown kind {shown(kind)}; {suggest(str(kind), FIELDS)}")
    fields = {key: item for key, item in value.items() if key != "kind" and item is not None}
    refuse_unknown(f"{name} ({kind})", fields, FIELDS[kind])
    missing = [key for key in _NEEDED[kind] if key not in fields]
    if missing:
        raise ValueError(f"{name} ({kind}): {missing[0]} is missing")
    return {"kind": kind} | {key: FIELDS[kind][key](f"{name}.{key}", item) for key, item in fields.items()}


def build_edit(
    spec: Mapping[str, Any], model: LoopedForCausalLM, ids: Sequence[int], plain: UnrolledPass, encode: Callable[[str], list[int]]
) -> Tap:
    """Returns the tap of a checked edit for a prompt whose unedited states are `plain`; raises where it would change nothing."""
    depth = len(plain.states)
    tap = MAKERS[spec["kind"]](spec, model, ids, plain, encode)
    check_edit(tap, model.config, depth)
    return tap


def _zero(spec: Mapping[str, Any], *_: Any) -> Tap:
    return zero(spec["point"], at(stack=spec.get("stack"), step=spec.get("step"), layer=spec.get("layer")))


def _noise(spec: Mapping[str, Any], *_: Any) -> Tap:
    return noise("state", at(stack="core", step=spec.get("step")), size=spec["size"], seed=spec.get("seed", 0))


def _patch(
    spec: Mapping[str, Any], model: LoopedForCausalLM, ids: Sequence[int], plain: UnrolledPass, encode: Callable[[str], list[int]]
) -> Tap:
    """The other prompt's state after one step, aligned at the end: its last token stands for our last, and so on backwards."""
    step, token, other_ids = spec["step"], spec.get("token"), encode(spec["prompt"])
    if step >= len(plain.states):
        raise ValueError(f"edit.step must be below {len(plain.states)}, the steps of the pass (got {step})")
    if token is not None and token >= len(ids):
        raise ValueError(f"edit.token must be below {len(ids)}, the tokens of the prompt (got {token})")
    other = unrolled(model, other_ids, step + 1).states[step]
    both = min(len(ids), len(other_ids))
    value = plain.states[step].clone()
    value[:, -both:] = other[:, -both:]
    chosen = torch.zeros(1, len(ids), dtype=torch.bool)
    chosen[:, -both:] = True
    if token is not None:
        if not chosen[0, token]:
            raise ValueError(
                f"edit.token: {token} has no partner; the other prompt has {len(other_ids)} tokens, aligned at the end"
            )
        chosen = torch.arange(len(ids))[None] == token
    return patch("state", at(stack="core", step=step), {("core", step, _last_layer(model)): value}, tokens=chosen)


def _swap(spec: Mapping[str, Any], model: LoopedForCausalLM, ids: Sequence[int], plain: UnrolledPass, *_: Any) -> Tap:
    first, second, steps = spec["first"], spec["second"], len(plain.states)
    if first == second or max(first, second) >= steps:
        raise ValueError(f"edit: swap takes two different steps below {steps} (got {first} and {second})")
    seen: dict[tuple[str, int, int], Tensor] = {("core", t, _last_layer(model)): plain.states[t] for t in (first, second)}
    return swap("state", seen, first, second)


def _last_layer(model: LoopedForCausalLM) -> int:
    return model.config.core_layers  # where a step shows its state: behind the last layer


MAKERS: dict[str, Callable[..., Tap]] = {"zero": _zero, "noise": _noise, "patch": _patch, "swap": _swap}
