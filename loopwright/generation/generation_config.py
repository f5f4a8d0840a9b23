"""What a model's generation config says of a request: one meaning in `model.generate`, engine, server and command line.

Three tables hold every field that transformers knows. What is obeyed fills what a request leaves open; what changes no token of a
single answer is left alone; what `model.generate` alone offers is refused by its name.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from loopwright.generation.sampling import Sampling
from loopwright.model.causal_lm import LoopedForCausalLM, check_forms, listed
from loopwright.schema import shown

TOP_K = 50  # of transformers, where tokens are drawn and the config gives none
OBEYED = (
    "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "eos_token_id", "stop_strings", "max_new_tokens",
    "max_length", "min_new_tokens", "min_length",
)  # fmt: skip
# each with the values that ask for nothing, the one to set first
REFUSED: dict[str, tuple[Any, ...]] = {
    "num_beams": (1, None), "num_beam_groups": (1, None), "num_return_sequences": (1, None), "constraints": (None,),
    "force_words_ids": (None,), "penalty_alpha": (None, 0), "dola_layers": (None,), "no_repeat_ngram_size": (0, None),
    "encoder_no_repeat_ngram_size": (0, None), "encoder_repetition_penalty": (1.0, None), "bad_words_ids": (None,),
    "forced_bos_token_id": (None,), "forced_eos_token_id": (None,),
    "exponential_decay_length_penalty": (None,), "suppress_tokens": (None, []), "begin_suppress_tokens": (None, []),
    "sequence_bias": (None,), "token_healing": (False, None), "guidance_scale": (None, 1), "watermarking_config": (None,),
    "max_time": (None,), "use_mtp": (None, False), "prompt_lookup_num_tokens": (None,), "assistant_early_exit": (None,),
}  # fmt: skip
REFUSED_DRAWING: dict[str, tuple[Any, ...]] = {
    "typical_p": (1.0, None), "top_h": (None,), "epsilon_cutoff": (0.0, None), "eta_cutoff": (0.0, None),
}  # fmt: skip
# how it is computed, what else is returned, what beams and draft models alone read
IDLE = (
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size", "low_memory", "compile_config",
    "disable_compile", "continuous_batching_config", "early_stopping", "length_penalty", "diversity_penalty",
    "renormalize_logits", "remove_invalid_values", "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "return_dict_in_generate", "pad_token_id", "bos_token_id", "decoder_start_token_id", "is_assistant", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "assistant_confidence_threshold", "max_matching_ngram_size", "assistant_lookbehind",
    "target_lookbehind", "assistant_ensemble_weight", "speculation_type", "transformers_version",
)  # fmt: skip
# for a call of `model.generate` that is compared with something else: nothing of the config has a part in it
PLAIN: dict[str, Any] = {
    "do_sample": False, "repetition_penalty": 1.0, "stop_strings": None, "max_length": None,
    "min_new_tokens": None, "min_length": 0, "return_dict_in_generate": False,
    **{name: plain[0] for name, plain in REFUSED.items()}
}  # fmt: skip


def settled(model: LoopedForCausalLM, asked: Sampling) -> Sampling:
    """Returns how a request draws: by its own fields, and by the model's generation config where it leaves them open.

    A request without temperature and cuts draws where the config says `do_sample`.
    """
    config: Any = model.generation_config
    draws = asked.draws or (asked.temperature is None and config.do_sample is True)
    check_offered(config, draws=draws)
    penalty = config.repetition_penalty if asked.repetition_penalty is None else asked.repetition_penalty
    filled: dict[str, Any] = {"repetition_penalty": None if penalty == 1 else penalty}
    if draws:
        otherwise = {"temperature": 1.0, "top_k": TOP_K if config.do_sample is True else None}
        for name in ("temperature", "top_k", "top_p", "min_p"):
            requested, configured = getattr(asked, name), getattr(config, name)
            filled[name] = requested if requested is not None else otherwise.get(name) if configured is None else configured
        if filled["temperature"] == 0:
            raise ValueError("generation_config: temperature is 0 where tokens are drawn; set do_sample to false for greedy")
    try:
        return replace(asked, **filled)
    except ValueError as error:  # what was asked for is checked already
        raise ValueError(f"generation_config: {error}") from None


def check_offered(config: GenerationConfig, *, draws: bool) -> None:
    """Raises a ValueError where a generation config asks for what only `model.generate` does, or for what means nothing."""
    check_forms(vars(config))
    for name, plain in (REFUSED | (REFUSED_DRAWING if draws else {})).items():
        value = getattr(config, name, None)
        if value not in plain:
            raise ValueError(
                f"generation_config: {name} is {shown(value)}, which only model.generate offers; set it to {plain[0]}, or use that"
            )


def new_tokens(model: LoopedForCausalLM, prompt_tokens: int, otherwise: int) -> int:
    """Returns how many tokens an answer may have where a request does not say: as the generation config does, else `otherwise`."""
    config: Any = model.generation_config
    check_forms(vars(config))
    if config.max_new_tokens is not None:
        return config.max_new_tokens
    if config.max_length is None:
        return otherwise
    if config.max_length <= prompt_tokens:
        raise ValueError(
            f"generation_config: max_length {config.max_length} leaves no room after a prompt of {prompt_tokens} tokens; give "
            "max_new_tokens"
        )
    return config.max_length - prompt_tokens


def least_tokens(model: LoopedForCausalLM, prompt_tokens: int) -> int:
    """Returns before how many tokens of an answer the model's generation config has no end token drawn; strings may end it."""
    config: Any = model.generation_config
    if config.min_new_tokens is not None:
        return config.min_new_tokens
    return max((config.min_length or 0) - prompt_tokens, 0)


def end_tokens(model: LoopedForCausalLM, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """Returns the tokens that end an answer: those of the model's generation config, or else the tokenizer's.

    What the model never says is left out: configs write -1 for none, and a tokenizer may know more tokens than its model.
    """
    end: Any = model.generation_config.eos_token_id  # type: ignore[union-attr]
    if end is None and tokenizer is not None:
        end = tokenizer.eos_token_id
    return [token for token in listed(end) if 0 <= token < model.config.vocab_size]


def stop_strings(model: LoopedForCausalLM) -> list[str]:
    """Returns the strings that end an answer by the model's generation config."""
    return listed(model.generation_config.stop_strings)  # type: ignore[union-attr]


def with_tokens_of(own: GenerationConfig, config: GenerationConfig | None) -> GenerationConfig:
    """Returns a generation config, or one without any settings, with the model's own special tokens where it names none."""
    chosen = GenerationConfig() if config is None else deepcopy(config)
    for name in ("eos_token_id", "pad_token_id", "bos_token_id"):
        if getattr(chosen, name) is None:
            setattr(chosen, name, getattr(own, name))
    return chosen
