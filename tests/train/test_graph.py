"""Replayed passes = plain passes. Needs a CUDA device; without one a run that asks for them is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loopwright.recipes.shelf import recipe
from loopwright.run import read_log
from loopwright.train.graph import GraphedWork
from loopwright.train.loop import train

BASE = ("updates=16", "batch=8", "look.every=0", "look.radius=0", "save.best=false", "depth={kind: uniform, least: 1, most: 3}")
SMALL = ("data.train=64", "data.valid=16", "data.test=16")


def losses(folder: Path, *changes: str) -> list[float]:
    train(recipe("demo-stable", [*BASE, *SMALL, *changes]), folder)
    return [row["loss"] for row in read_log(folder / "log.jsonl")]


def test_a_run_without_a_gpu_is_refused(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match="graph: asked for on cpu with 1 processes; allowed: one, on cuda"):
        losses(tmp_path / "run", "graph=true", "penalties=[]")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "penalty", ["[]", "[{kind: jacobian}]", "[{kind: jacobian, mode: exact, ramp: 8}]", "[{kind: state-change}]"]
)
@pytest.mark.parametrize("padding", ["plain", "masked"])
def test_replayed_is_plain(penalty: str, padding: str, tmp_path: Path) -> None:
    changes = (f"penalties={penalty}", f"data.padding={padding}")
    plain, replayed = losses(tmp_path / "plain", *changes), losses(tmp_path / "replayed", *changes, "graph=true")
    assert replayed == pytest.approx(plain, abs=1e-5)


@pytest.mark.gpu
def test_dropout_of_a_replayed_pass_follows_the_seed(tmp_path: Path) -> None:
    changes = ("model.changes.dropout=0.3", "penalties=[]", "graph=true", "depth={kind: fixed, depth: 2}")
    first, again = losses(tmp_path / "a", *changes), losses(tmp_path / "b", *changes)
    assert first == pytest.approx(again, abs=1e-6)
    assert losses(tmp_path / "c", *changes, "seed=1") != pytest.approx(first, abs=1e-3)


@pytest.mark.gpu
def test_inputs_reach_the_graph_and_gradients_add_up() -> None:
    weight = torch.ones(3, device="cuda", requires_grad=True)

    def work(given: dict, scale: float) -> tuple[torch.Tensor, dict]:
        loss = (weight * given["x"]).sum() * scale
        loss.backward()
        return loss.detach(), {"twice": 2 * loss.detach()}

    run = GraphedWork(work, torch.device("cuda"))
    for number in range(1, 5):  # as written, captured, replayed, replayed
        loss, metrics = run({"x": torch.full((3,), float(number), device="cuda"), "none": None}, 2.0)
        assert (loss.item(), metrics["twice"].item()) == (6.0 * number, 12.0 * number)
    assert weight.grad.tolist() == [20.0] * 3
    assert run({"x": torch.ones(3, device="cuda"), "none": None}, 5.0)[0].item() == 15.0  # other work, another graph
