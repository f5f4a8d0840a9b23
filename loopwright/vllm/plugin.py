"""The entry point `vllm.general_plugins`: makes vLLM know our folders. It runs in each of vLLM's processes.

A request may have a depth of its own: `vllm_xargs: {"depth": 2}` over HTTP, `SamplingParams(extra_args={"depth": 2})` in Python.
The depth that vLLM was started with is the most, because slots are made for it. Tokens of all requests go through the core
together; a request that asked for less keeps its state in the later steps. A batch runs as many steps as its deepest request,
outside of CUDA graphs; a captured graph always runs all of them.

What vLLM cannot run of a looped model is refused by its name, from the config, before anything is built.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from loopwright.model.config import LoopedConfig
from loopwright.model.parts.adapters import ADAPTERS
from loopwright.schema import is_whole, options_of
from loopwright.untrusted import shown

ARCHITECTURE = "LoopedForCausalLM"
TRIED = ("0.25", "0.32")  # docs/vllm.md says what was run with each
FIELD = "depth"
# what a page of keys can hold of a pooled state: a chunk's mean would need the running sums of single earlier tokens
POOLINGS = ("prefix", "token", "none")


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


def register() -> None:
    """Tells vLLM which class runs our models, and has their requests salted by depth; the second call does nothing."""
    from vllm import ModelRegistry, __version__

    if ARCHITECTURE in ModelRegistry.get_supported_archs():
        return
    tried = f"which was tried with vLLM {' and '.join(TRIED)}"
    try:
        from vllm.v1.engine.input_processor import InputProcessor

        salted_inputs = salting(InputProcessor.process_inputs)
    except (ImportError, AttributeError) as error:  # what we do not serve must not keep vLLM from serving other models
        warnings.warn(f"loopwright: vLLM {__version__} does not take our plug-in, {tried} ({error})", stacklevel=2)
        return
    if ".".join(__version__.split(".")[:2]) not in TRIED:
        warnings.warn(f"loopwright: our plug-in, {tried}, is untested with {__version__}", stacklevel=2)
    ModelRegistry.register_model(ARCHITECTURE, "loopwright.vllm.model:LoopedForVllm")
    InputProcessor.process_inputs = salted_inputs


def salting(process: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that makes a request of what a client sent, with the salt of its depth for our models.

    vLLM finds cached blocks by their tokens alone. It has a salt per request for that, but no place where a model could set it.
    """
    from vllm.exceptions import VLLMValidationError

    @functools.wraps(process)
    def process_and_salt(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = process(self, *args, **kwargs)
        config = self.model_config.hf_config
        if isinstance(config, LoopedConfig) and request.sampling_params is not None:
            try:
                depth = wanted_depth(request.sampling_params.extra_args, config)
                check_runner(depth, config, second=self.vllm_config.use_v2_model_runner)
            except ValueError as error:  # by its own class vLLM knows the client's mistakes: 400, with the message
                raise VLLMValidationError(str(error), parameter="depth") from None
            request.cache_salt = salted(request.cache_salt, depth)
        return request

    return process_and_salt


def check_expressible(config: LoopedConfig, *, ranks: int = 1, quantised: str | None = None) -> None:
    """Raises a ValueError that names each part that vLLM cannot run, on `ranks` devices that share each layer."""
    problems = [
        *_parts(config),
        *(_shared(config, ranks) if ranks > 1 else ()),
        *(_quantised(config, quantised) if quantised else ()),
    ]
    if problems:
        raise ValueError(f"vLLM cannot run this model: {'; '.join(problems)}")


def _parts(config: LoopedConfig) -> Iterator[str]:
    if config.read_out != "last":
        yield f"read_out is {config.read_out!r}, and it reads the last step alone; allowed: last"
    for index, spec in enumerate(config.adapters):
        pooling = spec.get("pooling", "prefix")
        if pooling not in POOLINGS:
            yield f"adapters[{index}] ({spec['kind']}) has pooling {pooling!r}; allowed: {', '.join(POOLINGS)}"
        elif config.sliding_window is not None and "pooling" in options_of(ADAPTERS[spec["kind"]]) and pooling == "prefix":
            yield (
                f"adapters[{index}] ({spec['kind']}) has pooling 'prefix', which reads all tokens, beside sliding_window "
                f"{config.sliding_window}; allowed: token, none"
            )


def _shared(config: LoopedConfig, ranks: int) -> Iterator[str]:
    if config.adapters:
        kinds = ", ".join(dict.fromkeys(spec["kind"] for spec in config.adapters))
        yield f"adapters ({kinds}) are not split; allowed with them: tensor_parallel_size 1 (got {ranks}) and data parallelism"
    if config.qk_norm == "full":
        yield f"qk_norm 'full' reads all heads; allowed with it: tensor_parallel_size 1 (got {ranks}) and data parallelism"
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if getattr(config, name) % ranks:
            yield f"{name} is {getattr(config, name)}, not a multiple of tensor_parallel_size {ranks}"


def _quantised(config: LoopedConfig, method: str) -> Iterator[str]:
    if config.adapters:
        kinds = ", ".join(dict.fromkeys(spec["kind"] for spec in config.adapters))
        yield f"adapters ({kinds}) read plain weights; allowed with them: no quantization (got {method})"
