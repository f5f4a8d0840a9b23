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
from loopwright.api import Comparison, compare, evaluate, train
from loopwright.checking.conformance import CheckReport, CheckRow, check
from loopwright.checkpoints.export import export
from loopwright.checkpoints.hub import push
from loopwright.checkpoints.save import save
from loopwright.checkpoints.source import load, tokenizer
from loopwright.data.batch import Splits, TokenRows, splits
from loopwright.generation.engine import Engine
from loopwright.measuring import Evaluation
from loopwright.model.causal_lm import LoopedForCausalLM, LoopedModel
from loopwright.model.config import LoopedConfig
from loopwright.model.heads import LoopedForQuestionAnswering, LoopedForSequenceClassification, LoopedForTokenClassification
from loopwright.model.keys.cache import LoopCache
from loopwright.model.passes import LoopedModelOutput, LoopedOutput
from loopwright.model.presets import build, preset
from loopwright.registry import register
from loopwright.retrofitting.merge import load_adapters, merge, save_adapters
from loopwright.retrofitting.surgery import retrofit
from loopwright.training.recipe import Recipe
from loopwright.training.report import Run
