"""The public names in their places. `import loopwright` looks here when the first of them is asked for."""

# ruff: noqa: F401 (imported to be found here)
from __future__ import annotations

import loopwright.metrics as metrics  # `from loopwright` would ask this file for it
import loopwright.parts as parts
import loopwright.plot as plot
from loopwright.analysis.report.analysis import figures
from loopwright.analysis.trace.edit import at, noise, patch, swap, zero
from loopwright.analysis.trace.record import TraceSet, load_trace, save_trace, trace_prompts
from loopwright.analysis.trace.trace import Trace, trace
from loopwright.check.conformance import CheckReport, CheckRow, check
from loopwright.convert.export import export
from loopwright.convert.save import save
from loopwright.data.batch import Splits
from loopwright.data.rows import TokenRows, splits
from loopwright.engine.engine import Engine
from loopwright.hub import push
from loopwright.measuring import Evaluation
from loopwright.model.cache.cache import LoopCache
from loopwright.model.config import LoopedConfig
from loopwright.model.forward.output import LoopedModelOutput, LoopedOutput
from loopwright.model.heads import LoopedForQuestionAnswering, LoopedForSequenceClassification, LoopedForTokenClassification
from loopwright.model.looped import LoopedForCausalLM, LoopedModel
from loopwright.model.presets import build, preset
from loopwright.registry import register
from loopwright.retrofit.adapters import load_adapters, save_adapters
from loopwright.retrofit.merge import merge
from loopwright.retrofit.surgery import retrofit
from loopwright.source import load, tokenizer
from loopwright.train.recipe import Recipe
from loopwright.train.state import Run
from loopwright.verbs import Comparison, compare, evaluate, train
