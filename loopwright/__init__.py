"""loopwright: build, convert, train, measure and serve looped language models."""

from __future__ import annotations

from transformers import AutoConfig, AutoModelForCausalLM

from loopwright import metrics
from loopwright.analysis.record import TraceSet, load_trace, save_trace, trace_prompts
from loopwright.analysis.trace import Trace, trace
from loopwright.convert.adapters import load_adapters, save_adapters
from loopwright.convert.export import export
from loopwright.convert.load import load
from loopwright.convert.save import save
from loopwright.convert.source import tokenizer
from loopwright.convert.surgery import retrofit
from loopwright.evaluate.conformance import CheckReport, CheckRow, check
from loopwright.model.cache import LoopCache
from loopwright.model.config import LoopedConfig
from loopwright.model.looped import LoopedForCausalLM
from loopwright.model.output import LoopedOutput
from loopwright.model.presets import build, preset
from loopwright.version import VERSION

AutoConfig.register("loopwright", LoopedConfig)
AutoModelForCausalLM.register(LoopedConfig, LoopedForCausalLM)

__version__ = VERSION
__all__ = [
    "CheckReport",
    "CheckRow",
    "LoopCache",
    "LoopedConfig",
    "LoopedForCausalLM",
    "LoopedOutput",
    "Trace",
    "TraceSet",
    "build",
    "check",
    "export",
    "load",
    "load_adapters",
    "load_trace",
    "metrics",
    "preset",
    "retrofit",
    "save",
    "save_adapters",
    "save_trace",
    "tokenizer",
    "trace",
    "trace_prompts",
]
