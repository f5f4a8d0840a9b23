"""What a verb opens: the model of a source, and what is said about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from loopwright.commands.console import warn
from loopwright.confined import ConfinedWords, LimitError
from loopwright.model.config import LoopedConfig
from loopwright.model.looped import LoopedForCausalLM
from loopwright.model.presets import preset
from loopwright.settings import merge, parse_overrides
from loopwright.source import Source
from loopwright.untrusted import read_text, user_path

SYSTEM_BYTES = 2**17  # of a file with a system prompt


def find_config(source: Source, overrides: Iterable[str] = ()) -> LoopedConfig:
    """Returns the config of a source with `a.b=c` overrides laid over it."""
    changes = parse_overrides(overrides)
    if source.is_preset:
        return preset(source.name, **changes)
    config = source.config
    return LoopedConfig(**merge(config.to_dict(), changes)) if changes else config


def open_model(source: Source, dtype: torch.dtype, device: str) -> LoopedForCausalLM:
    """Returns the model of a source, after a line on stderr for each damaged checkpoint that was passed over."""
    model = source.model(dtype, device)
    warn_of_damage(source)
    return model


def warn_of_damage(source: Source) -> None:
    """Prints a line on stderr for each damaged checkpoint that was passed over."""
    for note in source.notes:
        warn(note)


def open_tokenizer(source: Source, given: str | None = None) -> Any:
    """Returns the tokenizer that is given, or that of a source."""
    if given is not None:
        return Source(given).tokenizer()
    try:
        return source.tokenizer()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; --tokenizer names one") from None


def probed(name: str, tokenizer: Any) -> ConfinedWords:
    """Returns a tokenizer in a process of its own, in which it and its chat template have kept to the limits once."""
    words = ConfinedWords(tokenizer)
    try:
        words.probe()
    except LimitError as error:
        words.close()
        raise ValueError(f"{name}: the tokenizer or its chat template is not taken: {error}; take another, or mend it") from None
    return words


def system_text(given: str) -> str:
    """Returns a system prompt that is given as a text, or as a .txt file that holds it."""
    return read_text(user_path(given), SYSTEM_BYTES) if given.endswith(".txt") else given
