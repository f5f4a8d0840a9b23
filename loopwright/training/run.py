"""The live objects of a run, built from its recipe: model, data, objective, optimiser, schedule, generators.

`TrainingModule` is the module whose forward pass is the objective: what distributed wrappers hook, since they only see `forward`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from loopwright.checkpoints.weights import load_tensors
from loopwright.data.batch import Batch, Order, Splits
from loopwright.data.build import build_data, check_vocab
from loopwright.generation.readings import check_depths
from loopwright.metrics.score import METRICS, Metric
from loopwright.model.backbone import StepRunner
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.state import row_seeds
from loopwright.registry import noted_files
from loopwright.schema import build_kind
from loopwright.storage.files import write_json, write_whole
from loopwright.storage.run import ANEW, RunFolder, origin
from loopwright.training.checkpoint import (
    as_built,
    base_references,
    digest_of_model,
    load_weights,
    model_tensors,
)
from loopwright.training.compile import CompileComparison, CompiledStacks, CompiledStep, Failed, has_block_attention, should_compile
from loopwright.training.depth import RULES, DepthRule
from loopwright.training.distributed import Processes
from loopwright.training.gradient import REMATS, Remat, draws
from loopwright.training.graphs import LEAVES, GraphedWork, foreign, obstacle, unsuited
from loopwright.training.model import model_of_run
from loopwright.training.objectives.losses import OBJECTIVES
from loopwright.training.objectives.penalties import PENALTIES, Weighted
from loopwright.training.optim import AVERAGES, OPTIMISERS, SCHEDULES, Optimiser, clip, cut_short, whole
from loopwright.training.recipe import Recipe, first_difference, read_recipe, written
from loopwright.training.report import Objects, Progress, ProgressReporter, Speedometer
from loopwright.training.rollout import Called, Objective, Plan, rollout
from loopwright.training.trainable import check_trainable, depth_generator, drawn_plans, out_of_reach

Weights = Sequence[float | Tensor | None]  # what each penalty counts for at an update; None: not at all, not computed


@dataclass(frozen=True)
class UpdateBatches:
    """One process's rows of an update: (batch, plan) pairs on its device, the targets of each batch, the real tokens of all."""

    pairs: list[tuple[Batch, Plan]]
    targets: list[int]
    tokens: int


@dataclass(frozen=True)
class Prefetched:
    """What was drawn for the next update, and where the depth generator stood before: that is what a checkpoint must hold."""

    drawn: UpdateBatches
    depths: Tensor


@dataclass(frozen=True)
class Share:
    """Which share of an update a batch is: of its targets, which objectives average over, and of its rows, for penalties."""

    targets: float | Tensor = 1.0
    rows: float | Tensor = 1.0


class TrainingModule(nn.Module):
    """A model with what it is trained for. (batch, plan, share, weights) → (loss, metrics).

    All of them count as the share of the update that the batch is: summed over the batches and processes of an update they are
    the means of the whole, however unevenly the targets fell to the batches.
    """

    def __init__(
        self,
        model: LoopedForCausalLM,
        objective: Any,
        penalties: Sequence[Weighted] = (),
        *,
        remat: str | Remat = "none",
        compiled: bool = False,
    ) -> None:
        super().__init__()
        names = [penalty.name for penalty in penalties]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:  # they would share a name in the log, and the hook of the last step
            raise ValueError(f"penalties: {twice[0]} stands there twice; allowed: each kind once")
        self.model = model
        self.objective = objective
        self.penalties = list(penalties)
        self.remat = remat
        self.step: StepRunner = model.step
        self.stacks: CompiledStacks | None = None
        if compiled:
            # penalties take the step apart in ways that attention by blocks has no derivative for
            blocks = not self.penalties and has_block_attention(model)
            self.step, self.stacks = CompiledStep(model), CompiledStacks(model, block_masks=blocks)

    def leave_compiled(self) -> None:
        """Runs as written from now on."""
        self.step, self.stacks = self.model.step, None

    def forward(
        self, batch: Batch, plan: Plan, share: Share | None = None, weights: Weights = ()
    ) -> tuple[Tensor, dict[str, Tensor]]:
        share = share or Share()
        active = [(penalty, weight) for penalty, weight in zip(self.penalties, weights, strict=False) if weight is not None]
        hooks = [penalty.hook for penalty, _ in active if penalty.hook is not None]
        path = rollout(
            self.model, batch, plan,
            step=self.step, stacks=self.stacks, remat=self.remat, keeps=self.objective.reads, hook=hooks[0] if hooks else None,
        )  # fmt: skip
        loss, metrics = self.objective(self.model, path)
        loss, metrics = loss * share.targets, {name: value * share.targets for name, value in metrics.items()}
        metrics["objective"] = loss.detach()
        for penalty, weight in active:
            value = penalty.penalty(self.model, path) * share.rows
            loss = penalty.combine(loss, value, weight)
            metrics[penalty.name] = value.detach()
        return loss, metrics


class Job:
    """The live objects of a run. How it is spread over processes stays behind its methods; the loop reads like one process."""

    def __init__(
        self, recipe: Recipe, run: RunFolder, processes: Processes, reporter: ProgressReporter, given: Objects | None = None
    ) -> None:
        given = given or Objects()
        torch.set_float32_matmul_precision("highest" if recipe.precision == "fp32" else "high")
        self.recipe, self.processes, self.device = recipe, processes, processes.device
        with processes.main_first():  # one process tokenises, the others find it done
            self.splits: Splits = given.data or build_data(recipe.data, run.data, progress=reporter.prepare)
        self.model: LoopedForCausalLM = given.model or model_of_run(recipe.model, recipe.seed, run.checkpoints)
        check_vocab(self.splits, self.model.config.vocab_size)
        self.rule: DepthRule = build_kind(recipe.depth, RULES)
        self.rule.check(recipe.accumulate)
        self.depths = validation_depths(self.model.config, self.rule, recipe)
        self.schedule = build_kind(recipe.schedule, SCHEDULES)
        optim = build_kind(recipe.optim, OPTIMISERS)
        optim.prepare(self.model)
        check_precision(self.model, recipe.precision)
        self.references = base_references(recipe.model, self.model) if recipe.save.parts else None
        self.model.to(device=self.device).train()  # type: ignore[call-arg]  # how transformers wraps `to`
        self.model.zero_grad()  # a model that was given may hold gradients, and updates add to what is there
        self.objective = objective = self._objective(given.objective)
        objective.check(recipe.data_of(), self.splits, processes.world)
        objective.prepare(self.model, self.device)
        self.made_of = as_built(self)
        if processes.world > 1:
            processes.check_same({**self.made_of, "model": digest_of_model(self.model)})
        self.metrics: dict[str, Metric] = {spec["kind"]: build_kind(spec, METRICS) for spec in recipe.validate.metrics}
        self.penalties = [Weighted.build(spec, PENALTIES) for spec in recipe.penalties]
        self.compiled, message = should_compile(recipe.compile, self.device, alike=self.splits.alike)
        if message is not None:
            reporter.note(message)
        remat = build_kind(recipe.remat_spec, REMATS)
        if objective.reads == "every" and remat.where_all_are_kept is not None:
            reporter.note(
                f"remat: {recipe.remat_spec['kind']} runs as {remat.where_all_are_kept}: the objective "
                f"{recipe.objective['kind']} reads the state after every step, so all are kept"
            )
        self.bare = bare = TrainingModule(self.model, objective, self.penalties, remat=remat, compiled=self.compiled)
        self.speed = Speedometer(self.model.config, objective, recipe.precision, self.device)
        with self.autocast():  # before the wrapper takes the model: it counts passes
            check_trainable(self.model, objective, drawn_plans(self.rule, recipe))
        self._take_read_out(reporter)
        self.module = processes.wrap(bare)
        if not self.splits.exact and any(penalty.start_accuracy is not None for penalty in self.penalties):
            raise ValueError(
                f"penalties: start_accuracy needs answers that are right or wrong; data {recipe.data['kind']!r} has none"
            )
        self.optimiser: Optimiser = optim(self.model)  # of what the wrapper made of the parameters
        self.average = None if recipe.average is None else build_kind(recipe.average, AVERAGES)(self.model)
        self.replayed = self._graphs(reporter)
        self.note = reporter.note
        self.comparison = CompileComparison(self.optimiser.parameters) if self._comparable() else None
        size = recipe.batch // recipe.accumulate
        self.order = Order(len(self.splits.train), recipe.seed, recipe.order.shuffled, repeat=recipe.order.repeat, batch=size)
        for line in cut_short(self.schedule, recipe.updates):
            reporter.note(line)
        if recipe.batch > len(self.splits.train):
            times = recipe.batch / len(self.splits.train)
            reporter.note(f"batch: {recipe.batch:,} rows of {len(self.splits.train):,}: each update takes a row {times:.3g} times")
        self.depth_generator = depth_generator(recipe)
        self.start = ANEW
        self._ahead: Prefetched | None = None

    def _objective(self, given: Any) -> Objective:
        if given is None:
            objective: Objective = build_kind(self.recipe.objective, OBJECTIVES)
        else:
            objective = given if isinstance(given, Objective) else Called(given)
        if self.recipe.graph is True and not objective.capturable:
            raise ValueError(
                f"graph: the work of the objective {self.recipe.objective['kind']!r} changes from update to update; allowed: "
                "options that fix it (shortcut: a fraction), or graph: false"
            )
        return objective

    def _take_read_out(self, reporter: ProgressReporter) -> None:
        """Lets the model answer by the read-out that the objective trains, in validation and wherever it is saved to."""
        config, trained = self.model.config, self.objective.read_out
        if trained is not None and trained != config.read_out:
            reporter.note(f"read-out: {trained}, which the objective trains (the model's was {config.read_out})")
            config.read_out = trained
        if self.objective.validates:
            reporter.note("validation: the best is judged by the objective's own loss, `objective` in the log")

    def _graphs(self, reporter: ProgressReporter) -> GraphedWork | None:
        """What replays passes as CUDA graphs, where that is asked for, or serves unasked."""
        asked, world = self.recipe.graph is True, self.processes.world
        alone = self.device.type == "cuda" and world == 1
        if asked and not alone:
            processes = "one process" if world == 1 else f"{world} processes"
            raise ValueError(f"graph: asked for on {self.device.type} in {processes}; allowed: one process, on cuda")
        if not asked:
            if self.recipe.graph is False or not alone or not self.compiled:
                return None
            kinds = [weighted.penalty for weighted in self.penalties]
            why_not = unsuited(
                self.model, self.objective, kinds, self.rule, self.recipe.remat_spec["kind"], alike=self.splits.alike
            )
            if why_not is not None:
                reporter.note(f"{LEAVES}: {why_not}")
                return None
        return GraphedWork(self._backward_given, self.device, asked=asked, note=reporter.note)

    def _comparable(self) -> bool:
        """Whether a pass can run twice, in the form of this run and as written, and must then come out the same."""
        kinds = [weighted.penalty for weighted in self.penalties]
        other_form = self.compiled or self.replayed is not None
        ours = foreign(self.model, self.objective, kinds) is None
        return other_form and self.processes.world == 1 and ours and not draws(self.model)

    @property
    def replays(self) -> bool:
        """Whether passes are replayed as CUDA graphs, or will be; no longer once that was given up."""
        return self.replayed is not None and self.replayed.capturing

    @property
    def replaying(self) -> bool:
        """Whether the last pass was replayed."""
        return self.replayed is not None and self.replayed.replaying

    @property
    def median(self) -> int:
        """The depth that validation takes as typical: the median one of training, 1 where there is no loop."""
        return self.rule.median if self.model.config.is_looped else 1

    def begin_update(self, update: int) -> None:
        """Sets the learning rates, and seeds what dropout draws as a function of (seed, update, process): nothing to save."""
        self.optimiser.set_factor(self.schedule(update, self.recipe.updates))
        seed = (self.recipe.seed * 1_000_003 + update) * 4_099 + self.processes.rank
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which writes down where it was called from each time
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def draw(self, progress: Progress) -> UpdateBatches:
        """Returns this process's rows of one update, taken ahead or now; depths are drawn alike in all processes."""
        ahead, self._ahead = self._ahead, None
        return ahead.drawn if ahead is not None else self._draw(progress.update, progress.rows)

    def draw_ahead(self, progress: Progress) -> None:
        """Takes the rows of the next update now, while the device works on those of this one."""
        if progress.update + 1 < self.recipe.updates:
            depths = self.depth_generator.get_state()
            self._ahead = Prefetched(self._draw(progress.update + 1, progress.rows + self.recipe.batch), depths)

    def _draw(self, update: int, first: int) -> UpdateBatches:
        size = self.recipe.batch // self.recipe.accumulate
        pairs, targets, tokens = [], [], 0
        for place, plan in enumerate(self.rule.plans(update, self.recipe.accumulate, self.depth_generator)):
            indices, rows = self.order.share(first + place * size, size, self.processes.rank, self.processes.world)
            seeds = row_seeds(self.recipe.seed, rows) if self.model.state.seeded else None
            batch = replace(self.splits.train.batch(indices), rows=rows, seeds=seeds)
            targets.append(batch.targets)
            tokens += int(batch.valid.sum())
            pairs.append((batch.ready(coarse=self.replays).to(self.device), plan))
        return UpdateBatches(pairs, targets, tokens)

    def backward(self, batch: Batch, plan: Plan, share: Share, solved_at: int | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the gradients of a batch, as the share of the update that it is; returns its loss and metrics."""
        factors = [penalty.factor(plan.update, solved_at) for penalty in self.penalties]
        weights = [factor if factor > 0 else None for factor in factors]
        counts = tuple(weight is not None for weight in weights)  # a penalty that begins to count makes it another pass
        rows = (batch.input_ids.shape, batch.attention_mask is None, counts)  # each is compiled on its own
        if self.comparison is not None and self.comparison.is_due((plan.depth, plan.grad_steps, counts), rows):
            return self._compared(self.comparison, batch, plan, share, weights)
        return self._pass(batch, plan, share, weights)

    def _compared(
        self, comparison: CompileComparison, batch: Batch, plan: Plan, share: Share, weights: Weights
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The same beside the pass as written, which is what counts where a form that nobody asked for differs from it."""
        plain = TrainingModule(self.model, self.objective, self.penalties, remat=self.bare.remat)

        def as_written(*, precise: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
            with self.replayed.aside() if self.replayed is not None and self.replays else nullcontext():
                return self._backward(batch, plan, share, weights, plain, precise=precise)

        written, result, failed = None, None, Failed()
        with self.speed.uncounted(), suppress(torch.OutOfMemoryError):
            written = comparison.run_written(as_written)
        if written is not None:
            with suppress(torch.OutOfMemoryError), failed:  # the gradients that are kept beside it need memory too
                result = self._pass(batch, plan, share, weights)
            result = written if failed.how else result
        if written is None or result is None:
            comparison.forget(put_back=True)
            self.comparison = None
            self.note(f"{'compile' if self.compiled else 'graph'}: no memory to compare the first pass with the pass as written")
            torch.cuda.empty_cache()
            return self._pass(batch, plan, share, weights)
        how = failed.how or (comparison.difference(partial(as_written, precise=True)) if self.compiled or self.replaying else None)
        if how is not None:
            self._leave(how)
            comparison.take_written()
            result = written
        comparison.forget()
        return result

    def _leave(self, how: str) -> None:
        """Leaves the form of passes that differs from them as written, and says so; one that was asked for ends the run."""
        option, form = ("graph", "replayed") if self.replaying else ("compile", "compiled")
        message = f"{option}: in a {form} pass {how} (torch {torch.__version__})"
        if getattr(self.recipe, option) is True:
            raise ValueError(f"{message}; {option}: false trains without it")
        self.note(f"{message}; passes are not {form} from here on")
        if self.replayed is not None and self.replaying:
            self.replayed.give_up("their gradients would not be right")
        else:
            self.leave_compiled()

    def leave_compiled(self) -> None:
        """Runs passes as written from now on, replayed where that was asked for."""
        self.compiled = False
        self.bare.leave_compiled()
        if self.replayed is not None and not self.replayed.asked:
            self.replayed.give_up("they are not compiled")
        if not self.replays:
            self.comparison = None

    def _pass(self, batch: Batch, plan: Plan, share: Share, weights: Weights) -> tuple[Tensor, dict[str, Tensor]]:
        """The same as it runs in this run: replayed, compiled or as written."""
        if self.replayed is None:
            return self._backward(batch, plan, share, weights)
        why_not = obstacle(batch, self.model.config)
        if why_not is not None and self.replayed.asked:
            raise ValueError(f"graph: {why_not}, or graph: false")
        if why_not is not None:
            self.replayed.give_up(why_not)

        def number(x: Any) -> Tensor | None:
            return None if x is None else torch.full((), x, device=self.device)

        held = {f.name: getattr(batch, f.name) for f in fields(batch)}
        inputs = {"batch": held, "share": [number(share.targets), number(share.rows)], "weights": [number(w) for w in weights]}
        return self.replayed(inputs, plan.depth, plan.grad_steps)

    def _backward(
        self, batch: Batch, plan: Plan, share: Share, weights: Weights, module: nn.Module | None = None, *, precise: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        with nullcontext() if precise else self.autocast():
            loss, metrics = (module or self.module)(batch, plan, share, weights)
        if not loss.requires_grad:
            raise out_of_reach(plan.depth, self.optimiser.parameters)
        (loss * self.processes.world).backward()  # wrappers average over processes, and shares are to be summed
        return loss.detach(), metrics

    def _backward_given(self, inputs: dict[str, Any], depth: int, grad_steps: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The same on plain tensors, and on what decides the shape of the work: the form that can be captured."""
        return self._backward(Batch(**inputs["batch"]), Plan(depth, grad_steps), Share(*inputs["share"]), inputs["weights"])

    def release(self) -> None:
        """Gives back at the end of a run what its graphs hold: they and the job refer to each other, so memory would wait for the
        garbage collector. The gradients that they added to would stay with the model."""
        self.replayed = None
        self.model.zero_grad()

    def zero_grad(self) -> None:
        """Makes room for the gradients of the next update; captured passes add to the same tensors for ever."""
        if self.replays:
            torch._foreach_zero_([p.grad for p in self.model.parameters() if p.grad is not None])
        else:
            self.optimiser.zero_grad()

    def clip(self) -> Tensor:
        """Clips the gradients to the recipe's norm, where it has one, and returns the norm they had."""
        return clip(self.optimiser.parameters.values(), self.recipe.clip)

    def step(self, update: int) -> None:
        """Moves the parameters, and takes them into the running average, where there is one."""
        self.optimiser.step()
        if self.average is not None:
            self.average.take_in(update)

    def autocast(self) -> AbstractContextManager[None]:
        """Returns the context of a pass in the run's precision; the parameters are float32 whatever it is."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16")

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The model as it is measured: without dropout and gradients, in the run's precision, averaged where it averages."""
        averaged = nullcontext() if self.average is None else self.average.swapped()
        self.model.eval()
        try:
            with torch.no_grad(), averaged, self.processes.gathered(), self.autocast():
                yield
        finally:
            self.model.train()

    def weights(self) -> dict[str, Tensor]:
        """Returns the model's tensors, whole; where they are spread over processes, all must ask."""
        return {name: whole(tensor.detach()) for name, tensor in model_tensors(self.model).items()}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Returns what a checkpoint holds beside the weights, by file; where it is spread over processes, all must ask."""
        depths = self.depth_generator.get_state() if self._ahead is None else self._ahead.depths
        groups = {"optimizer": self.optimiser.state_tensors(), "generators": {"depth": depths}}
        return groups if self.average is None else {**groups, "average": self.average.state_tensors()}

    def load(self, folder: Path) -> None:
        """Puts a checkpoint's weights and tensors in the place of this run's."""
        load_weights(folder, self.model)
        self._ahead = None
        self.optimiser.load_state_tensors(load_tensors(folder, "optimizer", self.optimiser.state_forms()))
        state = {"depth": self.depth_generator.get_state()}
        self.depth_generator.set_state(load_tensors(folder, "generators", state)["depth"])
        if self.average is not None:
            self.average.load_state_tensors(load_tensors(folder, "average", self.average.state_tensors()))

    def whole_model(self) -> LoopedForCausalLM:
        """Returns the model for use after the run: evaluating, its parameters whole in every process."""
        self.processes.gather()
        return self.model.eval()


def check_precision(model: LoopedForCausalLM, precision: str) -> None:
    """Refuses frozen parameters of another dtype than float32 where nothing casts between it and the trained ones."""
    odd = next(
        (f"{name} is {p.dtype}".replace("torch.", "") for name, p in model.named_parameters() if p.dtype != torch.float32), None
    )
    if odd is not None and precision != "bf16":
        raise ValueError(f"precision: {precision!r}, and {odd} (frozen); allowed: bf16, or a model loaded with dtype: float32")


def validation_depths(config: LoopedConfig, rule: DepthRule, recipe: Recipe) -> list[int]:
    """Returns the depths of validation: the recipe's and the median of training; refuses now what would fail later."""
    if not config.is_looped:
        return [1]
    limited = config.max_steps is not None and config.beyond_max_steps == "refuse"
    if limited and rule.most is None:
        raise ValueError(f"depth: the rule has no largest depth, and the model has max_steps={config.max_steps}; allowed: most set")
    if rule.most is not None:
        config.check_depth(rule.most)
    return check_depths(config, {*recipe.validate.depths, rule.median})


def start_job(
    recipe: Recipe, run: RunFolder, processes: Processes, *, resume: bool, reporter: ProgressReporter, given: Objects | None = None
) -> Job:
    """Builds a run's objects; refuses a folder that is not free for a run, or no run where one is to be resumed."""
    if resume:
        difference = first_difference(read_recipe(run.recipe), recipe)
        if difference:
            raise ValueError(f"resume: {run.path} was trained with another recipe; it differs in {difference}")
    else:
        run.check_free()
    job = Job(recipe, run, processes, reporter, given)
    if processes.main and not resume:
        write_json(run.origin, origin())
        write_whole(run.recipe, written(replace(recipe, imported=noted_files())))
    return job
