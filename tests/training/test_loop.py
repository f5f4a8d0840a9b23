"""The loop: every shipped recipe, what a run leaves behind, resumed = uninterrupted, batches that add up, what goes wrong."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import loopwright as lw
from loopwright.checkpoints.source import Source
from loopwright.recipes import names, recipe
from loopwright.schema import read_yaml
from loopwright.storage.files import DiskFull, read_json
from loopwright.storage.run import RunFolder, update_of
from loopwright.training.checkpoint import latest_good
from loopwright.training.distributed import join
from loopwright.training.loop import Updates, own_folder, train
from loopwright.training.objectives.losses import OBJECTIVES
from loopwright.training.recipe import make_recipe, read_recipe
from loopwright.training.report import Log, Progress, Silent, StopRequest, read_log, spikes, spikes_in_words
from loopwright.training.run import Job, start_job
from loopwright.training.tracking import Tracking
from tests.cases import some
from tests.training.runs import OPTIMISERS, PLAIN, RICH, Act, Poisoned, end_of, interrupt, rows_of, small, untimed

USUAL = {
    "addition-stable",
    "asura-every-step",
    "asura-text",
    "demo-stable",
    "distil-text",
    "ouro-gate",
    "controller-random",
    "stars-ouro",
    "universal-act",
}


@pytest.mark.long
@pytest.mark.parametrize("name", some(names(), USUAL))
def test_every_shipped_recipe_runs_two_updates_at_toy_size(name: str, tmp_path: Path) -> None:
    chosen = recipe(name, toy=True)
    outcome = train(chosen, tmp_path / "run")
    assert outcome.finished and outcome.progress.update == 2 and outcome.progress.skipped == 0
    updates = [row for row in rows_of(outcome) if "loss" in row]
    assert [row["update"] for row in updates] == [0, 1]
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 and row["targets"] > 0 for row in updates)
    assert any("valid" in row for row in rows_of(outcome))
    again = lw.load(outcome.checkpoint, weights="raw")
    ids = outcome.splits.valid.batch([0, 1]).input_ids
    depth = {"depth": 2} if outcome.model.config.is_looped else {}
    assert torch.equal(again(ids, **depth).logits, outcome.model(ids, **depth).logits)
    assert read_recipe(outcome.folder.recipe) == chosen and read_json(outcome.folder.origin)["torch"] == torch.__version__


def test_a_run_leaves_a_row_an_update_looks_between_and_its_last_and_best_checkpoints(tmp_path: Path) -> None:
    outcome = train(small({"updates": 10, "save": {"every": 3, "keep": 1}}), tmp_path / "run")
    rows = rows_of(outcome)
    assert [row["update"] for row in rows if "loss" in row] == list(range(10))
    assert [row["update"] for row in rows if "valid" in row] == [3, 7, 9], "every fourth update, and the last"
    first = rows[0]
    assert set(first) == {"update", "loss", "depth", "grad_norm", "lr", "targets", "tokens", "loss_last", "z", "objective"}
    assert 8 * 4 <= first["targets"] <= 8 * 5 and 8 * 9 < first["tokens"] < 8 * 11
    assert all(2 <= depth <= 4 for row in rows if "loss" in row for depth in row["depth"]), "as the rule draws"
    assert len({row["depth"][0] for row in rows if "loss" in row}) > 1
    looks = {row["update"] + 1: row["valid"] for row in rows if "valid" in row}
    assert all(list(found) == ["1", "2", "3", "5"] for found in looks.values()), "the recipe's depths and the median one"
    best = min(looks, key=lambda update: looks[update]["3"]["loss"])
    assert Source(outcome.folder.path).folder.name == "00000010"
    assert update_of(Source(outcome.folder.path, checkpoint="best").folder) == best == outcome.progress.best_update
    assert {int(path.name) for path in outcome.folder.checkpoints.iterdir()} == {best, 10}
    timed = read_log(outcome.folder.log)[0]
    assert timed["seconds"] > 0 and timed["tokens_per_second"] > 0
    assert not outcome.model.training


def test_a_run_leaves_the_precision_of_products_as_it_was(tmp_path: Path) -> None:
    before = torch.get_float32_matmul_precision()
    train(small({"updates": 1, "precision": "bf16"}), tmp_path / "run")
    assert torch.get_float32_matmul_precision() == before == "highest"


def test_what_is_drawn_after_a_run_is_what_would_have_been_drawn_without_it(tmp_path: Path) -> None:
    def drawn() -> tuple[float, float, float]:
        return float(torch.rand(())), random.random(), float(np.random.rand())

    def seeded() -> None:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)

    def broken(row: dict[str, Any]) -> None:
        raise KeyError("mine")

    seeded()
    expected = drawn()
    seeded()
    train(small({"updates": 1, "model": {"changes": {"dropout": 0.1}}}), tmp_path / "a")
    assert drawn() == expected
    seeded()
    with pytest.raises(KeyError, match="mine"):
        train(small({"updates": 1}), tmp_path / "b", on_update=broken)
    assert drawn() == expected


@pytest.mark.long
def test_a_run_learns(tmp_path: Path) -> None:
    outcome = train(small({"updates": 40, "batch": 16, "validate": {"every": 0}}), tmp_path / "run")
    losses = [row["loss"] for row in rows_of(outcome)]
    assert sum(losses[-10:]) / 10 < 0.8 * losses[0]


# resumed = uninterrupted

SLOWER = [("adamw", 2), ("adamw", 13), ("muon", 13), ("ellis-adam", 2), ("ellis-adam", 13), ("packed", 13)]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Uninterrupted runs, by optimiser, each made when it is first asked for."""

    @cache
    def made(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name) / "run"
        outcome = train(small(RICH, {"optim": OPTIMISERS[name]}), folder)
        rows = rows_of(outcome)
        assert outcome.progress.solved_at is not None and any("jacobian" in row for row in rows), "the penalty comes in on the way"
        assert not any("jacobian" in row for row in rows if row["update"] < 3)
        assert any("truncation" in row for row in rows) and any("radius" in row for row in rows)
        return folder

    return made


@pytest.mark.long
@pytest.mark.parametrize(
    ("optimiser", "at"),
    [("muon", 2), *(pytest.param(*more, marks=pytest.mark.slow) for more in SLOWER)],
)
def test_a_run_that_was_stopped_and_resumed_is_bitwise_the_uninterrupted_one(
    whole_run: Callable[[str], Path], tmp_path: Path, optimiser: str, at: int
) -> None:
    chosen, folder = small(RICH, {"optim": OPTIMISERS[optimiser]}), tmp_path / "run"
    stopped = train(chosen, folder, reporter=Act(at, interrupt))
    assert not stopped.finished and stopped.progress.update == at == latest_good(folder / "checkpoints")[0].update
    outcome = train(chosen, folder, resume=True)
    assert outcome.finished
    assert rows_of(folder) == rows_of(whole_run(optimiser))
    assert end_of(folder) == end_of(whole_run(optimiser)), "weights, optimiser, generators, average, progress: every byte"


@pytest.mark.long
def test_a_run_that_broke_goes_on_from_its_last_checkpoint_and_writes_the_lost_rows_again(
    whole_run: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"

    def break_down() -> None:
        raise RuntimeError("power cut")

    for at in (3, 14, 17):  # before the first checkpoint, between two, after the last
        with pytest.raises(RuntimeError, match="power cut"):
            train(small(RICH), folder, resume=folder.exists(), reporter=Act(at, break_down))
    reporter = Silent()
    train(small(RICH), folder, resume=True, reporter=reporter)
    assert any("resumed from" in note for note in reporter.notes)
    assert rows_of(folder) == rows_of(whole_run("adamw")) and end_of(folder) == end_of(whole_run("adamw"))


@pytest.mark.slow
def test_what_a_run_saves_and_when_does_not_change_it(whole_run: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(small(RICH, {"save": {"every": 0, "best": False}}), folder)
    assert rows_of(folder) == rows_of(whole_run("adamw"))
    train(small(RICH, {"save": {"every": 0, "best": False}}), folder, resume=True)  # one that is done stays as it is
    assert rows_of(folder) == rows_of(whole_run("adamw"))


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    a, b, c = (train(small({"updates": 2, "seed": seed}), tmp_path / name) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert rows_of(a) == rows_of(b) != rows_of(c)


# batches that add up


@pytest.mark.long
@pytest.mark.parametrize("penalties", [[], [{"kind": "jacobian", "mode": "exact", "share": 0.5, "weight": 0.3}]])
def test_an_update_of_several_batches_is_that_of_one_batch(tmp_path: Path, penalties: list[dict[str, Any]]) -> None:
    """Rows ask for different numbers of targets, so a mean of the batches' means would be another number."""
    data = {"train_digits": [1, 2, 3], "train": 60}
    base = {"data": data, "updates": 5, "batch": 12, "depth": {"kind": "fixed", "depth": 3}, "penalties": penalties}
    found = {}
    for parts in (1, 3, 12):
        # a gentle optimiser: what differs is the order of sums, and AdamW's first updates divide it by itself
        optim = {"kind": "adamw", "lr": 1e-3, "eps": 1e-3}
        outcome = train(small(base, {"accumulate": parts, "optim": optim}), tmp_path / str(parts))
        found[parts] = rows_of(outcome), dict(outcome.model.named_parameters())
    counts = [int((b.labels[:, 1:] != -100).sum()) for b in (outcome.splits.train.batch([i]) for i in range(60))]
    assert len(set(counts)) > 1
    for parts in (3, 12):
        for row, other in zip(found[1][0], found[parts][0], strict=True):
            if "loss" in row:
                assert len(other["depth"]) == parts
                for key in set(row) - {"depth"}:
                    assert math.isclose(row[key], other[key], rel_tol=2e-6, abs_tol=1e-6), (parts, row["update"], key)
        for name, parameter in found[1][1].items():
            torch.testing.assert_close(found[parts][1][name], parameter, rtol=0, atol=2e-6)


# what is not finite


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OBJECTIVES, "poisoned", Poisoned)


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.usefixtures("poisoned")
def test_what_is_not_finite_never_reaches_the_parameters(tmp_path: Path, what: str) -> None:
    poison = {"objective": {"kind": "poisoned", "at": [3, 4], "what": what}, "average": {"kind": "ema", "decay": 0.9}}
    changes = {"updates": 7, "accumulate": 2, "validate": {"every": 0}, "save": {"every": 1, "keep": 9, "best": False}}
    outcome = train(small(poison, changes), tmp_path / "run")
    assert outcome.finished and (outcome.progress.skipped, outcome.progress.skipped_in_a_row) == (2, 0)
    files = {int(p.name): read_json(p / "manifest.json")["files"] for p in outcome.folder.checkpoints.iterdir()}
    held = ("model.safetensors", "optimizer.safetensors", "average.safetensors")
    for name in held:
        assert files[3][name] == files[4][name] == files[5][name] != files[6][name], name
        assert files[2][name] != files[3][name]
    assert files[3]["generators.safetensors"] != files[4]["generators.safetensors"], "the depth of the next update is another"
    rows = rows_of(outcome)
    assert [row["update"] for row in rows if row.get("skipped")] == [3, 4]
    assert [(row["rows"], row["in_a_row"], len(row["depth"])) for row in rows[3:5]] == [([24, 32], 1, 2), ([32, 40], 2, 2)]
    assert rows[3]["loss" if what == "loss" else "grad_norm"] is None, "JSON has no word for it"
    json.loads(outcome.folder.log.read_text().splitlines()[3])


@pytest.mark.usefixtures("poisoned")
def test_a_run_gives_up_after_its_patience_and_loses_nothing(tmp_path: Path) -> None:
    changes = {"patience": 2, "objective": {"kind": "poisoned", "at": [2, 4, 5, 6, 7], "what": "loss"}, "validate": {"every": 0}}
    line = (
        r"update 6: loss nan.*at depth \[\d\]: not finite 3 times in a row \(patience 2\); the parameters have not changed since "
        r"update 4 and are saved in .*00000007; lower optim\.lr or lengthen schedule\.warmup$"
    )
    with pytest.raises(ValueError, match=line) as caught:
        train(small(changes), tmp_path / "run")
    assert "\n" not in str(caught.value)
    kept = latest_good(tmp_path / "run" / "checkpoints")[0]
    assert kept.update == 7 and kept.state["skipped"] == 4
    assert all(tensor.isfinite().all() for tensor in lw.load(kept.folder).state_dict().values())


@pytest.mark.usefixtures("poisoned")
def test_a_run_that_ends_on_skipped_updates_says_so(tmp_path: Path) -> None:
    for at, warned in (([4, 5], True), ([2], False)):
        reporter = Silent()
        changes = {"updates": 6, "objective": {"kind": "poisoned", "at": at, "what": "loss"}, "validate": {"every": 0}}
        train(small(changes), tmp_path / str(warned), reporter=reporter)
        assert any("the last 2 updates were skipped" in note for note in reporter.notes) == warned


def test_clipping_holds_an_update_back(tmp_path: Path) -> None:
    """With the same direction and a fifth of the norm: measured on a momentum of one update."""
    steps = {}
    for clip in (None, 0.05, 0.01):
        chosen = small(
            {"updates": 1, "clip": clip, "validate": {"every": 0}, "optim": {"kind": "adamw", "lr": 1e-3, "betas": [0.0, 0.9]}}
        )
        outcome = train(chosen, tmp_path / str(clip))
        state = load_file(outcome.checkpoint / "optimizer.safetensors")
        steps[clip] = torch.cat([value.flatten() for name, value in sorted(state.items()) if name.endswith("exp_avg")])
        assert rows_of(outcome)[0]["grad_norm"] > 0.05, "the norm before clipping"
    for clip in (0.05, 0.01):
        assert math.isclose(float(steps[clip].norm()), clip, rel_tol=1e-4)
        assert torch.cosine_similarity(steps[clip], steps[None], dim=0) > 1 - 1e-6


# refusals: one line each, nothing lost


def refused(run: Any, *words: str) -> None:
    with pytest.raises((ValueError, OSError)) as caught:
        run()
    line = str(caught.value)
    assert "\n" not in line and all(word in line for word in words), line


def test_a_first_pass_that_fails_leaves_no_run_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new" / "run"

    def broken(job: Job, *given: object) -> None:
        assert all((folder / name).is_file() for name in ("recipe.yaml", "origin.json", "log.jsonl"))
        raise RuntimeError("mine")

    monkeypatch.setattr(Job, "backward", broken)
    with pytest.raises(RuntimeError, match="mine"):
        train(small(), folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_a_run_another_recipe_and_nothing_to_resume_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    refused(lambda: train(small(), folder, resume=True), "holds no run", "--resume")
    train(small({"updates": 2}), folder)
    before = end_of(folder), rows_of(folder)
    refused(lambda: train(small({"updates": 2}), folder), "already holds a run", "--resume", "--out")
    refused(lambda: train(small({"updates": 2, "optim": {"lr": 0.5}}), folder, resume=True), "optim.lr (0.003 there, 0.5 here)")
    assert (end_of(folder), rows_of(folder)) == before


def test_bad_data_and_depths_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    few = {"model": {"changes": {"vocab_size": 9}}}
    refused(lambda: train(small(few), tmp_path / "a"), "ids go up to 14", "9 tokens")
    text = {"kind": "text", "files": str(tmp_path / "none.jsonl"), "valid_files": str(tmp_path / "none.jsonl"), "tokenizer": "x"}
    refused(lambda: train(small({"data": text}), tmp_path / "b"), "none.jsonl")
    steps = {"kind": "preset", "name": "asura-tiny"}
    refused(lambda: train(small({"model": steps, "depth": {"kind": "fixed", "depth": 99}}), tmp_path / "c"), "99", "max_steps")
    endless = {"kind": "poisson", "mean": 2}
    refused(lambda: train(small({"model": steps, "depth": endless}), tmp_path / "c"), "no largest depth", "max_steps")
    refused(
        lambda: train(
            small({"model": steps, "depth": {"kind": "fixed", "depth": 2}, "validate": {"depths": [50]}}), tmp_path / "c"
        ),
        "50",
    )
    for name in "abc":
        assert not (tmp_path / name / "recipe.yaml").exists() and not (tmp_path / name / "log.jsonl").exists()
        assert not RunFolder(tmp_path / name).checkpoints.exists()


def test_what_the_first_update_refuses_leaves_the_folder_free(tmp_path: Path) -> None:
    folder, dense = tmp_path / "run", {"core_layers": 0, "prelude_layers": 1, "injection": None}
    refused(lambda: train(small({"objective": {"kind": "ponder"}}), folder), "objective (ponder)", "halting 'act'")
    refused(lambda: train(small({"penalties": [{"kind": "jacobian"}], "model": {"changes": dense}}), folder), "has no core")
    refused(lambda: train(small({"penalties": [{"kind": "jacobian"}] * 2}), folder), "jacobian stands there twice")
    chosen = small({"updates": 1})
    assert train(chosen, folder).finished and read_recipe(folder / "recipe.yaml") == chosen


def test_the_recipe_on_the_page_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    text = page.split("```yaml\n")[1].split("```")[0]
    assert make_recipe(read_yaml(text, "training.md")).updates == 1500


@pytest.mark.long
@pytest.mark.parametrize("how", ["known before", "while writing"])
def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    chosen = small({"save": {"every": 2, "best": False}})
    train(chosen, tmp_path / "whole")

    def fill() -> None:
        if how == "known before":
            usage = namedtuple("usage", "total used free")
            monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 0))
            return

        def full(*arguments: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(DiskFull) as caught:
        train(chosen, tmp_path / "run", reporter=Act(5, fill))
    assert "the disk is full" in str(caught.value) and "unharmed" in str(caught.value) and "\n" not in str(caught.value)
    assert latest_good(tmp_path / "run" / "checkpoints")[0].update == 4
    monkeypatch.undo()
    train(chosen, tmp_path / "run", resume=True)
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole") and end_of(tmp_path / "run") == end_of(tmp_path / "whole")


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    """The lock is the process's: what holds it here is a child."""
    (tmp_path / "run").mkdir()
    hold = (
        "import fcntl, sys\nfile = open(sys.argv[1], 'a+')\nfcntl.lockf(file, fcntl.LOCK_EX)\n"
        "file.write('process 1')\nfile.flush()\nprint('held', flush=True)\nsys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "run" / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        refused(lambda: train(small({"updates": 1}), tmp_path / "run"), "process 1 is training into this run folder")
    finally:
        child.communicate("")
    train(small({"updates": 1}), tmp_path / "run")


# What follows an update, whoever computed it: counted, logged, told, and the end of a run that is of no use


SETTINGS = {"validate": {"every": 2, "rows": 4}, "save": {"every": 1, "best": False}}


def row(update: int, loss: float = 1.0) -> dict[str, Any]:
    return {"update": update, "loss": loss, "depth": [2], "grad_norm": 1.0, "lr": 1e-3, "targets": 5, "tokens": 9}


def test_updates_are_counted_logged_and_given_up(tmp_path: Path) -> None:
    recipe = make_recipe(
        {**PLAIN, "updates": 9, "patience": 1, "validate": {"every": 2, "rows": 4}, "save": {"every": 1, "best": False}}
    )
    processes, told = join(), []
    with own_folder(tmp_path / "run", processes, resume=False) as run, StopRequest(told=False) as stop:
        job = start_job(recipe, run, processes, resume=False, reporter=Silent())

        def hear(found: dict[str, Any]) -> bool:
            told.append(found["update"])
            return found["update"] == 1

        updates = Updates(job, run, Progress(), Log(run.log), Silent(), stop, Tracking(None), hear)
        for update in (0, 1):
            updates.end(row(update), finite=True, began=time.perf_counter())
        assert told == [0, 1] and bool(stop) and updates.left == 7
        assert (updates.progress.rows, updates.progress.tokens, updates.progress.targets) == (16, 18, 10)
        assert [untimed(found) for found in read_log(run.log)][:2] == [row(0), row(1)]
        assert "valid" in read_log(run.log)[2] and len(list(run.checkpoints.iterdir())) == 2
        updates.end(row(2, float("nan")), finite=False, began=time.perf_counter())
        assert read_log(run.log)[3]["rows"] == [16, 24] and read_log(run.log)[3]["loss"] is None
        with pytest.raises(ValueError, match=r"update 3: loss nan.*not finite 2 times in a row.*have not changed since update 2"):
            updates.end(row(3, float("nan")), finite=False, began=time.perf_counter())


# Spikes of a loss: counted where they are, not where a loss is rough all along


def test_planted_spikes_are_found_where_they_stand() -> None:
    rng = np.random.default_rng(0)
    losses = (5 - 0.01 * np.arange(200) + 0.05 * rng.normal(size=200)).tolist()
    assert spikes(losses) == []
    losses[90] += 1.0
    losses[150] += 2.0
    losses[20] += 3.0  # no fifty before it
    assert spikes(losses) == [90, 150]


def test_the_rule_is_four_deviations_over_the_mean_of_fifty() -> None:
    before = [1.0, 3.0] * 25  # mean 2, deviation 1
    assert spikes([*before, 6.0]) == [] and spikes([*before, 6.001]) == [50]
    assert spikes([*before, 4.5], deviations=2) == [50] and spikes([1.0, 3.0, 6.5], before=2) == [2]


def test_skipped_updates_are_left_out_and_places_stay() -> None:
    losses: list[float | None] = [1.0, 3.0] * 25
    assert spikes([None, *losses, math.nan, math.inf, 6.001]) == [53]


def test_a_run_tells_its_spikes(tmp_path: Path) -> None:
    """A rate that is far too large for one update: what the note says is what the log shows."""
    reporter = Silent()
    chosen = small({"updates": 60, "validate": {"every": 0}, "save": {"every": 0}})
    run = train(chosen, tmp_path / "run", reporter=reporter)
    assert run.spikes() == spikes([row["loss"] for row in run.log()])
    assert [note for note in reporter.notes if "spike" in note] == ([spikes_in_words(run.spikes())] if run.spikes() else [])


def test_many_are_told_in_short() -> None:
    assert spikes_in_words([7]).startswith("1 spike of the loss") and spikes_in_words([7]).endswith("at update 7")
    assert spikes_in_words([*range(9)]).endswith("0, 1, 2, 3, 4, 5, 6, 7 …") and spikes_in_words([*range(9)]).startswith("9 spikes")


# Records of a run


def test_a_run_in_a_notebook_is_one_line_and_gives_its_log(tmp_path: Path) -> None:
    run = train(small({"updates": 2}), tmp_path / "run")
    assert repr(run) == f"Run(finished after 2 updates; {str(tmp_path / 'run')!r}; checkpoint '00000002')"
    assert [row["update"] for row in run.log() if "loss" in row] == [0, 1]


def test_skipped_updates_are_counted_until_one_is_not() -> None:
    progress = Progress()
    for finite in (True, False, False):
        progress.count(finite, rows=4, tokens=9, targets=5)
    assert (progress.update, progress.rows, progress.skipped, progress.skipped_in_a_row) == (3, 12, 2, 2)
    progress.count(True, rows=4, tokens=9, targets=5)
    assert progress.skipped_in_a_row == 0 and progress.tokens == 36
