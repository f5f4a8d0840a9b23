"""Which stacks of a model have a fused form, and why the others have none: those run as they are, which is said once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from loopwright.kernels.gate import OLDEST, can_compile, is_plain, warn_once
from loopwright.model.layers import MLP, Attention, Block, Residual, RMSNorm
from loopwright.model.passes import STACKS

if TYPE_CHECKING:
    from loopwright.model.backbone import Backbone
    from loopwright.model.passes import Adaptation

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 512  # in float32, of several tokens at once: tensor cores would round, and without them torch's products soon win
KNOWN = {Block, Attention, MLP, Residual, RMSNorm, nn.Linear, nn.Identity}


def fused_stacks(model: Backbone, tokens: int) -> list[str]:
    """Returns the stacks that have a fused form for so many tokens at once; of the others it is said once why they have none."""
    stacks = [stack for stack in STACKS if len(getattr(model, stack))]
    reason = no_kernels(model, tokens)
    if reason is not None:
        warn_once(f"decode: no fused kernels: {reason}")
        return []
    reasons = {stack: unsupported_reason(model, stack) for stack in stacks}
    for stack, reason in reasons.items():
        if reason is not None:
            warn_once(f"decode: the {stack} runs without fused kernels: {reason}")
    return [stack for stack in stacks if reasons[stack] is None]


def no_kernels(model: Backbone, tokens: int) -> str | None:
    """Returns why no stack of a model can have a fused form for so many tokens at once, or None."""
    weight = model.embed_tokens.weight
    if weight.dtype not in DTYPES:
        return f"they are made for float32, bfloat16 and float16 (got {str(weight.dtype).removeprefix('torch.')})"
    if not weight.is_cuda or torch.version.cuda is None or torch.cuda.get_device_capability(weight.device) < OLDEST:
        return f"they need an NVIDIA GPU of compute capability {OLDEST[0]}.{OLDEST[1]} or later"
    if tokens > 1 and weight.dtype == torch.float32 and model.config.hidden_size > WIDEST:
        width = model.config.hidden_size
        return f"of several tokens at once in float32 they serve widths up to {WIDEST} (got {width}); bfloat16 is faster"
    return None if can_compile() else "Triton and a C compiler (gcc, clang) must be installed"


def unsupported_reason(model: Backbone, stack: str) -> str | None:
    """Returns what a stack has that no fused kernel does, or None."""
    if stack == "core" and model.config.layer_post_norm != "none":
        return f"layer_post_norm {model.config.layer_post_norm!r}"
    weight = model.embed_tokens.weight
    return next((reason for block in getattr(model, stack) for reason in _reasons(block, weight)), None)


def _reasons(block: Block, like: torch.Tensor) -> Iterator[str]:
    for module in block.modules():
        if type(module) not in KNOWN:
            yield f"a {type(module).__name__}"
        if module._forward_hooks or module._forward_pre_hooks:
            yield f"a hook on a {type(module).__name__}"
    if isinstance(block, Block):
        if not block.mlp.gated:
            yield "an MLP that is not gated (SwiGLU)"
        if block.self_attn.has_norm:
            yield "norms of queries and keys"
    for weight in (*block.parameters(), *block.buffers()):
        if not is_plain(weight):  # quantised, sharded: what lies at its address is not its numbers
            yield f"a weight that is a {type(weight).__name__}"
        if weight.dtype != like.dtype or weight.device != like.device or not weight.is_contiguous():
            yield "weights of several types or devices"


def adapted(stack: str, adapt: Adaptation | None) -> bool:
    """Says whether adapters reach into the blocks of a stack, where no fused kernel lets them."""
    if adapt is None or not (adapt.updates or adapt.modulations):
        return False
    warn_once(f"decode: the {stack} runs without fused kernels: adapters inside its blocks")
    return True
