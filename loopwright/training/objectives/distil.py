"""Learning from another read-out: distillation from a teacher model, and of a looped model's last step into its earlier ones.

The teacher runs without gradients, in the precision of the run (bf16: under the same autocast as the student).

KL_τ(p ‖ q) = τ² Σ_v p_v (log p_v − log q_v) with p, q the softmax of logits over τ: the factor keeps gradients of the same
size at every temperature (Hinton et al., arXiv 1503.02531).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from loopwright.data.batch import Batch
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import Answers, Pass
from loopwright.schema import build_kind, check_kind, check_number
from loopwright.training.model import MODELS
from loopwright.training.objectives.readout import Targets, find_targets, over_chunks, target_features, target_logits, wide
from loopwright.training.rollout import Objective, Rollout


class Distil(Objective):
    """L = mean_i [ KL_τ(teacher_i ‖ student_i) + weight · L_i(T) + match · mean_k ‖f_ik − f'_ik‖² / ‖f'_ik‖² ].

    The student answers after its last step. f and f' are what the two heads read (`layers` 0), or what stands after the last
    `layers` layers of each: of the student its coda's, and before them the state that the loop ends with; of the teacher
    whichever layers run last. `match` above 0 needs equal widths. `teacher` is a folder or hub id, or a model as in a
    recipe's `model` ({"kind": "load", "source": …}), run at `teacher_depth` (its own default where none is given), frozen. It
    is loaded by `prepare`, which a run calls before it begins, or at the first batch.
    """

    reads = "last"
    read_out = "last"

    def __init__(
        self,
        teacher: str | dict,
        temperature: float = 1.0,
        weight: float = 1.0,
        match: float = 0.0,
        layers: int = 0,
        teacher_depth: int | None = None,
    ) -> None:
        spec = {"kind": "load", "source": teacher} if isinstance(teacher, str) else teacher
        check_kind("objective (distil): teacher", spec, MODELS)
        check_number("objective (distil): temperature", temperature, above=0)
        check_number("objective (distil): weight", weight, least=0)
        check_number("objective (distil): match", match, least=0)
        if layers < 0 or (layers and not match):
            raise ValueError(
                f"objective (distil): layers is {layers}, match is {match}; allowed: layers from 0, with a match above 0"
            )
        self.spec, self.temperature, self.weight, self.match = dict(spec), temperature, weight, match
        self.layers, self.teacher_depth = layers, teacher_depth
        self.teacher: LoopedForCausalLM | None = None

    def prepare(self, model: LoopedForCausalLM, device: torch.device | str) -> None:
        """Loads the teacher onto a device, frozen; one that the student cannot learn from is refused."""
        teacher = build_kind(self.spec, MODELS).build(0)
        self._check_fit(model, teacher)
        self.teacher = teacher.to(device).eval().requires_grad_(False)

    def fixed_models(self) -> dict[str, LoopedForCausalLM]:
        """Returns the teacher."""
        return {} if self.teacher is None else {"teacher": self.teacher}

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns (loss, {loss_last, kl, match})."""
        if self.teacher is None:
            self.prepare(model, rollout.e.device)
        teacher = self.teacher
        assert teacher is not None
        targets = find_targets(rollout.batch)
        ours, theirs = LastLayers(self.layers), LastLayers(self.layers)
        ours("residual", rollout.last, stack="core", step=rollout.last_step, layer=0)
        x = target_features(model, [rollout.last], replace(rollout.p, tap=ours), targets)[0]
        with torch.no_grad():
            y, p = self._features(teacher, rollout.batch, targets, theirs)

        def read(x: Tensor, y: Tensor, ids: Tensor) -> Tensor:
            with torch.no_grad():
                taught = target_logits(teacher, y, p)
            logits = target_logits(model, x, rollout.p)
            return torch.stack([F.cross_entropy(logits, ids, reduction="none"), divergence(taught, logits, self.temperature)])

        losses, kl = over_chunks(read, 2 * model.config.vocab_size, x, y, targets.ids)
        apart = torch.zeros_like(losses)
        if self.match:
            pairs = list(zip(ours.picked(targets), theirs.picked(targets), strict=True)) if self.layers else [(x, y)]
            apart = torch.stack([distance(a, b) for a, b in pairs]).mean(0)
        loss = targets.mean(kl + self.weight * losses + self.match * apart)
        metrics = {"loss_last": losses, "kl": kl, "match": apart}
        return loss, {name: targets.mean(value).detach() for name, value in metrics.items()}

    def _check_fit(self, model: LoopedForCausalLM, teacher: LoopedForCausalLM) -> None:
        ours, theirs = model.config, teacher.config
        if ours.vocab_size != theirs.vocab_size:
            raise ValueError(
                f"objective (distil): the teacher's vocabulary has {theirs.vocab_size} tokens; "
                f"allowed: {ours.vocab_size}, the student's (and the same tokenizer)"
            )
        if self.match and ours.hidden_size != theirs.hidden_size:
            raise ValueError(
                f"objective (distil): match is {self.match}, and the teacher's width is {theirs.hidden_size}; "
                f"allowed: {ours.hidden_size}, the student's, or match 0"
            )
        steps = theirs.check_depth(self.teacher_depth)
        most = min(ours.coda_layers + 1, theirs.prelude_layers + theirs.core_layers * steps + theirs.coda_layers)
        if self.layers > most:
            raise ValueError(
                f"objective (distil): layers is {self.layers}; allowed: up to {most}, the student's coda and the state before it, "
                "and no more than the teacher has"
            )

    def _features(self, teacher: LoopedForCausalLM, batch: Batch, targets: Targets, seen: LastLayers) -> tuple[Tensor, Pass]:
        e, p = teacher.embed(batch.input_ids, attention_mask=batch.attention_mask, segment_ids=batch.segment_ids, tap=seen)
        start = teacher.start_state(e, p)
        answers = Answers(teacher, e, p, start)
        for s in teacher.unroll(e, teacher.config.check_depth(self.teacher_depth), p, state=start):
            answers.take(s)
        if answers.select == "last":
            return target_features(teacher, [answers.state], p, targets)[0], p
        return targets.pick(answers.features()), p


class LastLayers:
    """A tap that keeps what stands after each of the last `count` layers of a pass, with its gradient."""

    def __init__(self, count: int) -> None:
        self.kept: deque[Tensor] = deque(maxlen=count)

    def __call__(self, name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        if name == "residual":
            self.kept.append(value)
        return value

    def picked(self, targets: Targets) -> list[Tensor]:
        """Returns what was kept at the targets, first layer first, [N, D] each."""
        return [targets.pick(value) for value in self.kept]


def distance(ours: Tensor, theirs: Tensor) -> Tensor:
    """Returns ‖ours − theirs‖² / ‖theirs‖² of each row of two [N, D], in at least float32: 1 where ours is zero."""
    ours, theirs = wide(ours), wide(theirs)
    return (ours - theirs).pow(2).sum(-1) / theirs.pow(2).sum(-1).clamp(min=torch.finfo(ours.dtype).tiny)


class Shortcut(Objective):
    """Self-distillation in depth: L = mean_i [ L_i(T) + weight · KL_τ(stop(p_i(T)) ‖ p_i(t)) ] for one earlier step t.

    The shallow read-out learns from the deep one, never the reverse. Of S steps with a gradient, t is the one after
    `fraction` · S of them, or, where `fraction` is None, drawn anew for each update (`seed`). A rollout of one step has no
    earlier one: its kl is 0. (Be your own teacher, arXiv 1905.08094; LoopFormer matches states instead, arXiv 2602.11451.)
    """

    reads = "every"
    read_out = "last"

    def __init__(self, fraction: float | None = 0.5, weight: float = 1.0, temperature: float = 1.0, seed: int = 0) -> None:
        if fraction is not None and not 0 < fraction < 1:
            raise ValueError(f"objective (shortcut): fraction is {fraction}; allowed: between 0 and 1, or null to draw it")
        if weight < 0 or temperature <= 0:
            raise ValueError(
                f"objective (shortcut): weight is {weight}, temperature is {temperature}; allowed: weight of at least 0, "
                "temperature above 0"
            )
        self.fraction, self.weight, self.temperature, self.seed = fraction, weight, temperature, seed
        self.capturable = fraction is not None  # else the step is drawn anew at each update

    def shallow(self, steps: int, update: int) -> int:
        """Returns which of `steps` states learns, from 0; below the last one, apart from rollouts of one step."""
        if steps == 1:
            return 0
        if self.fraction is None:
            return int(np.random.default_rng([self.seed, update]).integers(steps - 1))
        return min(max(round(self.fraction * steps), 1), steps - 1) - 1

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns (loss, {loss_last, kl})."""
        targets = find_targets(rollout.batch)
        early = rollout.states[self.shallow(len(rollout.states), rollout.plan.update)]
        shallow, deep = target_features(model, [early, rollout.last], rollout.p, targets)

        def read(x: Tensor, y: Tensor, ids: Tensor) -> Tensor:
            logits, taught = target_logits(model, x, rollout.p), target_logits(model, y, rollout.p)
            return torch.stack(
                [F.cross_entropy(taught, ids, reduction="none"), divergence(taught.detach(), logits, self.temperature)]
            )

        losses, kl = over_chunks(read, 2 * model.config.vocab_size, shallow, deep, targets.ids)
        metrics = {"loss_last": targets.mean(losses).detach(), "kl": targets.mean(kl).detach()}
        return targets.mean(losses + self.weight * kl), metrics


def divergence(taught: Tensor, learner: Tensor, temperature: float) -> Tensor:
    """Returns KL_τ(softmax(taught) ‖ softmax(learner)) of each row of two [N, V] logits."""
    p, q = F.log_softmax(taught / temperature, -1), F.log_softmax(learner / temperature, -1)
    return temperature**2 * F.kl_div(q, p, reduction="none", log_target=True).sum(-1)
