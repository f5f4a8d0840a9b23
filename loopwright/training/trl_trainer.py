"""TRL's GRPOTrainer over a looped model: each batch of completions at a depth of its own, in the run folder's own forms.

TRL has the loop: sampler, groups, advantages, loss, backward pass. What it leaves to others is put in here: the rows of each
update (a pure function of the place, so nothing of the sampler is saved), the depth, the likelihood by steps, the optimiser, and,
between two updates, log, validation and checkpoints. So a run resumes bit for bit, and every verb reads it.
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from loopwright.data.batch import IGNORED, Batch
from loopwright.generation.readings import left_padded
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.training.grpo import Grpo, Prompts, Sample, cut, judge, kl_estimate, longest_answer, prompt_seeds
from loopwright.training.loop import Updates
from loopwright.training.objectives.readout import find_targets
from loopwright.training.rollout import Plan, rollout
from loopwright.training.run import TrainingModule

# what TRL measures of an update, and its name in our log
METRICS = {"reward": "reward", "reward_std": "reward_std", "entropy": "entropy", "kl": "kl", "completions/mean_length": "length",
           "frac_reward_zero_std": "same_reward"}  # fmt: skip
Settings = tuple[Any, Any]  # a model's config and generation config


def train_by_reward(updates: Updates) -> None:
    """Runs the updates that are left. A reward that fails ends the run with one line; what was reached before it is saved."""
    if not updates.left or updates.stop:
        return
    job = updates.job
    try:
        with tempfile.TemporaryDirectory() as folder, lent(job.model) as settings:
            for name in ("bos_token_id", "eos_token_id", "pad_token_id"):  # else transformers does, and says so
                for config in (job.model.config, job.model.generation_config):
                    setattr(config, name, getattr(job.splits.tokenizer, name))
            trainer = LoopedGRPO(updates, folder, settings)
            trainer.train()
    except RewardError as error:
        job.zero_grad()
        job.depth_generator.set_state(trainer.depths_before)
        saved = updates.save()
        raise ValueError(f"update {updates.progress.update}: {error}; the run up to here is saved in {saved}") from error


@contextmanager
def lent(model: LoopedForCausalLM) -> Iterator[Settings]:
    """The model in TRL's hands, which changes control tokens, settings and even `forward`; afterwards nothing of it is left."""
    kept, names = (model.config, model.generation_config), set(vars(model))
    model.config, model.generation_config = copy.deepcopy(kept)
    try:
        yield kept
    finally:
        model.config, model.generation_config = kept
        for name in set(vars(model)) - names:
            del model.__dict__[name]


@contextmanager
def returned(model: LoopedForCausalLM, settings: Settings) -> Iterator[None]:
    """The model with its own settings again, as it is measured and saved between two updates."""
    theirs = model.config, model.generation_config
    model.config, model.generation_config = settings
    try:
        yield
    finally:
        model.config, model.generation_config = theirs


class RewardError(ValueError):
    """A reward that raised, or gave what is no finite number."""


class LoopedGRPO(GRPOTrainer):
    """TRL's trainer for the updates of a run that are left."""

    def __init__(self, updates: Updates, folder: str, settings: Settings) -> None:
        self.updates, self.job, self.settings = updates, updates.job, settings
        job, recipe = self.job, self.job.recipe
        self.objective = cast(Grpo, job.objective)
        size, prompts = recipe.batch // recipe.accumulate, recipe.batch // self.objective.group
        whole = self.objective.rows(recipe.data_of(), len(job.splits.train))
        rows = whole[updates.progress.update * prompts :].tolist()
        # of the whole run: a resumed one has the same
        tokens = self.objective.tokens or longest_answer(job.splits.train, whole)
        self.source = Prompts(job.splits)
        self.began, self.depths_before = time.perf_counter(), job.depth_generator.get_state()
        self.plans: list[Plan] = []
        self.drawn: list[Plan] = []
        self.losses: list[Tensor] = []
        self.counts = [0, 0]  # sampled and all tokens of an update
        self.at: Plan | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rollout_func is called experimental
            super().__init__(
                model=job.model,
                reward_funcs=[self.judge],
                args=self._arguments(folder, size, tokens),
                # a row is its number: TRL sees no token of ours before it is sampled
                train_dataset=Dataset.from_dict({"prompt": [str(row) for row in rows]}),
                processing_class=copy.deepcopy(job.splits.tokenizer),  # TRL pads by EOS where nothing else is set
                rollout_func=self.sample,
                callbacks=[Between(self)],
                optimizers=(step := Step(self), torch.optim.lr_scheduler.LambdaLR(step, lambda _: 1.0)),
            )
        self.remove_callback(PrinterCallback)
        # TRL would look for the start model under a name; ours was kept when the run was built
        self.beta, self.ref_model = self.objective.beta, self.objective.reference

    def _arguments(self, folder: str, size: int, tokens: int) -> Any:
        return GRPOConfig(
            output_dir=folder, max_steps=self.updates.left, per_device_train_batch_size=size,
            gradient_accumulation_steps=self.job.recipe.accumulate, steps_per_generation=1,
            num_generations=self.objective.group, temperature=self.objective.temperature, max_completion_length=tokens,
            loss_type="grpo", beta=0.0, use_bias_correction_kl=False, max_grad_norm=0.0, shuffle_dataset=False,
            gradient_checkpointing=False, bf16=False, use_cpu=self.job.device.type == "cpu", report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True, remove_unused_columns=False, seed=self.job.recipe.seed,
        )  # fmt: skip

    def sample(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Returns completions of a batch of rows, at the depth that the rule draws for it."""
        job, progress = self.job, self.updates.progress
        if not self.plans:
            self.began, self.depths_before = time.perf_counter(), job.depth_generator.get_state()
            job.begin_update(progress.update)
            self.drawn = job.rule.plans(progress.update, job.recipe.accumulate, job.depth_generator)
        self.at = plan = self.drawn[len(self.plans)]
        self.plans.append(plan)
        asked = [self.source.prompt(int(row)) for row in prompts]
        rows, width = [torch.tensor(row, device=job.device) for row in asked], max(map(len, asked))
        ids, mask = left_padded(rows, width, self._tokenizer.pad_token_id)
        loop: dict[str, Any] = {"depth": plan.depth} if job.model.config.is_looped else {}
        if job.model.state.seeded:
            loop["state_seed"] = self._starts(ids, mask)
        job.model.eval()
        with torch.no_grad(), job.autocast():
            written = job.model.generate(ids, attention_mask=mask, generation_config=self.generation_config, **loop)
        job.model.train()
        completions = cut(written[:, ids.shape[1] :].cpu(), self.eos_token_ids)
        self.counts[0] += sum(map(len, completions))
        self.counts[1] += sum(map(len, completions)) + sum(map(len, asked))
        return {"prompt_ids": asked, "completion_ids": completions, "logprobs": None}

    def judge(self, prompts: list[str], completion_ids: list[list[int]], **rest: Any) -> list[float]:
        """Returns what completions are worth."""
        read = self.source.text
        samples = [
            Sample(read(self.source.prompt(row)), read(ids), read(self.source.answer(row)), ended=ids[-1] in self.eos_token_ids)
            for row, ids in zip(map(int, prompts), completion_ids, strict=True)
        ]
        try:
            return judge(self.objective.reward_name, self.objective.reward, samples)
        except ValueError as error:
            raise RewardError(str(error)) from error

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *rest: Any, **more: Any
    ) -> tuple[Tensor, Tensor, None]:
        """Returns log p of each token of the completions [B, C] by the steps that earn credit, of the model at the start by its
        last step, and the entropies."""
        assert self.at is not None
        labels = input_ids.masked_fill(attention_mask == 0, IGNORED)
        labels[:, :-logits_to_keep] = IGNORED
        asked = slice(None), slice(-logits_to_keep)
        batch = Batch(
            input_ids, labels,
            attention_mask=None if bool(attention_mask.all()) else attention_mask,
            seeds=self._starts(input_ids[asked], attention_mask[asked]) if self.job.model.state.seeded else None,
        )  # fmt: skip
        module, own = cast(TrainingModule, self.job.module), self.accelerator.unwrap_model(model)
        step = module.step if own is self.job.model else None
        with self.job.autocast():
            path = rollout(own, batch, self.at, step=step, remat=module.remat, keeps=self.objective.reads)
            targets = find_targets(batch)
            scores = self.objective.log_likelihoods(own, path, targets)
        places = targets.places + 1
        credited, last, entropy = (
            torch.zeros(input_ids.numel(), dtype=x.dtype, device=x.device)
            .index_put((places,), x)
            .view_as(input_ids)[:, -logits_to_keep:]
            for x in scores
        )
        if own is not self.job.model:  # of the model at the start, only the divergence asks
            return last, entropy, None
        self.last = last
        return credited, entropy, None

    def _starts(self, ids: Tensor, mask: Tensor) -> Tensor:
        return prompt_seeds(self.job.recipe.seed, self.updates.progress.update, ids, mask)

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Tensor:
        """Returns TRL's loss of a batch with our divergence, and keeps it for the log.

        TRL's own would be of what earns credit, which is a mean over steps and no distribution. Where the last step alone earns it,
        the two are one: TRL's without its bias correction.
        """
        beta, self.beta = self.beta, 0.0
        try:
            loss = super().compute_loss(model, inputs, *given, **named)
        finally:
            self.beta = beta
        if beta:
            mask = inputs["completion_mask"]
            apart = kl_estimate(self.last, inputs["ref_per_token_logps"]) * mask
            loss = loss + beta * (apart.sum(1) / mask.sum(1).clamp(min=1)).mean() / self.job.recipe.accumulate
            self._metrics["train"]["kl"].append(float((apart.sum() / mask.sum().clamp(min=1)).detach()))
        self.losses.append(loss.detach())
        return loss

    def move(self) -> None:
        """Clips and steps, unless the update's loss or gradient is not finite; keeps its row of the log."""
        job = self.job
        loss, norm = float(torch.stack(self.losses).sum()), float(job.clip())
        self.finite = math.isfinite(loss) and math.isfinite(norm)
        if self.finite:
            job.step(self.updates.progress.update)
        job.zero_grad()
        row = {ours: _mean(self._metrics["train"][theirs]) for theirs, ours in METRICS.items() if self._metrics["train"][theirs]}
        self.row = {
            "update": self.updates.progress.update, "loss": loss, "depth": [plan.depth for plan in self.plans], "grad_norm": norm,
            "lr": job.optimiser.lr, "targets": self.counts[0], "tokens": self.counts[1], **row,
        }  # fmt: skip

    def end_update(self) -> None:
        """Hands the update that was made to the run, and makes room for the next one."""
        self._metrics["train"].clear()
        self.plans, self.losses, self.counts = [], [], [0, 0]
        with returned(self.job.model, self.settings):
            self.updates.end(self.row, finite=self.finite, began=self.began)


class Between(TrainerCallback):
    """What a run does between two updates; ends TRL's loop where the run is to stop."""

    def __init__(self, trainer: LoopedGRPO) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        """Ends the update."""
        self.trainer.end_update()
        control.should_training_stop = control.should_training_stop or bool(self.trainer.updates.stop)
        return control


class Step(torch.optim.Optimizer):
    """The run's own optimiser where TRL expects one of torch's."""

    def __init__(self, trainer: LoopedGRPO) -> None:
        self.trainer = trainer
        super().__init__(list(trainer.job.optimiser.parameters.values()), {"lr": trainer.job.optimiser.base_lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Moves the parameters."""
        self.trainer.move()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients."""
        self.trainer.job.zero_grad()


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
