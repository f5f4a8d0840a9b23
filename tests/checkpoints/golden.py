"""Golden cases of whole models: the stored inputs and outputs, and decoding with a cache."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

import loopwright as lw
from tests.cases import gap


@dataclass
class Case:
    """One golden case; `seen` collects the outputs that were compared."""

    folder: Path

    def __post_init__(self) -> None:
        self.facts = json.loads((self.folder / "case.json").read_text())
        self.values = load_file(self.folder / "golden.safetensors")
        self.tolerance = self.facts["tolerance"]["max_abs"]
        self.model = lw.load(self.folder)
        self.seen: set[str] = set()

    def compare(self, name: str, value: Tensor, keep: Tensor | None = None) -> None:
        """Asserts that a value is the stored one, whole numbers exactly; `keep` [B, T] leaves out padding."""
        expected = self.values[name]
        assert value.shape == expected.shape, f"{name}: {tuple(value.shape)} against {tuple(expected.shape)}"
        if keep is not None:
            lead = value.dim() - keep.dim() if name.endswith(("hidden_states", "step_logits")) else 0
            keep = keep.bool()
            value, expected = (v[:, keep] if lead else v[keep] for v in (value, expected))
        if expected.is_floating_point():
            assert gap(value, expected) <= self.tolerance, f"{name}: off by {gap(value, expected)}"
        else:
            assert torch.equal(value, expected), name
        self.seen.add(name)

    def assert_all_compared(self) -> None:
        """Asserts that no stored output was passed over."""
        assert self.seen == set(self.facts["outputs"])


def short(folder: Path) -> str:
    """Returns the name of a case for a test's id, with the tree it stands in."""
    return f"{folder.parent.parent.name}-{folder.name}"


@torch.no_grad()
def decode(
    model: lw.LoopedForCausalLM, ids: Tensor, *, depth: int, state: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Returns the logits of a prefill of 5 tokens and then one token at a time."""
    cache = lw.LoopCache(model.config)
    pieces = []
    for start, end in [(0, 5), *((i, i + 1) for i in range(5, ids.shape[1]))]:
        out = model(
            ids[:, start:end],
            depth=depth,
            past_key_values=cache,
            initial_state=None if state is None else state[:, start:end],
            attention_mask=None if mask is None else mask[:, :end],
        )
        pieces.append(out.logits)
    return torch.cat(pieces, dim=1)
