"""R6 and R7: copies (DDP) and shards (FSDP2) in several processes give the run of one process, and each goes on from the other's
checkpoints."""

from __future__ import annotations

import math
import socket
import time
from pathlib import Path
from typing import Any

import pytest

import loopwright as lw
from loopwright.data.batch import Order
from loopwright.storage.files import read_json
from loopwright.training.loop import train
from loopwright.training.objectives.losses import OBJECTIVES
from loopwright.training.recipe import Recipe
from tests.training.runs import Act, Poisoned, Turn, children, interrupt, ranked, rows_of, small

# rows with different numbers of targets, several batches an update, random depth, an average
BASE: dict[str, Any] = {
    "data": {"train_digits": [1, 2, 3], "train": 90},
    "updates": 50,
    "accumulate": 2,
    "optim": {"lr": 1e-3},
    "average": {"kind": "ema", "decay": 0.9},
    "validate": {"every": 25},
    "save": {"best": False},
}  # fmt: skip


def with_late_penalty(updates: int, samples: int) -> Recipe:
    """Returns a run whose penalty comes in half-way, over more than one epoch."""
    half = updates // 2
    penalty = {"kind": "jacobian", "mode": "fd", "share": 0.5, "weight": 0.1, "start": half}
    return small(BASE, {"data": {"train": samples}, "updates": updates, "penalties": [penalty], "validate": {"every": half}})


def processes(folder: Path, turns: list[Turn], world: int) -> list[int]:
    """Makes the runs in so many processes and returns how these ended (killed where they wait for one another)."""
    latest = time.monotonic() + 60 * (1 + len(turns))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = children()
    found = [context.Process(target=ranked, args=(rank, world, port, str(folder), turns)) for rank in range(world)]
    for child in found:
        child.start()
    while any(child.is_alive() for child in found) and all(child.exitcode in (None, 0) for child in found):
        if time.monotonic() > latest:
            break
        time.sleep(0.05)
    for child in found:
        child.join(5)
        child.kill()  # one that waits for a process that has gone waits for ever
        child.join()
    return [child.exitcode for child in found]


def assert_alike(one: Path, many: Path, *, tolerance: float = 1e-5) -> float:
    """All numbers of two logs within the tolerance, depths and counts equal; returns the largest difference of losses."""
    worst = 0.0

    def same(a: Any, b: Any, where: str) -> None:
        nonlocal worst
        if isinstance(a, float):
            assert math.isclose(a, b, rel_tol=0, abs_tol=tolerance), (where, a, b)
            worst = max(worst, abs(a - b) if where.endswith("loss") else 0)
        elif isinstance(a, dict):
            assert list(a) == list(b), where
            for key in a:
                same(a[key], b[key], f"{where}.{key}")
        else:
            assert a == b, where

    rows, others = rows_of(one), rows_of(many)
    assert len(rows) == len(others)
    for row, other in zip(rows, others, strict=True):
        same(row, other, f"{many.name}, update {row['update']}")
    return worst


def assert_each_sample_once(folder: Path, name: str, recipe: Recipe, world: int, samples: int) -> None:
    """All processes together took the places of the order from 0 on, each once, and the samples that stand there."""
    taken = [read_json(folder / f"{name}.{rank}.json")["taken"] for rank in range(world)]
    pairs = sorted((row, index) for own in taken for indices, rows in own for index, row in zip(indices, rows, strict=True))
    count = recipe.updates * recipe.batch
    assert [row for row, _ in pairs] == list(range(count))
    assert [index for _, index in pairs] == Order(samples, recipe.seed).indices(0, count).tolist()
    for epoch in range(count // samples):
        assert len({index for row, index in pairs if row // samples == epoch}) == samples


@pytest.mark.parametrize(("updates", "samples", "depths"), [(8, 30, 3), pytest.param(50, 90, 6, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_two_processes_give_the_run_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: int, samples: int, depths: int
) -> None:
    """All in one pair of processes, since starting them is what costs."""
    monkeypatch.setitem(OBJECTIVES, "poisoned", Poisoned)
    chosen, before, after = with_late_penalty(updates, samples), updates * 2 // 5, updates * 3 // 5
    ill = small({"updates": 4, "objective": {"kind": "poisoned", "at": [1, 2], "what": "gradient", "rank": 1}, "patience": 1})
    stopped = train(chosen, tmp_path / "grown", reporter=Act(before, interrupt))
    assert stopped.progress.update == before
    turns = [
        Turn("copies", chosen),
        Turn("shards", chosen, shards=True),
        Turn("shrunk", chosen, shards=True, stop=after),
        Turn("grown", chosen, resume=True),
        Turn("ill-copies", ill, fails="not finite 2 times in a row"),
        Turn("ill-shards", ill, shards=True, fails="not finite 2 times in a row"),
    ]
    assert processes(tmp_path, turns, 2) == [0, 0]
    outcome = train(chosen, tmp_path / "one")
    rows = rows_of(outcome)
    assert any("jacobian" in row for row in rows) and len({tuple(row["depth"]) for row in rows if "loss" in row}) >= depths
    for name in ("copies", "shards", "grown"):
        assert_alike(tmp_path / "one", tmp_path / name)
    for name in ("copies", "shards"):
        assert_each_sample_once(tmp_path, name, chosen, 2, samples)

    # what only one process heard of stopped both, at the same update; one process goes on alone
    assert [read_json(tmp_path / f"shrunk.{rank}.json")["update"] for rank in range(2)] == [after, after]
    train(chosen, tmp_path / "shrunk", resume=True)
    assert_alike(tmp_path / "one", tmp_path / "shrunk")

    # a gradient that is not finite in one process is skipped in all
    for name in ("ill-copies", "ill-shards"):
        assert [row.get("skipped", False) for row in rows_of(tmp_path / name)] == [False, True, True]
        files = [read_json(tmp_path / name / "checkpoints" / f"{3:08d}" / "manifest.json")["files"]]
        assert files[0] and all(
            t.isfinite().all() for t in lw.load(tmp_path / name / "checkpoints" / f"{3:08d}").state_dict().values()
        )


SLOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "fd": {"penalties": [{"kind": "jacobian", "mode": "fd", "weight": 0.1}], "batch": 16},
    # not mode fd: over ReLU its gradient jumps where rounding changes the sign of a unit (docs/objectives.md)
    "exact-relu": {
        "model": {"changes": {"mlp": "relu"}}, "penalties": [{"kind": "jacobian", "mode": "exact", "weight": 0.1}], "batch": 16,
    },
    "exact": {"penalties": [{"kind": "jacobian", "mode": "exact", "weight": 0.1}]},
    "released": {"penalties": [{"kind": "jacobian", "mode": "released", "weight": 0.1}]},
    "muon": {"optim": {"kind": "muon", "lr": 1e-3, "adam_lr": 1e-3}},
    "packed": {"optim": {"kind": "muon", "lr": 1e-3, "adam_lr": 1e-3, "packed": True}},
    "ellis-adam": {"optim": {"kind": "ellis-adam", "lr": 1e-3, "weight_decay": 1e-4}},
    "bf16": {"precision": "bf16", "remat": "step"},
    "step": {"remat": "step"},
    "tree": {"remat": "tree"},
    "huginn": {"model": {"kind": "preset", "name": "huginn-tiny"}, "objective": {"kind": "every-step"}},
    # no injection, so that deep batches leave prelude and embedding without a gradient, and shallow ones do not
    "unreached": {
        "model": {"changes": {"injection": {"kind": "none"}, "tie_word_embeddings": False, "prelude_layers": 1}},
        "depth": {"kind": "choice", "values": [1, 4], "grad_steps": 1},
    },
    "unread": {"model": {"kind": "preset", "name": "ouro-1.4b-tiny"}, "optim": {"weight_decay": 0.1}},
}  # fmt: skip


# Muon sums in bfloat16, which its losses do not show but its gradient norms do; in bfloat16 a sum over rows is rounded as it falls
LOOSER = {"muon": 1e-4, "packed": 1e-4, "bf16": 2e-2}


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_many_kinds_of_runs_in_several_processes_are_those_of_one(tmp_path: Path, world: int) -> None:
    recipes = {name: small(BASE, change) for name, change in SLOW.items()}
    turns = [
        Turn(f"{name}-{kind}", recipe, shards=kind == "shards") for name, recipe in recipes.items() for kind in ("copies", "shards")
    ]
    assert processes(tmp_path, turns, world) == [0] * world
    for name, recipe in recipes.items():
        train(recipe, tmp_path / name)
        for kind in ("copies", "shards"):
            worst = assert_alike(tmp_path / name, tmp_path / f"{name}-{kind}", tolerance=LOOSER.get(name, 1e-5))
            print(f"{world} processes, {kind}, {name}: losses within {worst:.1e} over {recipe.updates} updates")
            assert worst <= 1e-5 or name == "bf16"
            assert_each_sample_once(tmp_path, f"{name}-{kind}", recipe, world, 90)
