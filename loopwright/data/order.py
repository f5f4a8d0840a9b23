"""The order of samples: a pure function of the place, so that resuming in the middle of an epoch takes one whole number."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from loopwright.values import check_whole


class Order:
    """Says which sample stands at place k = 0, 1, 2 … of an endless order in which every epoch holds each sample once.

    Epoch k // length has a permutation of its own, drawn from (seed, epoch) alone: nobody has to remember what came before.
    Without shuffling the epochs are all 0, 1, … length − 1. With `repeat` every `batch` samples come that many times in a row,
    and an epoch takes as many times longer: what a loader does whose workers all read the same stream.
    """

    def __init__(self, length: int, seed: int = 0, shuffled: bool = True, *, repeat: int = 1, batch: int = 1) -> None:
        check_whole("order: samples", length, 1)
        check_whole("order: seed", seed, 0)
        if repeat < 1 or batch < 1:
            raise ValueError(f"order: batches of {batch} repeated {repeat} times; allowed: 1 or more of each")
        self.length, self.seed, self.shuffled = length, seed, shuffled
        self.repeat, self.batch = repeat, batch
        self._held: dict[int, Tensor] = {}

    def indices(self, start: int, count: int) -> Tensor:
        """Returns the samples at places start … start + count − 1, over the borders of epochs [count]."""
        if start < 0 or count < 0:
            raise ValueError(f"order: {count} samples from place {start}; allowed: 0 or more of each")
        if self.repeat == 1:
            return self._fresh(start, count)
        parts, place, end = [], start, start + count
        while place < end:
            number, inside = divmod(place, self.batch)
            taken = min(end - place, self.batch - inside)
            parts.append(self._fresh(number // self.repeat * self.batch + inside, taken))
            place += taken
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)

    def _fresh(self, start: int, count: int) -> Tensor:
        """The same where nothing is repeated."""
        parts, place, end = [], start, start + count
        while place < end:
            epoch, first = divmod(place, self.length)
            taken = min(end - place, self.length - first)
            parts.append(self._epoch(epoch)[first : first + taken])
            place += taken
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)

    def share(self, start: int, count: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """Returns what process `rank` of `world` takes of the `count` samples from `start`: the samples and their places.

        Each process takes one run of neighbours; together they take each place once.
        """
        if not 0 <= rank < world:
            raise ValueError(f"order: process {rank} of {world}; allowed: 0 to {world - 1}")
        if count % world:
            raise ValueError(f"order: a batch of {count} samples over {world} processes; allowed: a multiple of {world}")
        size = count // world
        first = start + rank * size
        return self.indices(first, size), torch.arange(first, first + size)

    def _epoch(self, epoch: int) -> Tensor:
        if not self.shuffled:
            epoch = 0
        if epoch not in self._held:
            while len(self._held) > 1:  # a batch lies in two epochs at most, unless it is longer than one
                self._held.pop(next(iter(self._held)))
            self._held[epoch] = _permutation(self.length, self.seed, epoch) if self.shuffled else torch.arange(self.length)
        return self._held[epoch]


def _permutation(length: int, seed: int, epoch: int) -> Tensor:
    # from the raw stream, which numpy never changes; its own `permutation` may differ from one release to the next
    draws = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(length)
    return torch.from_numpy(np.argsort(draws, kind="stable"))
