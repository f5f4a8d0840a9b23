"""Weights that are no plain tensors, as quantising makes them: where their numbers lie, and what a folder may say of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from loopwright.kernels.gate import is_plain
from loopwright.untrusted import check_plain, shown

# those whose loaders read what is there, and fetch no code: of transformers' others some ask the hub for kernels
METHODS = ("bitsandbytes", "torchao")
MOST_SETTINGS = 2**20  # characters


def plain_tensors(x: Tensor) -> Iterator[Tensor]:
    """Yields the tensors that hold the numbers of a weight: itself, or those that it is made of."""
    flatten = None if is_plain(x) else _made_of(x)
    if flatten is None:
        yield x
        return
    names, _ = flatten()
    for name in names:
        yield from plain_tensors(getattr(x, name))


def _made_of(x: Tensor) -> Any:
    """Returns torch's way to ask a tensor for those that it is made of; None of one that holds its numbers itself."""
    return getattr(x, "__tensor_flatten__", None)


def check_unquantised(what: str, model: nn.Module) -> None:
    """Raises where a weight of a model is quantised, so that no folder of float weights can hold it."""
    found = next(_quantised(model), None)
    if found is not None:
        raise ValueError(
            f"{what}: the weights are quantised ({found}); allowed: plain float weights, so save the model before it is quantised, "
            "or quantise it while transformers loads it (AutoModelForCausalLM.from_pretrained(folder, quantization_config=…)), "
            "which save_pretrained keeps"
        )


def _quantised(model: nn.Module) -> Iterator[str]:
    for name, x in model.state_dict(keep_vars=True).items():
        if not isinstance(x, Tensor):
            yield f"{name} is a {type(x).__name__}"
        elif getattr(x, "placements", None) is None and (_made_of(x) or not x.is_floating_point()):  # not merely sharded
            yield f"{name} is a {type(x).__name__} of {str(x.dtype).removeprefix('torch.')}"


def wrong_quantisation(settings: Any) -> Iterator[str]:
    """Yields what is wrong with a config's `quantization_config`, which transformers reads and we keep."""
    if settings is None:
        return
    if not isinstance(settings, Mapping):
        yield f"quantization_config is {shown(settings)}; allowed: a mapping with a quant_method"
        return
    method = settings.get("quant_method")
    if method not in METHODS:
        yield f"quantization_config: quant_method is {shown(method)}; allowed: {', '.join(METHODS)}"
        return
    try:
        check_plain(settings, "quantization_config")
    except ValueError as error:
        yield str(error)
        return
    if (size := len(json.dumps(settings))) > MOST_SETTINGS:
        yield f"quantization_config has {size:,} characters; allowed: at most {MOST_SETTINGS:,}"
