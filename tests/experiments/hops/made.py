"""Results of the multi-hop study made by hand, in the shape that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.hops.measure import DEPTHS
from experiments.hops.plan import ARMS


def made(arm: str, seed: int = 0, *, exact: Mapping[int, float], **more: Any) -> dict[str, Any]:
    """A run with this accuracy by number of hops at the depth of its arm: a guess at smaller depths, half way up beyond it."""
    layers, steps = ARMS[arm]
    depths = DEPTHS["hops"] if steps > 1 else (1,)

    def at(value: float) -> list[float]:
        return [0.25 if depth < steps else value if depth == steps else (1 + value) / 2 for depth in depths]

    return {
        "name": f"compared/{arm}/as the recipe/{seed}", "group": "compared", "arm": arm, "label": "as the recipe", "seed": seed,
        "changes": [], "laid_over": [], "parameters": 1000 * layers, "flops": 1e6 * layers * steps, "train_seconds": 1.0,
        "valid": [[499, 1.0], [999, 0.1 + seed]],
        "tests": {str(hops): {"rows": 500, "depth": list(depths), "exact": at(value)} for hops, value in exact.items()},
    } | more  # fmt: skip
