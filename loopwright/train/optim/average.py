"""Averages of the weights over the updates of a run, kept beside them in float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from loopwright.convert.family import listed
from loopwright.train.optim.optimisers import spread, whole
from loopwright.values import check_number, check_whole


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
