"""P1–P4: what JSRR costs. A training step with the penalty against the same step without, forward and backward.

P1 and P2: the exact product, whole batch, at depths 4 and 8. P3: the default (finite difference, a quarter of the batch). P4: a
whole random-depth update, optimiser included, over one sequence of drawn depths. The model is the STARS study's addition
transformer; `full` has its width (512), `demo` that of the demonstration (64).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import loopwright as lw
from benchmarks.pairs import compare, no_options, replayed, report
from loopwright.data.batch import IGNORED, Batch
from loopwright.model.backbone import StepRunner
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import next_token_loss
from loopwright.training.compile import CompiledStep
from loopwright.training.objectives.jacobian import JacobianPenalty
from loopwright.training.rollout import Plan, rollout

WEIGHT = 0.1
FULL = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
DEMO = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "mlp": "relu", "dropout": 0.0,
    "injection": {"kind": "add"}, "embedding_norm": True,
}  # fmt: skip
TARGETS = {("exact", 4): "<= 1.30", ("exact", 8): "<= 1.15", ("fd", 4): "<= 1.08", ("fd", 8): "<= 1.05"}


def addition(shape: dict[str, object], rows: int, device: str) -> tuple[LoopedForCausalLM, Batch]:
    """Returns a random addition model in training, and a batch as four-digit sums give it: 16 or 17 tokens, answer predicted."""
    torch.manual_seed(0)
    model = lw.build("stars-addition", **shape).to(device).train()
    ids = torch.randint(0, 13, (rows, 17))
    labels = ids.clone()
    labels[:, :10] = IGNORED
    lengths = torch.where(torch.arange(rows) % 5 < 3, 17, 16)
    return model, Batch(ids, labels, lengths=lengths).to(device)


def update(
    model: LoopedForCausalLM,
    batch: Batch,
    depths: Sequence[int],
    penalty: JacobianPenalty | None,
    *,
    step: StepRunner | None = None,
    optimiser: torch.optim.Optimizer | None = None,
) -> Callable[[], None]:
    """Returns a run of training steps, one at each of these depths; the optimiser moves the weights where there is one."""

    def loss_at(depth: int, number: int) -> Tensor:
        path = rollout(model, batch, Plan(depth, depth, number), step=step, keeps="last", hook=penalty)
        loss = next_token_loss(model.read_out(path.last, path.p), batch.labels)
        return loss if penalty is None else (1 - WEIGHT) * loss + WEIGHT * penalty(model, path)

    def run() -> None:
        for number, depth in enumerate(depths):
            loss_at(depth, number).backward()
            if optimiser is not None:
                optimiser.step()
            model.zero_grad(set_to_none=True)

    return run


def drawn_depths(count: int) -> list[int]:
    """Returns depths as the STARS study draws them: log-normal(2, 0.7), rounded, from 1 to 100."""
    noise = torch.randn(count, generator=torch.Generator().manual_seed(0))
    return (2 + 0.7 * noise).exp().round().clamp(1, 100).int().tolist()


def measurable(mode: str, model: LoopedForCausalLM) -> bool:
    """Returns whether a mode can be captured: finite differences hold dropout fixed, which a graph cannot."""
    return mode != "fd" or model.config.dropout == 0 or not torch.cuda.is_available()


def fixed_depth(name: str, model: LoopedForCausalLM, batch: Batch, step: StepRunner | None, pairs: int, **more: object) -> None:
    """Prints P1 and P2, then P3."""
    for number, (mode, depth) in zip(("P1", "P2", "P3", "P3"), TARGETS, strict=True):
        if not measurable(mode, model):
            continue
        with_term, without = (replayed(update(model, batch, [depth], p, step=step)) for p in (JacobianPenalty(mode), None))
        row = {"model": name, "depth": depth, "target": TARGETS[mode, depth], **more}
        report(f"{number} JSRR step / plain step, {mode}", {**row, **compare(with_term, without, pairs=pairs)})


def random_depth(
    name: str, model: LoopedForCausalLM, batch: Batch, step: StepRunner | None, pairs: int, count: int, **more: object
) -> None:
    """Prints P4 for the default and for the exact product."""
    depths = drawn_depths(count)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True, capturable=torch.cuda.is_available())
    for mode, target in (("fd", "<= 1.06"), ("exact", "<= 1.20")):
        if not measurable(mode, model):
            continue
        with_term, without = (
            replayed(update(model, batch, depths, p, step=step, optimiser=optimiser)) for p in (JacobianPenalty(mode), None)
        )
        row = {"model": name, "mean_depth": sum(depths) / count, "updates": count, "target": target, **more}
        report(f"P4 STARS update / random-depth update, {mode}", {**row, **compare(with_term, without, pairs=pairs, warm_up=1)})


def main() -> None:
    """Prints P1 to P4: on a GPU at full size in TF32, compiled, as graphs; else at sizes for one core."""
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
        for dropout, compiled in ((0.1, False), (0.0, False), (0.0, True)):
            model, batch = addition({**FULL, "dropout": dropout}, 512, "cuda")
            step = CompiledStep(model) if compiled else None
            more = {"rows": len(batch), "dropout": dropout, "compiled": compiled, "precision": "tf32"}
            fixed_depth("full", model, batch, step, pairs=21, **more)
            random_depth("full", model, batch, step, pairs=7, count=12, **more)
        return
    torch.set_num_threads(1)
    for name, shape, rows in (("full", {**FULL, "dropout": 0.0}, 32), ("full", FULL, 32), ("demo", DEMO, 128)):
        model, batch = addition(shape, rows, "cpu")
        more = {"rows": rows, "dropout": model.config.dropout}
        fixed_depth(name, model, batch, None, pairs=11, **more)
        random_depth(name, model, batch, None, pairs=7, count=4, **more)


if __name__ == "__main__":
    no_options(__doc__)
    main()
