"""GRPO: the model samples completions of its prompts, a reward judges them, and what was better than its group becomes likelier.

TRL runs it (`training/trl_trainer.py`); what stands here is what the recipe says, rewards, prompts, and the likelihood that a
looped model gives a completion. `lw.register("reward", name)` takes a function or a class of the user's own, which gives a number
for each completion. What it raises, or a number that is not finite, ends the run with one line.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopwright.data.batch import IGNORED, BatchSource, Order, Splits
from loopwright.generation.readings import split_rows
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.parts.state import mix, row_seeds, signed
from loopwright.schema import Kinds, build_kind, check_kind, check_number, check_whole
from loopwright.training.objectives.readout import (
    StepWeights,
    Targets,
    exit_log_probabilities,
    find_targets,
    need_all_steps,
    need_halting,
    over_chunks,
    target_features,
    target_logits,
)
from loopwright.training.rollout import Objective, Rollout
from loopwright.untrusted import first_line, shown

NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
MARK = "####"  # before the last number of an answer of GSM8K


@dataclass(frozen=True)
class Sample:
    """One completion to be judged, as text without control tokens: the `prompt`, what the model wrote, the `answer` of the data.

    `ended` says whether the model wrote its end token, or ran into the largest length.
    """

    prompt: str
    completion: str
    answer: str
    ended: bool = True


class Reward:
    """Judges completions. Abstract: a kind is (sample) → number."""

    def __call__(self, sample: Sample) -> float:
        """Returns what a completion is worth."""
        raise NotImplementedError


class Exact(Reward):
    """1 where the completion is the answer, letter by letter (blanks at its ends aside), and has ended: for algorithmic tasks."""

    def __call__(self, sample: Sample) -> float:
        return float(sample.ended and sample.completion.strip() == sample.answer.strip())


class Number(Reward):
    """1 where the final numbers of completion and answer are equal; 18, 18.00 and 18.0 are, and 1,000 is 1000.

    The final number is the first one after the last "####" (GSM8K), where there is one, else the last one. A completion that has
    a number but not the right one gets `near`.
    """

    def __init__(self, near: float = 0.0) -> None:
        check_number("reward (number): near", near, least=0, most=1)
        self.near = near

    def __call__(self, sample: Sample) -> float:
        wanted, got = final_number(sample.answer), final_number(sample.completion)
        if wanted is None:
            raise ValueError(f"the answer {shown(sample.answer)} has no number")
        return 1.0 if got == wanted else 0.0 if got is None else self.near


def final_number(text: str) -> Decimal | None:
    """Returns the number that a text ends with or marks as its answer; None where it has none."""
    _, mark, after = text.rpartition(MARK)
    numbers = NUMBER.findall(after)
    if not numbers:
        return None
    try:
        return Decimal((numbers[0] if mark else numbers[-1]).replace(",", ""))
    except InvalidOperation:
        return None


def from_function(function: Callable[[Sample], float]) -> type[Reward]:
    """Returns the kind of reward that calls a function of (sample)."""

    class RewardCall(Reward):
        def __call__(self, sample: Sample) -> float:
            return function(sample)

    RewardCall.__name__ = RewardCall.__qualname__ = getattr(function, "__name__", "reward")
    RewardCall.__module__, RewardCall.__doc__ = function.__module__, function.__doc__
    return RewardCall


def judge(name: str, reward: Reward, samples: Sequence[Sample]) -> list[float]:
    """Returns what each completion is worth; one that raises, or gives no finite number, is a ValueError of one line."""
    return [_judged(name, reward, sample) for sample in samples]


def _judged(name: str, reward: Reward, sample: Sample) -> float:
    where = f"reward ({name}), prompt {shown(sample.prompt)}, completion {shown(sample.completion)}"
    try:
        value: Any = reward(sample)
    except Exception as error:  # the user's own code raises what it likes
        raise ValueError(f"{where}: {type(error).__name__}: {first_line(error)}") from error
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{where}: gave {shown(value)}; a reward must be finite") from None
    except (TypeError, ValueError):
        raise ValueError(f"{where}: gave {shown(value)}; a reward must be a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{where}: gave {number}; a reward must be finite")
    return number


REWARDS = Kinds("reward", {"exact": Exact, "number": Number}, inherits=Reward, offers=["__call__"], from_function=from_function)


WHERE = "objective (grpo)"
PACKAGES = ("trl", "datasets")
EXIT_PDF = "exit-pdf"


class Grpo(Objective):
    """Group-relative policy optimisation: L = −mean_i A_i · mean_j log p(y_ij) + beta · KL(p_T ‖ p_T of the start).

    i counts completions, `group` of each prompt, j the tokens of one; A_i = (R_i − mean of the group) / deviation of the group
    (Shao et al., arXiv 2402.03300; one update per sample, so that no ratio is ever clipped). `reward` is the name of a reward, or
    {kind, options}. `credit` says which steps earn it: the "last" (log p is the read-out that was sampled from), a weighting of
    all steps with a gradient as `every-step` has it, log p = Σ_t w_t log p_t, or "exit-pdf": w_t is the exit gate's distribution of
    each token, which gets a gradient too (RLTT, arXiv 2602.10520). The divergence is that of the last step's read-outs, whatever
    earns credit. `tokens` is the longest completion; left out, the longest answer of the data.
    """

    reads = "last"
    read_out = "last"
    capturable = False
    sampled = True

    def __init__(
        self,
        reward: str | dict[str, Any],
        group: int = 8,
        temperature: float = 1.0,
        tokens: int | None = None,
        beta: float = 0.0,
        credit: str | list[float] = "last",
    ) -> None:
        spec = {"kind": reward} if isinstance(reward, str) else dict(reward)
        check_kind(f"{WHERE}: reward", spec, REWARDS)
        self.reward: Reward = build_kind(spec, REWARDS)
        self.reward_name = str(spec["kind"])
        self.group = check_whole(f"{WHERE}: group", group, 2)
        check_number(f"{WHERE}: temperature", temperature, above=0)
        check_number(f"{WHERE}: beta", beta, least=0)
        if tokens is not None:
            check_whole(f"{WHERE}: tokens", tokens, 1)
        self.temperature, self.tokens, self.beta = temperature, tokens, beta
        self.reads = "last" if credit == "last" else "every"
        self.by_gate = credit == EXIT_PDF
        # the last one alone is a list of one
        self.weights = StepWeights(f"{WHERE}: credit", [1.0] if credit in ("last", EXIT_PDF) else credit, also=("last", EXIT_PDF))
        self.reference: LoopedForCausalLM | None = None

    def prepare(self, model: LoopedForCausalLM, device: torch.device | str) -> None:
        """Keeps the model as it starts, frozen, where the loss holds on to it: a resumed run builds the same one again."""
        if self.by_gate:
            need_halting(model, "grpo", "logits")
        if self.beta:
            self.reference = copy.deepcopy(model).eval().requires_grad_(False)

    def fixed_models(self) -> dict[str, LoopedForCausalLM]:
        """Returns the model of the start, where the loss holds on to it."""
        return {} if self.reference is None else {"model of the start": self.reference}

    def check(self, recipe: Mapping[str, Any], splits: Splits, world: int) -> None:
        """Raises a ValueError where a run cannot be one of GRPO, before anything is written."""
        missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            raise ValueError(f"{WHERE}: {missing[0]} is not installed; pip install 'loopwright[rl,data]'")
        if world > 1:
            raise ValueError(f"{WHERE}: runs in one process (got {world})")
        if not splits.exact or splits.in_place or splits.tokenizer is None or splits.eos_id is None:
            raise ValueError(f"{WHERE}: data {recipe['data']['kind']!r} has no prompts with answers; give a task or kind: chat")
        rows = recipe["batch"] // recipe["accumulate"]
        if rows % self.group:
            raise ValueError(f"{WHERE}: batch / accumulate ({rows} completions) must be a multiple of group ({self.group})")
        refused = [name for name in ("penalties", "graph") if recipe[name] and recipe[name] != "auto"]
        if refused:
            raise ValueError(f"{WHERE}: {refused[0]} is not offered with completions that are sampled; leave it out")
        longest_answer(splits.train, self.rows(recipe, len(splits.train)))

    def rows(self, recipe: Mapping[str, Any], samples: int) -> Tensor:
        """Returns which of the training samples each prompt of the whole run is, update by update."""
        order, batch = recipe["order"], recipe["batch"] // recipe["accumulate"] // self.group
        places = Order(samples, recipe["seed"], order["shuffled"], repeat=order["repeat"], batch=batch)
        return places.indices(0, recipe["updates"] * recipe["accumulate"] * batch)

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns (−mean log p of the targets, {loss_last}): the loss of completions that are all worth 1."""
        targets = find_targets(rollout.batch)
        loss = -targets.mean(self.log_likelihoods(model, rollout, targets).credited)
        return loss, {"loss_last": loss.detach()}

    def log_likelihoods(self, model: LoopedForCausalLM, rollout: Rollout, targets: Targets) -> Likelihoods:
        """Returns log p of each target at the temperature of sampling, by the steps that earn credit and by the last one."""
        states = rollout.states
        if self.by_gate:
            need_all_steps(rollout, "grpo")
            gate = torch.stack([targets.pick(model.halting.logit(s))[:, 0] for s in states])
            share = exit_log_probabilities(gate).exp()
        else:
            weights = self.weights(len(states))
            states, share = states[-len(weights) :], torch.tensor(weights, device=targets.ids.device)[:, None]
        features = target_features(model, states, rollout.p, targets)

        def read(x: Tensor, ids: Tensor) -> Tensor:
            log_p = (target_logits(model, x, rollout.p) / self.temperature).log_softmax(-1)
            return torch.stack([log_p.gather(1, ids[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)])

        likelihoods = over_chunks(read, model.config.vocab_size, features.flatten(0, 1), targets.ids.repeat(len(states)))
        log_p, entropy = likelihoods.view(2, len(states), -1)
        return Likelihoods((share.to(log_p.dtype) * log_p).sum(0), log_p[-1], entropy[-1].detach())


class Likelihoods(NamedTuple):
    """Of each target [N]: log p by the steps that earn credit, log p by the last step, and the entropy after the last step."""

    credited: Tensor
    last: Tensor
    entropy: Tensor


def kl_estimate(log_p: Tensor, reference: Tensor) -> Tensor:
    """Returns an estimate of KL(p ‖ p of the start) at tokens that p sampled, r − log r − 1 with r = p of the start / p: it is at
    least 0, and right in the mean (RLTT, eq. 7)."""
    ratio = reference - log_p
    return ratio.exp() - ratio - 1


def longest_answer(source: BatchSource, rows: Tensor) -> int:
    """Returns the tokens of the longest answer of these rows; refuses one that is not a prompt and one answer after it."""
    longest = 0
    for part in rows.unique().split(512):
        batch = source.batch(part)
        if batch.segment_ids is not None:
            raise ValueError(f"{WHERE}: row {int(part[0])} of the training data is packed; set data.packed: false")
        asked = batch.labels[:, 1:] != IGNORED
        answers = asked[:, 0] + (asked[:, 1:] & ~asked[:, :-1]).sum(1)
        for row, count in zip(part.tolist(), answers.tolist(), strict=True):
            if count != 1:
                raise ValueError(f"{WHERE}: row {row} of the training data has {count} answers; allowed: one, after its prompt")
        longest = max(longest, int(asked.sum(1).max()))
    return longest


class Prompts:
    """The training rows of a dataset: what stands before the first target is the prompt, the targets are the answer."""

    def __init__(self, splits: Splits) -> None:
        self.splits = splits
        self._held: dict[int, tuple[list[int], list[int]]] = {}

    def prompt(self, row: int) -> list[int]:
        """Returns the tokens of a prompt."""
        return self._row(row)[0]

    def answer(self, row: int) -> list[int]:
        """Returns the tokens of the data's answer, its end included."""
        return self._row(row)[1]

    def text(self, ids: Sequence[int]) -> str:
        """Returns tokens as text, without control tokens."""
        return self.splits.tokenizer.decode(ids, skip_special_tokens=True)

    def _row(self, row: int) -> tuple[list[int], list[int]]:
        if row not in self._held:
            if len(self._held) > 4096:
                self._held.clear()
            prompts, answers = split_rows(self.splits.train.batch([row]))
            self._held[row] = prompts[0].tolist(), answers[0].tolist()
        return self._held[row]


def cut(written: Tensor, ends: Collection[int]) -> list[list[int]]:
    """Returns each row up to its first end token, that one included."""
    rows = written.tolist()
    return [row[: next((place + 1 for place, token in enumerate(row) if token in ends), len(row))] for row in rows]


def prompt_seeds(seed: int, update: int, ids: Tensor, mask: Tensor) -> Tensor:
    """Returns a seed for each prompt of an update [B], from its tokens [B, T] where the mask says that they are real.

    Sampling, policy and reference find it again in any order of rows: a ratio of their likelihoods is that of one start. The
    completions of a group share it, so that none is better by its start.
    """
    places = mask.long().cumsum(1)
    words = mix(ids.long() * signed(0x9E3779B97F4A7C15) + places * signed(0xD1342543DE82EF95)) * mask.long()
    return mix(words.sum(1) + row_seeds(seed, torch.tensor([update], device=ids.device)))
