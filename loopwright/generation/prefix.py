"""Prompts that begin alike are run once: rows of requests that ended stay until their cells are needed.

What is kept may serve a request only where the keys would be the same: equal tokens, equal depth (later layers depend on it),
equal state seed and equal weights. A request that runs while the weights change has keys of both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from torch import nn

from loopwright.model.keys.pool import KeyPool, Row
from loopwright.model.quantised import plain_tensors

SHORTEST = 8  # tokens; a shorter prefix is run again as fast as it is copied


class Weights:
    """Which weights a model has, as two numbers: their address, and their version.

    The version changes by an optimizer's step, `load_state_dict` or a new tensor. torch counts no changes that are written through
    `tensor.data`, and none of tensors made under inference mode.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._gather()

    def _gather(self) -> None:
        # asked at every admission, for which walking through the modules is too slow
        self.tables = [(m._parameters, m._buffers, m._modules) for m in self.model.modules()]
        self.modules = self._children()

    def _children(self) -> list[int]:
        return [id(child) for _, _, modules in self.tables for child in modules.values()]

    def read(self) -> tuple[int, int]:
        """Returns both numbers as they are now."""
        if self._children() != self.modules:  # another module has tensors of its own
            self._gather()
        places = list(self.modules)
        versions: list[int] = []
        for parameters, buffers, _ in self.tables:
            for table in (parameters, buffers):
                for x in table.values():
                    for one in () if x is None else plain_tensors(x):
                        places.append(one.data_ptr())
                        versions.append(0 if one.is_inference() else one._version)
        address = hash(tuple(places))
        return address, hash((address, *versions))


@dataclass(eq=False)
class KeptPrefix:
    """A row with the tokens that it was given, and what else its keys depend on."""

    key: Hashable
    tokens: tuple[int, ...]
    row: Row

    def shared(self, tokens: Sequence[int]) -> int:
        """Returns how many of the first tokens stand here too, at every step and reading."""
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.tokens, tokens, strict=False)))
        return min(same, self.row.complete)


class Prefixes:
    """Rows that are kept after their requests, the longest unused first to go."""

    def __init__(self, pool: KeyPool) -> None:
        self.pool = pool
        self.kept: list[KeptPrefix] = []
        self.tokens = 0  # that were copied instead of run

    def keep(self, held: KeptPrefix) -> None:
        """Keeps a row instead of freeing it; one that is too short to be of use is freed."""
        if min(len(held.tokens), held.row.complete) < SHORTEST:
            self.pool.free(held.row)
        else:
            self.kept.append(held)

    def evict(self) -> bool:
        """Frees the row that was not used for the longest time; False where none is left."""
        if not self.kept:
            return False
        self.pool.free(self.kept.pop(0).row)
        return True

    def forget(self) -> None:
        """Frees all rows."""
        while self.evict():
            pass

    def fill(self, row: Row, key: Hashable, prompt: Sequence[int], running: Iterable[KeptPrefix]) -> int:
        """Copies the longest known beginning of a prompt into a new row and returns its length: the last token is always run."""
        fitting = [held for held in (*self.kept, *running) if held.key == key]
        best = max(fitting, key=lambda held: held.shared(prompt), default=None)
        length = 0 if best is None else min(best.shared(prompt), len(prompt) - 1)
        if best is None or length < SHORTEST:
            return 0
        self.pool.copy_prefix(best.row, row, length)
        if best in self.kept:
            self.kept.append(self.kept.pop(self.kept.index(best)))
        self.tokens += length
        return length
