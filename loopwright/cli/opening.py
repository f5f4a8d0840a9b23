"""What a verb opens: the model and the tokenizer of a source, a device and a dtype by name, and how long a deep pass will take."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch

from loopwright.checkpoints.load import DTYPE_NAMES
from loopwright.checkpoints.source import Source
from loopwright.cli.console import warn
from loopwright.confined import ConfinedTokenizer, LimitError
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.presets import preset
from loopwright.process import say
from loopwright.schema import merge, parse_overrides, suggest
from loopwright.untrusted import read_text, user_path

SYSTEM_BYTES = 2**17  # of a file with a system prompt
DEEP = 1000  # steps of a pass that nobody runs by chance
MEASURED = 8  # steps that are timed


def tell_wait(model: LoopedForCausalLM, depth: int | None, *, rows: int = 1, length: int = 1) -> None:
    """Prints on stderr how long one pass of rows × length tokens at an absurd depth will take; nothing at others.

    The time of a step is measured on this model and this shape: a pass of nine steps less one of one step.
    """
    steps = model.config.check_depth(depth)
    if steps < DEEP or not model.config.is_looped:
        return
    ids = torch.zeros(rows, length, dtype=torch.long, device=model.device)
    shallow = min(_seconds(model, ids, 1) for _ in range(2))
    step = max(_seconds(model, ids, 1 + MEASURED) - shallow, 0.0) / MEASURED
    shape = f"{rows} × {length} tokens"
    say(f"loopwright: depth {steps:,}: about {spelled(steps * step)} for each pass of {shape} "
          f"({step * 1e3:.3g} ms a step, measured); Ctrl-C stops")  # fmt: skip


def _seconds(model: LoopedForCausalLM, ids: torch.Tensor, depth: int) -> float:
    begin = time.perf_counter()
    with torch.no_grad():
        model(ids, depth=depth, use_cache=False).logits.sum().item()  # the item waits for a GPU
    return time.perf_counter() - begin


def spelled(seconds: float) -> str:
    """Returns a time in the unit a person would use."""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 2 else "a second or two"


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


def probed(name: str, tokenizer: Any) -> ConfinedTokenizer:
    """Returns a tokenizer in a process of its own, in which it and its chat template have kept to the limits once."""
    words = ConfinedTokenizer(tokenizer)
    try:
        words.probe()
    except LimitError as error:
        words.close()
        raise ValueError(f"{name}: the tokenizer or its chat template is not taken: {error}; take another, or mend it") from None
    return words


def system_text(given: str) -> str:
    """Returns a system prompt that is given as a text, or as a .txt file that holds it."""
    return read_text(user_path(given), SYSTEM_BYTES) if given.endswith(".txt") else given


def find_dtype(name: str) -> torch.dtype:
    """Returns the dtype of a name such as bf16 or float32."""
    if name not in DTYPE_NAMES:
        raise ValueError(f"dtype: unknown {name!r}; {suggest(name, DTYPE_NAMES)}")
    return DTYPE_NAMES[name]


def find_device(name: str) -> str:
    """Returns the name of a device that is there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device: unknown {name!r}; allowed: cpu, cuda, cuda:N, mps") from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type) or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise ValueError(f"device: {name!r} is not there; allowed here: {', '.join(kind for kind, here in there.items() if here)}")
    return name
