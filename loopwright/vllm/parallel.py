"""The linear maps of the blocks as vLLM's own, which split them over devices and quantise them."""

from __future__ import annotations

from typing import Any

from torch import nn
from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear

from loopwright.model.forward.context import STACKS
from loopwright.model.looped import LoopedForCausalLM

# by rows of heads or of inner channels, then the sum over all devices: one exchange after attention and one after the MLP
SPLITS: dict[str, type] = {
    "q_proj": ColumnParallelLinear,
    "k_proj": ColumnParallelLinear,
    "v_proj": ColumnParallelLinear,
    "o_proj": RowParallelLinear,
    "gate_proj": ColumnParallelLinear,
    "up_proj": ColumnParallelLinear,
    "down_proj": RowParallelLinear,
}


def split_linears(model: LoopedForCausalLM, quantisation: Any) -> None:
    """Puts vLLM's linear maps in the place of those of all blocks. Embedding, parts and head stay whole on every device."""
    for stack in STACKS:
        for name, module in getattr(model, stack).named_modules():
            for leaf, linear in list(module.named_children()):
                if isinstance(linear, nn.Linear) and leaf in SPLITS:
                    new = SPLITS[leaf](
                        linear.in_features, linear.out_features, bias=linear.bias is not None, quant_config=quantisation,
                        prefix=f"{stack}.{name}.{leaf}", return_bias=False,
                    )  # fmt: skip
                    setattr(module, leaf, new)
