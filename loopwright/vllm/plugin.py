"""The entry point `vllm.general_plugins`: makes vLLM know our folders. It runs in each of vLLM's processes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from loopwright.model.config import LoopedConfig
from loopwright.vllm.depths import check_runner, salted, wanted_depth

ARCHITECTURE = "LoopedForCausalLM"
TRIED = ("0.25", "0.32")  # docs/vllm.md says what was run with each


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
