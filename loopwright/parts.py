"""What the author of a part needs, in one place: the class that each kind inherits from, and what it is given or may call.

docs/extend.md says what each place calls.
"""

# ruff: noqa: F401 (imported to be found here)

from loopwright.data.batch import Batch, FirstRows, Splits
from loopwright.data.batch import BatchSource as Samples
from loopwright.data.tasks.task import Alphabet
from loopwright.metrics.score import IGNORED, Metric
from loopwright.model.config import LoopedConfig
from loopwright.model.layers import Norm
from loopwright.model.parts.adapters.effects import Adapter, Site
from loopwright.model.parts.gate import Gate
from loopwright.model.parts.halting import HaltingHead
from loopwright.model.parts.injection import Injection
from loopwright.model.parts.part import Part, StepIndex, take, take_width
from loopwright.model.parts.state import State
from loopwright.model.passes import Effects, Pass
from loopwright.training.depth import DepthRule
from loopwright.training.grpo import Reward, Sample
from loopwright.training.objectives.readout import Targets, cross_entropies, find_targets, target_features, target_logits
from loopwright.training.optim import AdamW, Optimiser
from loopwright.training.rollout import Objective, Penalty, Plan, Rollout
