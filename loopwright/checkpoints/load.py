"""Loading: folder → family → config → names checked → tensors read once, straight onto the device. Source finds the folder."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GenerationConfig

from loopwright.checkpoints.families import family_of
from loopwright.checkpoints.families.family import Family, Shape
from loopwright.checkpoints.weights import DTYPES, Stored, check_fit, check_tied, file_dtype, fill, stored_tensors
from loopwright.errors import one_line
from loopwright.model.causal_lm import LoopedForCausalLM, check_forms
from loopwright.model.config import LoopedConfig
from loopwright.schema import suggest
from loopwright.storage.files import read_json

# as torch calls them, and for short
DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}
DTYPE_NAMES |= {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class ModelFiles:
    """What the files of a model say before any weight is read: the config, the family, the header of each tensor."""

    folder: Path
    stored: dict[str, Stored]
    family: Family
    config: LoopedConfig

    @property
    def weights(self) -> list[str]:
        """The names of the files that hold the tensors."""
        return sorted({entry.file.name for entry in self.stored.values()})


def read_files(folder: Path) -> ModelFiles:
    """Returns what the files of a folder say of its model: one of ours, a looped release, or a dense one (no core)."""
    where, settings = str(folder / "config.json"), read_json(folder / "config.json")
    stored = stored_tensors(folder)
    family = family_of(settings, stored, where)
    return ModelFiles(folder, stored, family, family.config(settings, where))


def read_model(files: ModelFiles, dtype: torch.dtype | None, device: torch.device) -> LoopedForCausalLM:
    """Returns the model of these files, in eval mode; `dtype` None is the files' own.

    Names and shapes are checked before anything is allocated; tensors go straight onto the device.
    """
    folder, stored, family = files.folder, files.stored, files.family
    config = deepcopy(files.config)  # the model may change its own
    try:
        model = empty_model(config)
    except ValueError as error:  # a part refuses its options
        raise ValueError(f"{folder / 'config.json'}: {error}") from None
    rules = family.rules(config, parameter_shapes(model))
    head = family.tied_head(config)
    check_fit(str(folder), family, rules, stored, tied_head=head)
    embedding = next(rule.theirs for rule in rules if rule.ours == ("embed_tokens.weight",))
    check_tied(stored, embedding, head)
    generation = generation_config_of(folder)

    chosen = file_dtype(rules, stored) if dtype is None else dtype
    fill(model, rules, stored, dtype=chosen, device=device)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    config.dtype = chosen
    if generation is not None:
        model.generation_config = generation
    return model.eval()


def empty_model(config: LoopedConfig) -> LoopedForCausalLM:
    """Returns a model on the meta device: all shapes, no memory."""
    with torch.device("meta"):
        return LoopedForCausalLM(config)


def parameter_shapes(model: LoopedForCausalLM) -> dict[str, Shape]:
    """Returns the shape of each parameter, a tied one once."""
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def named_dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    """Returns the dtype of a name such as bfloat16 or bf16; None for "auto", the files' own."""
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    if dtype == "auto":
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_NAMES:
        raise ValueError(f"dtype: {dtype!r}; {suggest(name, [*DTYPE_NAMES, 'auto'])}")
    return DTYPE_NAMES[name]


def usable_device(device: str | torch.device) -> torch.device:
    """Returns a device that can be used here."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: {device!s} cannot be used here ({str(error).splitlines()[0]})") from None


def generation_config_of(folder: Path) -> GenerationConfig | None:
    """Returns the generation config of a folder, None where it has none."""
    path = folder / "generation_config.json"
    if not path.exists():
        return None
    settings = read_json(path)
    check_forms(settings, str(path))
    try:
        return GenerationConfig.from_dict(settings)
    except Exception as error:  # transformers looks at some forms, and falls over others
        raise ValueError(f"{path}: not a generation config ({one_line(str(error) or type(error).__name__)[:300]})") from None
