"""What `generate` needs of a looped model: its cache, its inputs, and replayed decode steps. The rest is transformers' own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationMixin, LogitsProcessor, LogitsProcessorList
from transformers.generation import GenerationMode

from loopwright.model.cache.borrowed import BorrowedCache
from loopwright.model.cache.cache import LoopCache
from loopwright.model.config import LoopedConfig
from loopwright.model.decode_graph import DecodeGraph
from loopwright.model.forward.output import choosable
from loopwright.model.parts.state import State
from loopwright.untrusted import shown
from loopwright.values import is_number, is_whole

FIRST_CAPACITY = 2048
REPLAYED = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
ALIGNMENT = 16
READS_FUTURE = (
    "the model reads future tokens, which nobody has while a text is made; a controller's pooling may be prefix, chunk or token"
)
OURS, BORROWED = ("dynamic", "static"), ("offloaded", "quantized")  # the caches of `generate`: a LoopCache, or one of transformers


class ChoosableLogits(LogitsProcessor):
    """Refuses logits that say nothing, because they are not finite or all the same: a greedy choice among them is silent."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        if not bool(choosable(scores).all()):
            wrong = int((~scores.isfinite()).sum())
            what = f"{wrong} of {scores.numel()} logits are not finite" if wrong else "all logits of a row are the same"
            raise ValueError(
                f"generate: {what} after {input_ids.shape[1]} tokens, so no token can be chosen; `loopwright check` looks for the "
                "cause (weights that are NaN, or values too large for the dtype)"
            )
        return scores


class LoopGenerationMixin(GenerationMixin):
    """Generation with a LoopCache. Abstract: the model is built on it. (transformers looks for its own mixin by this name.)"""

    config: LoopedConfig
    embed_tokens: nn.Embedding
    leaks_future: bool
    training: bool
    state: State

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: Any, model_kwargs: dict, *args: Any, **kwargs: Any
    ) -> None:
        """Gives `generate` a LoopCache that fits the depth and length asked for."""
        if self.leaks_future:
            raise ValueError(f"generate: {READS_FUTURE}")
        self.config.check_depth(model_kwargs.get("depth"))
        for name in ("initial_state", "segment_ids"):
            if model_kwargs.get(name) is not None:
                raise ValueError(
                    f"generate: {name} says nothing of tokens that do not exist yet; prefill with a cache, then generate"
                )
        kind = generation_config.cache_implementation
        if kind not in (None, *OURS, *BORROWED):
            raise ValueError(f"generate: cache_implementation {kind!r}; allowed: {', '.join((*OURS, *BORROWED))}")
        if kind == "offloaded" and not self.embed_tokens.weight.is_cuda:
            raise ValueError(
                "generate: cache_implementation 'offloaded' moves keys between a GPU and the host; here take 'dynamic'"
            )
        if model_kwargs.get("past_key_values") is not None or generation_config.use_cache is False or kind in BORROWED:
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
            return
        length = kwargs["max_cache_length"] if "max_cache_length" in kwargs else args[2]
        # transformers may run one token past the end before it sees that it should stop; a long limit is seldom reached, so
        # a growing cache starts smaller
        mode = kwargs["generation_mode"] if "generation_mode" in kwargs else args[0]
        fixed = kind == "static" or (kind is None and self._replays(length, mode))
        # attention kernels want rows of masks that are aligned
        capacity = -(-(length + 1) // ALIGNMENT) * ALIGNMENT if fixed else min(length + 1, FIRST_CAPACITY)
        model_kwargs["past_key_values"] = LoopCache(self.config, capacity=capacity, fixed=fixed)

    def _replays(self, length: int, mode: GenerationMode) -> bool:
        """Says whether decode steps of a whole generation can be replayed: on a GPU, where rows are never reordered or cropped."""
        return self.embed_tokens.weight.is_cuda and length < FIRST_CAPACITY and mode in REPLAYED

    def _get_logits_processor(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the processors of the logits, one that refuses what says nothing before all others."""
        processors = super()._get_logits_processor(*args, **kwargs)
        processors.insert(0, ChoosableLogits())
        return processors

    def _get_candidate_generator(self, *args: Any, **kwargs: Any) -> Any:
        """Lets a draft run at its own depth: this model after `assistant_early_exit` steps, or another one, to which what was asked
        of this one may mean nothing. Drafts are not looked at: they are verified, and those that are looked up in the prompt have
        made-up logits, all the same."""
        options, settings, processors = kwargs["model_kwargs"], kwargs["generation_config"], kwargs["logits_processor"]
        kept = [processor for processor in processors if not isinstance(processor, ChoosableLogits)]
        kwargs["logits_processor"] = LogitsProcessorList(kept)
        steps = settings.assistant_early_exit
        if steps is None:
            kwargs["model_kwargs"] = {k: v for k, v in options.items() if k not in ("depth", "select", "state_seed")}
            return super()._get_candidate_generator(*args, **kwargs)
        depth = self.config.check_depth(options.get("depth"))
        if not is_whole(steps, 1, depth - 1):
            fewer = f"from 1 to {depth - 1}" if depth > 1 else "none here"
            given = f"assistant_early_exit: {shown(steps)}"
            raise ValueError(f"{given}; allowed: {fewer}, as drafts take fewer steps than the depth {depth}")
        settings = deepcopy(settings)
        settings.assistant_early_exit = None
        draft = {"assistant_model": self, "generation_config": settings, "model_kwargs": {**options, "depth": steps}}
        return super()._get_candidate_generator(*args, **{**kwargs, **draft})

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict) -> None:  # type: ignore[override]
        """Gives none: a pass counts them from the mask and the cache. So those that reach one are the caller's own."""

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Any, inputs_embeds: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Returns the inputs of the next pass. A cache that holds tokens knows its padding, so the mask stops there."""
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, inputs_embeds=inputs_embeds, **kwargs)
        inputs.pop("tokenizer", None)  # of `stop_strings`
        cache = inputs.get("past_key_values")
        if isinstance(cache, Cache) and cache.is_compileable:  # transformers makes it a mask of queries and keys
            inputs["attention_mask"] = kwargs.get("attention_mask")
        if self.training and self.state.seeded and inputs.get("state_seed") is None:
            inputs["state_seed"] = self.state.seed  # one start for all tokens of an answer, also while a model trains
        if isinstance(cache, LoopCache) and cache.length:
            mask = inputs.pop("attention_mask", None)
            tokens = inputs["input_ids"]
            new = inputs["inputs_embeds"].shape[1] if tokens is None else tokens.shape[1]
            if mask is not None and bool((mask[:, -new:] == 0).any()):
                inputs["attention_mask"] = mask
        return inputs

    def replay(
        self, input_ids: Tensor, cache: LoopCache | BorrowedCache | None, depth: int, seed: int | Tensor | None
    ) -> Tensor | None:
        """Returns the logits of a one-token pass from a CUDA graph, where a fixed cache allows one; else None."""
        if (
            not isinstance(cache, LoopCache)
            or not cache.fixed
            or not input_ids.is_cuda
            or input_ids.shape[1] != 1
            or not cache.length
        ):
            return None
        if torch.is_grad_enabled() or self.training or isinstance(seed, Tensor) or cache.policy != "every":
            return None
        if self.config.positions == "learned" and cache.length >= self.config.max_position_embeddings:
            return None  # the plain path looks at the positions themselves
        if cache.graph is None and cache.graphable and cache.length < cache.capacity:
            cache.graph = DecodeGraph(cast(Any, self), cache, depth, seed)
        if cache.graph is None or not cache.graph.fits(cache, depth, seed):
            cache.retire_graph()
            return None
        return cache.graph.step(cache, input_ids)


def check_forms(settings: Mapping[str, Any], where: str = "generation_config") -> None:
    """Raises a ValueError where a value of a generation config is of another form: transformers takes each as it comes."""
    for name, (sound, allowed) in FORMS.items():
        value = settings.get(name)
        if value is not None and not sound(value):
            raise ValueError(f"{where}: {name} is {shown(value)}; allowed: {allowed}, or null")


def listed(value: Any) -> list[Any]:
    """Returns the members of a list, tuple or tensor; anything else is one member, None is no member."""
    members = value.flatten().tolist() if isinstance(value, Tensor) else value
    return list(members) if isinstance(members, list | tuple) else [] if members is None else [members]


# what is obeyed is read by each request, and not every reader looks at its form
FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "do_sample": (lambda value: isinstance(value, bool), "true, false"),
    "eos_token_id": (lambda value: all(map(is_whole, listed(value))), "a token id, a list of them"),
    "stop_strings": (
        lambda value: all(isinstance(one, str) and one for one in listed(value)), "a string, a list of them, none of them empty"
    ),
    **dict.fromkeys(("max_new_tokens", "max_length"), (partial(is_whole, least=1), "a whole number of at least 1")),
    **dict.fromkeys(("min_new_tokens", "min_length"), (partial(is_whole, least=0), "a whole number of at least 0")),
    "top_k": (is_whole, "a whole number"),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), (is_number, "a number")),
}  # fmt: skip
