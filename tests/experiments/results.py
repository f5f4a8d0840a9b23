"""Results made by hand: losses of passages that are known, in the shape that the studies write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from loopwright.evaluation.text import HeldOut

PASSAGES = 80
TEXTS = ("test", "ood")


def hard(seed: int = 0) -> Tensor:
    """What is hard about each passage."""
    return 3 + torch.randn(PASSAGES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def held_out(text: str, losses: Mapping[int, Tensor], *, likelihood: bool = True) -> dict[str, Any]:
    """A text of 80 passages, two a document, of 1 to 4 targets, with these losses per token by depth."""
    targets = torch.arange(PASSAGES) % 4 + 1
    rows = [each * targets for each in losses.values()]
    loss = tuple(float(row.sum() / targets.sum()) for row in rows)
    nothing = (None,) * len(rows)
    return asdict(HeldOut(
        text, 8, "document", PASSAGES // 2, PASSAGES, int(targets.sum()), 100, text, likelihood, "", tuple(losses),
        loss, nothing, nothing, nothing, nothing, tuple((torch.arange(PASSAGES) // 2).tolist()), tuple(targets.tolist()),
        tuple(tuple(row.tolist()) for row in rows),
    ))  # fmt: skip


def result(label: str, above: Mapping[int, float], seed: int = 0, **more: Any) -> dict[str, Any]:
    """One run whose loss lies so far above what is hard, by depth, on both texts."""
    texts = {text: held_out(text, {depth: hard() + value for depth, value in above.items()}) for text in TEXTS}
    given = {"name": f"main/{label}/{seed}", "group": "main", "label": label, "seed": seed, "system": "static", "texts": texts}
    numbers = {"trainable": 5, "kept": 100, "losses": [2.0, 1.0], "diagonals": None}
    return {**given, **numbers, **more}
