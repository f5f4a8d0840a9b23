"""The places of a pass in the order in which they run: prelude, core step by step, coda. Statistics are rows of this list."""

from __future__ import annotations

from dataclasses import dataclass

from loopwright.model.config import LoopedConfig


@dataclass(frozen=True)
class Places:
    """How many layers each stack has and how many steps the core runs; a dense model has one stack and one step."""

    prelude: int
    core: int
    coda: int
    steps: int

    @classmethod
    def of(cls, config: LoopedConfig, depth: int) -> Places:
        """Returns the places of a pass at a depth."""
        return cls(config.prelude_layers, config.core_layers, config.coda_layers, depth if config.is_looped else 1)

    @property
    def count(self) -> int:
        """The number of layers as they are run: the realised depth."""
        return self.prelude + self.core * self.steps + self.coda

    @property
    def looped(self) -> slice:
        """Which places belong to the core."""
        return slice(self.prelude, self.prelude + self.core * self.steps)

    def index(self, stack: str, step: int, layer: int) -> int:
        """Returns where a layer of a stack stands at a step."""
        return {"prelude": 0, "core": self.prelude + step * self.core, "coda": self.count - self.coda}[stack] + layer

    def name(self, index: int) -> tuple[str, int, int]:
        """Returns (stack, step, layer) of a place: `index` read backwards."""
        if index < self.prelude:
            return "prelude", 0, index
        if index >= self.count - self.coda:
            return "coda", 0, index - (self.count - self.coda)
        return "core", *divmod(index - self.prelude, self.core)

    def one_step(self, step: int) -> list[int]:
        """Returns the places a model of one step would have run: prelude, the core at `step`, coda."""
        start = self.prelude + step * self.core
        return [*range(self.prelude), *range(start, start + self.core), *range(self.count - self.coda, self.count)]
