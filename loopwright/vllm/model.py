"""A looped model as vLLM runs it: our modules, and one of vLLM's Attention layers for each slot of keys.

Where several devices share a layer, or weights are quantised, the linear maps of the blocks are vLLM's own. Its V2 model runner
keeps the depth of each request beside the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor, nn
from transformers.initialization import no_init_weights
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.passes import STACKS
from loopwright.vllm.pages import flat_features, slot_names, sum_names
from loopwright.vllm.plugin import DepthTable, check_expressible


class LoopedModelState(DefaultModelState):
    """Hands the depths of a batch's tokens to the model's forward."""

    def __init__(self, vllm_config: Any, model: Any, encoder_cache: Any, device: Any) -> None:
        super().__init__(vllm_config, model, encoder_cache, device)
        self.table = DepthTable(model.config, self.max_num_reqs, self.max_num_tokens, device)

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """Notes the depth of a new request."""
        super().add_request(req_index, new_req_data)
        params = new_req_data.sampling_params
        self.table.add(req_index, None if params is None else params.extra_args)

    def prepare_inputs(self, input_batch: Any, req_states: Any) -> dict[str, Any]:
        """Returns further arguments of forward."""
        depths = self.table.of_batch(
            input_batch.idx_mapping_np[: input_batch.num_reqs],
            input_batch.num_scheduled_tokens[: input_batch.num_reqs],
            input_batch.num_tokens_after_padding,
        )
        return {**super().prepare_inputs(input_batch, req_states), **depths}

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        """Returns the same for a pass whose result nobody reads."""
        return {**super().prepare_dummy_inputs(num_reqs, num_tokens), **self.table.of_dummies(num_tokens)}


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


class LoopedForVllm(nn.Module):
    """What vLLM builds for `LoopedForCausalLM`. `depth` of the config is that of every request that asks for none, and the most."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        # hf_overrides are set on a config that was checked before: a config made anew checks them too
        config = LoopedConfig(**vllm_config.model_config.hf_config.to_dict())
        ranks, quantisation = get_tensor_model_parallel_world_size(), vllm_config.quant_config
        check_expressible(config, ranks=ranks, quantised=None if quantisation is None else quantisation.get_name())
        self.config = config
        self.depth = config.check_depth(None)
        with no_init_weights():
            self.looped = LoopedForCausalLM(config).eval()
        self.looped.tie_weights()
        if ranks > 1 or quantisation is not None:
            split_linears(self.looped, quantisation)
        names = [*slot_names(config, self.depth), *sum_names(self.looped, self.depth)]
        layers = [
            Attention(
                config.num_attention_heads // ranks, config.head_dim, config.head_dim**-0.5,
                num_kv_heads=config.num_key_value_heads // ranks, cache_config=vllm_config.cache_config, quant_config=quantisation,
                per_layer_sliding_window=config.sliding_window, prefix=f"slots.{index}.attn",
            )
            for index in range(len(names))
        ]  # fmt: skip
        self.slots = nn.ModuleList(layers)  # modules: vLLM looks here for the scales of a quantised cache
        self.slot_of = dict(zip(names, layers, strict=True))

    @staticmethod
    def get_model_state_cls() -> type:
        """Returns what the V2 model runner keeps beside the model; the V1 runner never asks."""
        return LoopedModelState

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Returns the vectors of tokens [T, D]."""
        return self.looped.token_vectors(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        depths: Tensor | None = None,
        steps: int | None = None,
    ) -> Tensor:
        """Returns what the head reads of every token [T, D]; `depths` are those of single tokens, `steps` the most of them."""
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embed_input_ids(input_ids)
        depth = self.depth if steps is None else steps
        return flat_features(self.looped, cast(Any, self.slot_of), inputs_embeds, positions, depth=depth, depths=depths)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Returns the logits of what `forward` returned; on every device, because the head is whole on each."""
        return self.looped.lm_head(hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fills the model from a saved folder and returns the names that were filled; refuses what is missing or unknown."""
        parameters = dict(self.looped.named_parameters(remove_duplicate=False))
        loaded = set()
        for name, weight in weights:
            if name not in parameters:
                raise ValueError(f"{name}: a weight of the folder that its config has no place for")
            parameter = parameters[name]
            load = getattr(parameter, "weight_loader", default_weight_loader)
            load(parameter, weight)
            loaded.add(name)
        filled = {id(parameters[name]) for name in loaded}
        missing = sorted(name for name, parameter in parameters.items() if id(parameter) not in filled)
        if missing:
            raise ValueError(f"{missing[0]}: not in the folder, nor are {len(missing) - 1} others that the model has")
        return {f"looped.{name}" for name in parameters}
