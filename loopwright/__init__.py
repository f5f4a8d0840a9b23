"""loopwright: build, convert, train, measure and serve looped language models."""

from __future__ import annotations

from transformers import AutoConfig, AutoModelForCausalLM

from loopwright.model.cache import LoopCache
from loopwright.model.config import LoopedConfig
from loopwright.model.looped import LoopedForCausalLM, LoopedOutput
from loopwright.model.presets import build, preset
from loopwright.version import VERSION

AutoConfig.register("loopwright", LoopedConfig)
AutoModelForCausalLM.register(LoopedConfig, LoopedForCausalLM)

__version__ = VERSION
__all__ = ["LoopCache", "LoopedConfig", "LoopedForCausalLM", "LoopedOutput", "build", "preset"]
