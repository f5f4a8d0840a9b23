"""The looped transformer with its language-model head, and without: two classes over the modules of one backbone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.utils.generic import can_return_tuple

from loopwright.model.backbone import Backbone
from loopwright.model.cache.cache import LoopCache
from loopwright.model.config import LoopedConfig
from loopwright.model.forward.context import Pass, Place, Reading
from loopwright.model.forward.output import LoopedModelOutput, LoopedOutput, layer_outputs, next_token_loss
from loopwright.model.forward.selection import check_select, readings_of
from loopwright.model.forward.words import read_words
from loopwright.model.generation import LoopGenerationMixin
from loopwright.model.parts.part import FIRST
from loopwright.model.tap import Tap


class LoopedModel(Backbone):
    """A looped transformer without a head: what `AutoModel` opens. A folder of `LoopedForCausalLM` is one of its own."""

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]  # noqa: RUF012

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        depth: int | None = None,
        initial_state: Tensor | None = None,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        state_seed: int | Tensor | None = None,
        tap: Tap | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **words: Any,
    ) -> LoopedModelOutput:
        """Runs the model at one depth and returns what a head would read. `words`: see `forward/words.py`."""
        depth = self.config.check_depth(depth)
        outputs = layer_outputs(self.config, output_hidden_states, output_attentions)
        select = self.config.read_out
        readings = readings_of(select, self.halting, depth, False)
        cache = self._ready(past_key_values, use_cache, depth, readings, attention_mask)
        given = read_words(words, input_ids if inputs_embeds is None else inputs_embeds, 0 if cache is None else cache.length)
        segment_ids = given.segment_ids if segment_ids is None else segment_ids
        tokens = {
            "input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids, "segment_ids": segment_ids,
            "inputs_embeds": inputs_embeds, "cache": cache, "tap": tap, "outputs": outputs,
        }  # fmt: skip
        result = self._run(
            tokens, depth=depth, initial_state=initial_state, seed=state_seed, readings=readings, select=select,
            output_steps=False, keep=0, read=lambda features, p: features,
        )  # fmt: skip
        if cache is not None:
            cache.advance(result.span)
        return LoopedModelOutput(
            last_hidden_state=result.answer,
            past_key_values=cache if isinstance(cache, LoopCache) else past_key_values,
            hidden_states=None if outputs is None else outputs.hidden_states,
            attentions=None if outputs is None else outputs.attentions,
            exit_probs=result.exit_probs,
        )


class LoopedForCausalLM(Backbone, LoopGenerationMixin):
    """A looped transformer language model, built from its config alone."""

    has_head = True
    _tied_weights_keys = {"lm_head.weight": "embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.head_bias)
        self.post_init()

    def head(self, features: Tensor, p: Pass) -> Tensor:
        """Returns the logits of features."""
        return p.see("logits", self.lm_head(features), Place("coda", FIRST, len(self.coda)))

    def read_out(self, s: Tensor, p: Pass, *, reading: Reading | None = None, keep: int = 0) -> Tensor:
        """Returns the logits of a state; of the last `keep` positions only, where that is above zero. `reading`: see `features`."""
        return self.head(self.features(s, p, reading=reading, keep=keep), p)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        depth: int | None = None,
        initial_state: Tensor | None = None,
        output_steps: bool = False,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        select: str | None = None,
        use_cache: bool | None = None,
        state_seed: int | Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        tap: Tap | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **words: Any,
    ) -> LoopedOutput:
        """Runs the model at one depth. `labels` are the input ids (−100: ignored); the model shifts them, once.

        `logits_to_keep`: logits of the last so many tokens alone, or of the places that a tensor names. `words`: what trainers and
        collators of transformers hand over besides (`forward/words.py`).

        `select` says which logits answer: those of the "last" step; per token those where the exit gate's cumulative
        probability reaches its threshold ("hub", Ouro's released rule); or the mean by exit probability ("expected"). Left out, it
        is the model's own read-out, `config.read_out`.
        """
        select = self.config.read_out if select is None else select
        depth = self.config.check_depth(depth)
        check_select(select, self.halting)
        measures = labels is not None or words.get("shift_labels") is not None
        if measures and (isinstance(logits_to_keep, Tensor) or logits_to_keep):
            raise ValueError(f"labels: given with logits_to_keep={logits_to_keep}; the loss needs the logits of every token")
        outputs = layer_outputs(self.config, output_hidden_states, output_attentions)
        readings = readings_of(select, self.halting, depth, output_steps)
        if use_cache is None and (measures or output_steps):
            use_cache = False  # a measurement: no token will follow
        cache = self._ready(past_key_values, use_cache, depth, readings, attention_mask)
        given = read_words(
            words, input_ids if inputs_embeds is None else inputs_embeds, 0 if cache is None else cache.length, loss=True
        )
        segment_ids = given.segment_ids if segment_ids is None else segment_ids
        simple = not output_steps and select == "last" and tap is None and not measures and outputs is None
        placed = attention_mask is not None or segment_ids is not None or position_ids is not None
        if simple and not placed and initial_state is None and input_ids is not None:
            replayed = self.replay(input_ids, cache, depth, state_seed)
            if replayed is not None:
                return LoopedOutput(logits=replayed, past_key_values=past_key_values)
        tokens = {
            "input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids, "segment_ids": segment_ids,
            "inputs_embeds": inputs_embeds, "cache": cache, "tap": tap, "outputs": outputs,
        }  # fmt: skip
        result = self._run(
            tokens, depth=depth, initial_state=initial_state, seed=state_seed, readings=readings, select=select,
            output_steps=output_steps, keep=logits_to_keep, read=self.head,
        )  # fmt: skip
        wanted = labels if given.shifted is None else given.shifted
        shifted = given.shifted is not None
        loss = None if wanted is None else next_token_loss(result.answer, wanted, shifted=shifted, items=given.items)
        if cache is not None:  # last: a pass that fails leaves the cache as it was
            cache.advance(result.span)
        return LoopedOutput(
            loss=loss,
            logits=result.answer,
            past_key_values=cache if isinstance(cache, LoopCache) else past_key_values,
            hidden_states=None if outputs is None else outputs.hidden_states,
            attentions=None if outputs is None else outputs.attentions,
            states=tuple(result.states) if output_steps else None,
            step_logits=tuple(result.results) if output_steps else None,
            exit_probs=result.exit_probs,
            last_hidden_state=result.features,
        )

    # other views of the same weights

    @property
    def model(self) -> LoopedModel:
        """The same modules without the head: what transformers calls the base model, made when it is asked for."""
        view = LoopedModel.__new__(LoopedModel)
        view.__dict__.update(self.__dict__)
        view._modules = {name: module for name, module in self._modules.items() if name != "lm_head"}
        return view

    def without_adapters(self) -> LoopedForCausalLM:
        """Returns the plain truncated model on the same weights: prelude, core once, coda; no adapter, gate or step norm."""
        config = plain_config(self.config)
        with torch.device("meta"):
            plain = LoopedForCausalLM(config)
        plain.embed_tokens, plain.embed_norm, plain.lm_head = self.embed_tokens, self.embed_norm, self.lm_head
        if config.positions == "learned":
            plain.embed_positions = self.embed_positions
        plain.norm = self.norm if config.final_norm == self.config.final_norm else self.end_norm
        plain.prelude = nn.ModuleList([*self.prelude, *self.core, *self.coda])
        return plain.train(self.training)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings


def plain_config(config: LoopedConfig) -> LoopedConfig:
    """Returns the config of the dense model that runs a looped model's layers once each."""
    layers = config.prelude_layers + config.core_layers + config.coda_layers
    changes: dict[str, Any] = {
        "prelude_layers": layers, "core_layers": 0, "coda_layers": 0, "depth": 1, "max_steps": None, "beyond_max_steps": "refuse",
        "end_norm": "never", "layer_post_norm": "none",
        "adapters": [], "gate": None, "halting": None, "injection": None, "state": None, "read_out": "last",
    }  # fmt: skip
    if config.end_norm == "every" and config.final_norm["kind"] == "none":
        changes["final_norm"] = config.norm  # Ouro: the norm that ends each step is the one the head was trained on
    return LoopedConfig(**{**config.to_dict(), **changes})
