"""The looped model: one loop, five parts, a cache by (step, layer). transformers' Auto classes know it once it is imported."""

from __future__ import annotations

from transformers import AutoConfig, AutoModelForCausalLM

from loopwright.model.config import LoopedConfig
from loopwright.model.looped import LoopedForCausalLM

AutoConfig.register("loopwright", LoopedConfig)
AutoModelForCausalLM.register(LoopedConfig, LoopedForCausalLM)
