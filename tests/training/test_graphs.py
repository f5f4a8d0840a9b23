"""Replayed passes = plain passes. Needs a CUDA device; without one a run that asks for them is refused."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
import torch

from loopwright.kernels import gate
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.recipes import recipe
from loopwright.training.graphs import LEAVES, REPLAYS, GraphedWork
from loopwright.training.loop import train
from loopwright.training.objectives.losses import OBJECTIVES, Final
from loopwright.training.recipe import make_recipe
from loopwright.training.report import Silent, read_log
from loopwright.training.rollout import Rollout
from tests.data.words import save_words

BASE = (
    "updates=16",
    "batch=8",
    "validate.every=0",
    "validate.radius=0",
    "save.best=false",
    "depth={kind: uniform, least: 1, most: 3}",
)
SMALL = ("data.train=64", "data.valid=16", "data.test=16")


def losses(folder: Path, *changes: str) -> list[float]:
    train(recipe("demo-stable", [*BASE, *SMALL, *changes]), folder)
    return [row["loss"] for row in read_log(folder / "log.jsonl")]


def test_a_run_without_a_gpu_is_refused(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match="graph: asked for on cpu in one process; allowed: one process, on cuda"):
        losses(tmp_path / "run", "graph=true", "penalties=[]")
    assert not (tmp_path / "run").exists()  # a start that failed leaves nothing


@pytest.mark.gpu
@pytest.mark.parametrize(
    "penalty", ["[]", "[{kind: jacobian}]", "[{kind: jacobian, mode: exact, ramp: 8}]", "[{kind: state-change}]"]
)
def test_replayed_is_plain(penalty: str, tmp_path: Path) -> None:
    changes = (f"penalties={penalty}", "data.padding=plain")
    plain, replayed = losses(tmp_path / "plain", *changes), losses(tmp_path / "replayed", *changes, "graph=true")
    assert replayed == pytest.approx(plain, abs=1e-5)


SHAPE = {"vocab_size": 264, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "tie_word_embeddings": True}
LOOPED = {**SHAPE, "prelude_layers": 1, "core_layers": 1, "coda_layers": 1, "depth": 3}
DENSE = {**SHAPE, "prelude_layers": 3, "core_layers": 0, "coda_layers": 0, "depth": 1}


def text_losses(
    folder: Path, shape: dict, *, apart: bool = False, stop_after: int | None = None, resume: bool = False,
    reporter: Silent | None = None, **rules: object,
) -> list[float]:  # fmt: skip
    """Trains a model on a few words of text, in a folder of its own, and returns the losses."""
    words, text = save_words(folder / "words"), folder / "text.jsonl"
    numbers = ["one", "two", "three", "four", "five", "six", "seven"]
    documents = [" ".join(numbers[place % 7 :] + numbers[: place % 5]) for place in range(60)]
    text.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    data = {"kind": "text", "files": str(text), "valid_files": str(text), "tokenizer": words, "length": 16, "apart": apart}
    made = {
        "about": "a test", "model": {"kind": "preset", "changes": shape}, "data": data, "batch": 4, "updates": 12,
        "depth": {"kind": "fixed", "depth": shape["depth"]}, "objective": {"kind": "final"}, "optim": {"kind": "adamw", "lr": 1e-2},
        "schedule": {"kind": "cosine", "warmup": 0}, "precision": "bf16", "validate": {"every": 0},
        "save": {"every": 0, "best": False}, **rules,
    }  # fmt: skip
    ends = None if stop_after is None else lambda row: row["update"] == stop_after - 1
    train(make_recipe(made), folder / "run", resume=resume, reporter=reporter, on_update=ends)
    return [row["loss"] for row in read_log(folder / "run" / "log.jsonl") if "loss" in row]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [LOOPED, DENSE], ids=["looped", "dense"])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "written"])
def test_replayed_is_plain_on_text_whose_documents_are_not_kept_apart(shape: dict, compiled: bool, tmp_path: Path) -> None:
    runs = (text_losses(tmp_path / str(graph), shape, compile=compiled, graph=graph) for graph in (False, True))
    plain, replayed = runs
    assert replayed == pytest.approx(plain, abs=2e-2) and plain[-1] < plain[0]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each pass that was replayed."""
    replays: list[int] = []
    replay = GraphedWork._replay
    monkeypatch.setattr(GraphedWork, "_replay", lambda *given: replays.append(1) or replay(*given))
    return replays


@pytest.mark.gpu
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"objective": {"kind": "every-step"}, "remat": "step", "accumulate": 2},
        {"shape": {"positions": "learned"}, "validate": {"every": 4}, "average": {"kind": "ema"}},
        {"compile": False},
        {"shape": {"dropout": 0.3, "state": {"kind": "noise"}}},
    ],
    ids=["final", "every-step", "learned", "as-written", "draws"],
)
def test_replayed_is_plain_on_documents(rules: dict, tmp_path: Path, replays: list[int]) -> None:
    """Documents begin at other places in each batch: masks, positions and targets of a replay are those of its own rows."""
    rules = dict(rules)
    shape = {**LOOPED, **rules.pop("shape", {})}
    plain = text_losses(tmp_path / "plain", shape, apart=True, **rules, graph=False)
    assert not replays
    replayed = text_losses(tmp_path / "replayed", shape, apart=True, **rules, graph=True)
    assert len(replays) == 12 * rules.get("accumulate", 1) - 1  # one shape, whatever the documents are
    assert replayed == pytest.approx(plain, abs=2e-2) and plain[-1] < plain[0]


@pytest.mark.gpu
def test_passes_of_text_are_replayed_unasked_and_a_run_that_is_stopped_goes_on_as_it_would_have(
    tmp_path: Path, replays: list[int]
) -> None:
    """The first update after a stop runs as written, where the other run replays: the same kernels, hence the same numbers."""
    plain = text_losses(tmp_path / "plain", LOOPED, apart=True, graph=False)
    assert not replays
    reporter = Silent()
    whole = text_losses(tmp_path / "whole", LOOPED, apart=True, reporter=reporter)
    assert len(replays) == 11 and whole == pytest.approx(plain, abs=2e-2)
    assert [note for note in reporter.notes if note.startswith("graph")] == [REPLAYS]
    first = text_losses(tmp_path / "parts", LOOPED, apart=True, stop_after=5)
    assert first == pytest.approx(whole[:5], abs=1e-4)
    again = text_losses(tmp_path / "parts", LOOPED, apart=True, resume=True)
    assert len(again) == 12 and again == pytest.approx(whole, abs=1e-4)
    assert len(replays) == 11 + 4 + 6


class Poisoned(Final):
    """The final loss, not a number in a batch that holds the row `at`, or with a gradient that is none. A replay must see that in
    the rows: nothing else of an update reaches it."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__()
        self.at, self.what = at, what

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, metrics = super().__call__(model, rollout)
        good = (rollout.batch.rows != self.at).all().to(loss.dtype)
        if self.what == "loss":
            return loss * torch.where(good > 0, 1.0, float("nan")), metrics
        zero = (loss - loss.detach()).abs()
        return loss + (zero + good).sqrt() - good, metrics  # a slope without end at 0


def skips(folder: Path, what: str, *changes: str) -> tuple[list[float | None], list[int]]:
    """Trains where the update that holds row 40 must be skipped, and returns all losses, and which updates were skipped."""
    objective = f"objective={{kind: poisoned, at: 40, what: {what}}}"
    fixed = ("penalties=[]", "data.padding=plain", "depth={kind: fixed, depth: 2}", "optim.lr=1e-2")
    train(recipe("demo-stable", [*BASE, *SMALL, *fixed, objective, *changes]), folder)
    rows = read_log(folder / "log.jsonl")
    return [row["loss"] for row in rows], [row["update"] for row in rows if row.get("skipped")]


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_the_poisoned_update_is_skipped(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OBJECTIVES, "poisoned", Poisoned)
    rows, skipped = skips(tmp_path, what)
    assert skipped == [5] and (rows[5] is None) is (what == "loss") and rows[-1] < rows[0]


@pytest.mark.gpu
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_an_update_that_is_skipped_leaves_nothing_in_a_replay(
    what: str, tmp_path: Path, replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients stay in their place for ever: what is not finite must be gone from them when the next pass adds its own."""
    monkeypatch.setitem(OBJECTIVES, "poisoned", Poisoned)
    plain = skips(tmp_path / "plain", what, "graph=false")
    replayed = skips(tmp_path / "replayed", what, "graph=true")
    assert len(replays) == 15
    assert plain[1] == replayed[1] == [5]
    assert [loss is None for loss in plain[0]] == [loss is None for loss in replayed[0]]
    assert [x for x in replayed[0] if x is not None] == pytest.approx([x for x in plain[0] if x is not None], abs=1e-5)


@pytest.mark.gpu
def test_rows_with_a_mask_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"graph: batches come with a mask, .*; allowed: rows without one \(tasks: data.padding=plain"
    ):
        losses(tmp_path / "run", "graph=true", "penalties=[]", "data.padding=masked")


@pytest.mark.gpu
def test_dropout_of_a_replayed_pass_follows_the_seed(tmp_path: Path) -> None:
    changes = ("data.padding=plain", "model.changes.dropout=0.3", "penalties=[]", "graph=true", "depth={kind: fixed, depth: 2}")
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


@pytest.mark.gpu
def test_every_replay_draws_anew() -> None:
    """What dropout keeps follows the seed set before a replay: it is not what was drawn when the graph was captured."""
    ones = torch.ones(4096, device="cuda")
    weight = torch.ones((), device="cuda", requires_grad=True)

    def work(given: dict) -> tuple[torch.Tensor, dict]:
        kept = torch.nn.functional.dropout(given["x"] * weight, 0.5)
        kept.sum().backward()
        return kept.detach().sum(), {"kept": kept.detach()}

    run, seen = GraphedWork(work, torch.device("cuda")), []
    for seed in (1, 1, 2, 3, 1):  # the first runs as written, the second is captured
        torch.cuda.manual_seed(seed)
        seen.append(run({"x": ones})[1]["kept"])
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[1], seen[4])
    assert not torch.equal(seen[1], seen[2]) and not torch.equal(seen[2], seen[3])


@pytest.mark.gpu
def test_an_error_in_a_capture_is_the_one_that_is_raised() -> None:
    """And launches are free there, whatever kernels make of it."""
    seen: list[bool] = []

    def work(tensors: dict) -> tuple[torch.Tensor, dict]:
        seen.append(gate.launches_are_free)
        if torch.cuda.is_current_stream_capturing():
            raise KeyError("mine")
        return tensors["x"].sum(), {}

    run, given = GraphedWork(work, torch.device("cuda")), {"x": torch.ones(2, device="cuda")}
    run(given)
    with pytest.raises(KeyError, match="mine"):
        run(given)
    assert seen == [True, True] and not gate.launches_are_free


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["wait", "memory"])
def test_a_capture_that_fails_unasked_leaves_the_run_as_it_was(how: str) -> None:
    """Its gradients, its random numbers and its memory; what failed is said once."""
    size = 2**24
    weight, x, said = torch.ones(size, device="cuda", requires_grad=True), torch.ones(size, device="cuda"), []

    def work(given: dict) -> tuple[torch.Tensor, dict]:
        loss = (torch.nn.functional.dropout(given["x"], 0.5) * weight).sum()
        if torch.cuda.is_current_stream_capturing():
            loss.item() if how == "wait" else torch.empty(2**50, device="cuda")
        loss.backward()
        return loss.detach(), {}

    gc.collect()  # what earlier tests left would go in between
    run, results, held = GraphedWork(work, torch.device("cuda"), asked=False, note=said.append), [], []
    for number in range(4):
        torch.cuda.manual_seed(7)
        results.append(run({"x": x})[0].item())
        assert weight.grad.sum().item() == pytest.approx((number + 1) * results[0], rel=1e-5)
        torch.cuda.empty_cache()
        held += [torch.cuda.memory_reserved()]
    assert len(set(results)) == 1 and not run.graphs
    assert max(held) - min(held) < 2**24  # a pass holds four times that and more
    assert len(said) == 1 and said[0].startswith(f"{LEAVES}: the capture failed (")
    again = GraphedWork(lambda given: (torch.nn.functional.dropout(given["x"], 0.5).sum(), {}), torch.device("cuda"))
    for _ in range(3):  # as written, captured, replayed: whoever captures next can
        torch.cuda.manual_seed(7)
        assert again({"x": x})[0].item() == results[0]


class Waits(Final):
    """A loss that waits for the device when it is captured, taken for one of the package's own."""

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, metrics = super().__call__(model, rollout)
        if torch.cuda.is_current_stream_capturing():
            loss.item()
        return loss, metrics


@pytest.mark.gpu
def test_a_run_goes_on_where_its_capture_fails(tmp_path: Path, replays: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Waits, "__module__", Final.__module__)
    monkeypatch.setitem(OBJECTIVES, "waits", Waits)
    shape, rules, reporter = {**LOOPED, "dropout": 0.3}, {"objective": {"kind": "waits"}, "validate": {"every": 4}}, Silent()
    plain = text_losses(tmp_path / "plain", shape, apart=True, graph=False, **rules)
    unasked = text_losses(tmp_path / "unasked", shape, apart=True, reporter=reporter, **rules)
    assert not replays and unasked == pytest.approx(plain, abs=2e-2)
    assert [note.split("(")[0] for note in reporter.notes if note.startswith("graph")] == [f"{LEAVES}: the capture failed "]
