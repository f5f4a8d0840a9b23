"""Gradients of compiled passes on a GPU, at the size of a real batch: below some 16,000 tokens sums over them run another way."""

from __future__ import annotations

import pytest
import torch

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.training.compile import CompileComparison
from loopwright.training.graphs import GraphedWork
from loopwright.training.objectives.losses import Final
from loopwright.training.rollout import Plan
from loopwright.training.run import TrainingModule

pytestmark = pytest.mark.gpu
SMALL = {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "core_layers": 4, "depth": 3}
MIDDLE = {**SMALL, "hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6, "core_layers": 6}
PLAIN = {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 4}
CASES = {
    "asura": ("asura", {**SMALL, "max_steps": 3}),
    "asura-middle": ("asura", {**MIDDLE, "max_steps": 3}),
    "asura-no-adapters": ("asura", {**SMALL, "max_steps": 3, "adapters": []}),
    "asura-no-norms": ("asura", {**SMALL, "max_steps": 3, "layer_post_norm": "none"}),
    "ouro": ("ouro-1.4b", {**PLAIN, "core_layers": 4, "depth": 3}),
    "huginn": ("huginn", {**PLAIN, "prelude_layers": 1, "core_layers": 2, "coda_layers": 1, "depth": 3, "state": {"kind": "zero"}}),
}


def fill_free_memory(device: torch.device) -> None:
    """Leaves NaN in the memory that the next pass takes: what a kernel does not write must not look right."""
    held = [torch.full((2**size,), torch.nan, device=device) for size in range(8, 27) for _ in range(4)]
    del held


@pytest.mark.parametrize("replayed", [False, True], ids=["compiled", "replayed"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_compiled_passes(case: str, replayed: bool) -> None:
    name, changes = CASES[case]
    torch._dynamo.reset()
    device = torch.device("cuda")
    torch.manual_seed(1)
    model = lw.build(name, **changes).to(device).train()
    ids = torch.randint(0, 8192, (64, 256), device=device)
    batch = Batch(ids, ids.clone()).ready()
    plain, compiled = TrainingModule(model, Final()), TrainingModule(model, Final(), compiled=True)

    def run(module: TrainingModule, ids: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        with torch.autocast("cuda", torch.bfloat16):
            loss, _ = module(batch, Plan(3, 3))
        loss.backward()
        return loss.detach(), {}

    work = GraphedWork(lambda ids: run(compiled, ids), device)
    comparison = CompileComparison(dict(model.named_parameters()))
    for place in range(4 if replayed else 1):
        with work.aside():
            comparison.run_written(lambda: run(plain, ids))
            fill_free_memory(device)
        if replayed:
            work(ids)
            assert work.replaying == (place > 0)
        else:
            fill_free_memory(device)
            run(compiled, ids)
        assert comparison.difference() is None
        comparison.take_written()
