"""The depth of a single request: `vllm_xargs: {"depth": 2}` over HTTP, `SamplingParams(extra_args={"depth": 2})` in Python.

The depth that vLLM was started with is the most, because slots are made for it. Tokens of all requests go through the core
together; a request that asked for less keeps its state in the later steps. A batch runs as many steps as its deepest request,
outside of CUDA graphs; a captured graph always runs all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from loopwright.model.config import LoopedConfig
from loopwright.untrusted import shown
from loopwright.values import is_whole

FIELD = "depth"


def wanted_depth(extra: Mapping[str, Any] | None, config: LoopedConfig) -> int:
    """Returns the depth of a request by its extra arguments; that of the config where they name none."""
    most, value = config.check_depth(None), (extra or {}).get(FIELD)
    if value is None:
        return most
    if not config.is_looped:
        config.check_depth(value)
    if not is_whole(value, 1, most):
        raise ValueError(f"depth: {shown(value)}; allowed: a whole number from 1 to {most}, the depth that vLLM was started with")
    return value


def check_runner(depth: int, config: LoopedConfig, *, second: bool) -> None:
    """Raises where a request asks for a depth of its own and the model runner cannot tell requests apart."""
    if depth != config.check_depth(None) and not second:
        raise ValueError(
            f"depth: {depth} for one request, where vLLM's V1 model runner has depth {config.depth} for all; "
            "allowed: the V2 runner (VLLM_USE_V2_MODEL_RUNNER=1), or another depth at the start (hf_overrides)"
        )


def salted(salt: str | None, depth: int) -> str:
    """Returns the salt of a request's cached blocks: the same tokens have other keys at another depth."""
    return f"depth={depth}" if salt is None else f"depth={depth};{salt}"


class DepthTable:
    """The depth of every request in flight, and of every token of a batch."""

    def __init__(self, config: LoopedConfig, requests: int, tokens: int, device: torch.device) -> None:
        self.config, self.depth = config, config.check_depth(None)
        self.requests = np.full(requests, self.depth, dtype=np.int32)
        # a captured graph reads this very tensor, so it is filled and never replaced
        self.tokens = torch.full((tokens,), self.depth, dtype=torch.int32, device=device)

    def add(self, index: int, extra: Mapping[str, Any] | None) -> None:
        """Notes a request at its index."""
        self.requests[index] = wanted_depth(extra, self.config)

    def of_batch(self, indices: np.ndarray, lengths: np.ndarray, padded: int) -> dict[str, Any]:
        """Returns what `forward` is told of a batch: of each request its index and its new tokens, `padded` tokens in all."""
        depths = self.requests[indices]
        each = np.repeat(depths, lengths)
        self.tokens[: len(each)] = torch.from_numpy(each)
        return {"depths": self.tokens[:padded], "steps": int(depths.max(initial=1))}

    def of_dummies(self, tokens: int) -> dict[str, Any]:
        """Returns what `forward` is told when it is warmed up or captured: all steps, and the tensor that says who takes them."""
        return {"depths": self.tokens[:tokens], "steps": self.depth}
