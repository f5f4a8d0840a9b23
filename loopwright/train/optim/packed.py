"""Muon that moves several maps of one input as one matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from loopwright.train.optim.spread import spread, whole

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
    found: dict[tuple[str, int | str], list[str]] = {}
    for name in names:
        module, _, map_name = name.removesuffix(".weight").rpartition(".")
        places = [place for place, pack in enumerate(PACKS) if map_name in pack]
        found.setdefault((module, places[0]) if places else (name, ""), []).append(name)
    return list(found.values())


def _given(grad: Tensor | None) -> Tensor:
    assert grad is not None
    return grad
