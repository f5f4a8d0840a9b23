"""What vLLM's V2 model runner keeps beside the model: the depth of each request."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from loopwright.vllm.depths import DepthTable


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
