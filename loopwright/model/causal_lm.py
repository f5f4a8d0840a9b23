"""The looped transformer with its language-model head, and without: two classes over the modules of one backbone.

Beside them what transformers asks: for `generate` a cache, inputs and replayed decode steps; for trainers, collators and pipelines
the arguments that they hand over beside the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationMixin, LogitsProcessor, LogitsProcessorList
from transformers.generation import GenerationMode
from transformers.utils.generic import can_return_tuple

from loopwright.model.backbone import Backbone
from loopwright.model.config import LoopedConfig
from loopwright.model.decode_graph import DecodeGraph
from loopwright.model.keys.borrowed import BorrowedCache
from loopwright.model.keys.cache import LoopCache
from loopwright.model.parts.part import FIRST
from loopwright.model.parts.state import State
from loopwright.model.passes import (
    LoopedModelOutput,
    LoopedOutput,
    Pass,
    Place,
    Reading,
    check_select,
    choosable,
    next_token_loss,
    readings_of,
)
from loopwright.model.taps import Tap
from loopwright.model.traced import is_recorded
from loopwright.schema import is_number, is_whole
from loopwright.untrusted import shown

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


# of a kernel that takes rows laid end to end: how long the longest is, which the sums of lengths say already
_LONGEST = ("max_length_q", "max_length_k")
TOKENS = ("cache_position", "cu_seq_lens_q", "cu_seq_lens_k", *_LONGEST, "seq_idx", "token_type_ids")
LOSS = ("num_items_in_batch", "shift_labels")


@dataclass(frozen=True)
class ExtraArguments:
    """What extra arguments mean: the documents [1, T] of a row, the number that the loss is a mean over, labels already shifted."""

    segment_ids: Tensor | None = None
    items: Tensor | int | None = None
    shifted: Tensor | None = None


def read_extra(extra: Mapping[str, Any], tokens: Tensor | None, held: int, *, loss: bool = False) -> ExtraArguments:
    """Returns what `extra` means for a pass of `tokens` [B, T, …] after `held` cached ones; what would be ignored is refused."""
    allowed = (*TOKENS, *LOSS) if loss else TOKENS
    given = {name: value for name, value in extra.items() if value is not None}
    for name in given:
        if name not in allowed:
            raise TypeError(f"forward: {name!r} is no argument of a looped model; beside its own it takes {', '.join(allowed)}")
    if not given:
        return ExtraArguments()
    rows, length = tokens.shape[:2] if isinstance(tokens, Tensor) and tokens.dim() > 1 else (0, 0)  # the model says what is wrong
    types, here = given.get("token_type_ids"), given.get("cache_position")
    if not is_recorded():  # a recorded program must not depend on what a tensor holds
        if types is not None and bool((types != 0).any()):
            raise ValueError("token_type_ids: not all 0; a looped model has no token types, leave them out")
        if here is not None and here.tolist() != list(range(held, held + length)):
            raise ValueError(f"cache_position: {here.tolist()}; allowed: {length} places from {held} on, after the tokens held")
    return ExtraArguments(_documents(given, rows, length, held), given.get("num_items_in_batch"), given.get("shift_labels"))


def _documents(given: Mapping[str, Any], rows: int, length: int, held: int) -> Tensor | None:
    """Returns the number of the document of each token, as `cu_seq_lens_q` or `seq_idx` says it."""
    ends, numbers = given.get("cu_seq_lens_q"), given.get("seq_idx")
    keys = given.get("cu_seq_lens_k", ends)
    for name in ("cu_seq_lens_q", "seq_idx"):
        if held and name in given:
            raise ValueError(f"{name}: after {held} cached tokens; say where a document begins by position_ids or segment_ids")
    readable = not is_recorded()
    if readable and keys is not None and (ends is None or not torch.equal(ends, keys)):
        raise ValueError("cu_seq_lens_k: not cu_seq_lens_q; queries and keys of a looped model are the same tokens")
    if ends is None:
        return numbers
    if readable and (rows != 1 or not _sums_to(ends, length)):
        lengths = f"cu_seq_lens_q: {shown(ends.tolist())} for {rows} rows of {length} tokens"
        raise ValueError(f"{lengths}; allowed: sums of lengths, from 0 to {length}, of one row")
    here = torch.arange(length, device=ends.device).to(ends)
    documents = torch.searchsorted(ends[1:].contiguous(), here, right=True)[None]
    if readable and numbers is not None and not torch.equal(numbers.diff() != 0, documents.diff() != 0):
        raise ValueError("seq_idx: other documents than those of cu_seq_lens_q; give one of the two")
    return documents


def _sums_to(ends: Tensor, length: int) -> bool:
    """Whether these are sums of lengths: they begin at 0, never fall and end at `length`."""
    return ends.numel() > 1 and int(ends[0]) == 0 and int(ends[-1]) == length and bool((ends.diff() >= 0).all())


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
        **extra: Any,
    ) -> LoopedModelOutput:
        """Runs the model at one depth and returns what a head would read. `extra`: see `read_extra`."""
        depth = self.config.check_depth(depth)
        outputs = self._layer_outputs(output_hidden_states, output_attentions)
        select = self.config.read_out
        readings = readings_of(select, self.halting, depth, False)
        cache = self._ready(past_key_values, use_cache, depth, readings, attention_mask)
        given = read_extra(extra, input_ids if inputs_embeds is None else inputs_embeds, 0 if cache is None else cache.length)
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
        **extra: Any,
    ) -> LoopedOutput:
        """Runs the model at one depth. `labels` are the input ids (−100: ignored); the model shifts them, once.

        `logits_to_keep`: logits of the last so many tokens alone, or of the places that a tensor names. `extra`: what trainers and
        collators of transformers hand over besides (`read_extra`).

        `select` says which logits answer: those of the "last" step; per token those where the exit gate's cumulative
        probability reaches its threshold ("hub", Ouro's released rule); or the mean by exit probability ("expected"). Left out, it
        is the model's own read-out, `config.read_out`.
        """
        select = self.config.read_out if select is None else select
        depth = self.config.check_depth(depth)
        check_select(select, self.halting)
        measures = labels is not None or extra.get("shift_labels") is not None
        if measures and (isinstance(logits_to_keep, Tensor) or logits_to_keep):
            raise ValueError(f"labels: given with logits_to_keep={logits_to_keep}; the loss needs the logits of every token")
        outputs = self._layer_outputs(output_hidden_states, output_attentions)
        readings = readings_of(select, self.halting, depth, output_steps)
        if use_cache is None and (measures or output_steps):
            use_cache = False  # a measurement: no token will follow
        cache = self._ready(past_key_values, use_cache, depth, readings, attention_mask)
        given = read_extra(
            extra, input_ids if inputs_embeds is None else inputs_embeds, 0 if cache is None else cache.length, loss=True
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
