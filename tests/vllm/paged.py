"""vLLM as our plug-in sees it, without vLLM: its attention over pages that it keeps by request, and the names that are imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Attention whose keys are kept by request; `batch` says which request each token of the pass belongs to."""

    batch: ClassVar[list[str]] = []

    def __init__(self, num_heads: int, head_size: int, scale: float, *, num_kv_heads: int, prefix: str, **others: Any) -> None:
        super().__init__()
        self.heads, self.groups, self.size, self.name = num_heads, num_kv_heads, head_size, prefix
        self.window = others.get("per_layer_sliding_window")
        self.kept: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = []
        for request, one, key, value in zip(self.batch, q, k, v, strict=True):
            kept = self.kept.setdefault(request, [])
            kept.append((key.view(self.groups, -1), value.view(self.groups, -1)))
            seen = kept if self.window is None else kept[-self.window :]
            keys, values = (torch.stack(side, dim=1)[None] for side in zip(*seen, strict=True))
            y = F.scaled_dot_product_attention(one.view(1, self.heads, 1, self.size), keys, values, enable_gqa=True)
            found.append(y.flatten())
        return torch.stack(found)


class InputProcessor:
    """Makes a request of what a client sent."""

    def __init__(self, config: Any, *, second: bool) -> None:
        self.model_config = SimpleNamespace(hf_config=config)
        self.vllm_config = SimpleNamespace(use_v2_model_runner=second)

    def process_inputs(self, extra: dict | None, salt: str | None = None) -> Any:
        return SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra), cache_salt=salt)


class ClientError(Exception):
    """What vLLM answers with 400."""

    def __init__(self, message: str, *, parameter: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class ModelRegistry:
    """Architectures by name."""

    classes: ClassVar[dict[str, str]] = {}

    @classmethod
    def get_supported_archs(cls) -> list[str]:
        return list(cls.classes)

    @classmethod
    def register_model(cls, name: str, place: str) -> None:
        cls.classes[name] = place


class DefaultModelState:
    """What vLLM's own state does with a batch of text: nothing."""

    def __init__(self, vllm_config: Any, model: nn.Module, encoder_cache: Any, device: Any) -> None:
        self.max_num_reqs, self.max_num_tokens = 4, 32

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        self.last = req_index

    def prepare_inputs(self, input_batch: Any, req_states: Any) -> dict:
        return {}

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict:
        return {}


class SplitLinear(nn.Linear):
    """One of vLLM's linear maps, on one device."""

    def __init__(self, fan_in: int, fan_out: int, *, bias: bool, quant_config: Any, prefix: str, return_bias: bool) -> None:
        assert not return_bias
        super().__init__(fan_in, fan_out, bias=bias)
        self.quant_config, self.prefix = quant_config, prefix


class ColumnParallelLinear(SplitLinear):
    """Splits what comes out."""


class RowParallelLinear(SplitLinear):
    """Splits what goes in."""


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> type[Attention]:
    """Puts the names that we import from vLLM where we look for them."""
    names: dict[str, dict[str, Any]] = {
        "vllm": {"ModelRegistry": type("Registry", (ModelRegistry,), {"classes": {}}), "__version__": "0.32.0"},
        "vllm.config": {"VllmConfig": object},
        "vllm.exceptions": {"VLLMValidationError": ClientError},
        "vllm.distributed": {"get_tensor_model_parallel_world_size": lambda: 1},
        "vllm.model_executor.layers.attention": {"Attention": type("Attention", (Attention,), {})},
        "vllm.model_executor.layers.linear": {"ColumnParallelLinear": ColumnParallelLinear, "RowParallelLinear": RowParallelLinear},
        "vllm.model_executor.model_loader.weight_utils": {"default_weight_loader": lambda to, weight: to.data.copy_(weight)},
        "vllm.v1.engine.input_processor": {"InputProcessor": type("Processor", (InputProcessor,), {})},
        "vllm.v1.worker.gpu.model_states.default": {"DefaultModelState": DefaultModelState},
    }  # fmt: skip
    for name, members in names.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            parent = ".".join(parts[:end])
            if parent not in sys.modules or parent == name:
                monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        for member, value in members.items():
            setattr(sys.modules[name], member, value)
    for name in ("model", "model_state", "parallel"):  # bound to what stands in for vLLM: gone after the test
        monkeypatch.delitem(sys.modules, f"loopwright.vllm.{name}", raising=False)
    return names["vllm.model_executor.layers.attention"]["Attention"]


def decode(
    forward: Callable[[Tensor, Tensor, list[int]], Tensor],
    prompts: Sequence[list[int]],
    new: int,
    chunks: Sequence[int] = (3, 1, 4),
) -> list[list[int]]:
    """Returns greedy tokens of requests that share every batch: prompts in chunks, then one token each, as vLLM schedules them.

    `forward` gets ids and positions [T] and the request of each token, and returns logits [T, V].
    """
    texts, done, made = [list(prompt) for prompt in prompts], [0] * len(prompts), [0] * len(prompts)
    turn = 0
    while any(count < new for count in made):
        ids, positions, owners, last = [], [], [], {}
        for index, text in enumerate(texts):
            if made[index] == new:
                continue
            size = min(chunks[(turn + index) % len(chunks)], len(text) - done[index])
            span = range(done[index], done[index] + size)
            ids += [text[i] for i in span]
            positions += span
            owners += [index] * size
            done[index] += size
            if done[index] == len(text):
                last[index] = len(ids) - 1
        logits = forward(torch.tensor(ids), torch.tensor(positions), owners)
        for index, place in last.items():
            texts[index].append(int(logits[place].argmax()))
            made[index] += 1
        turn += 1
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
