"""Checkpoints: what comes back, what is refused, what is kept. Faults have a file of their own."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import loopwright as lw
from loopwright.checkpoints.save import command_line
from loopwright.checkpoints.weights import load_tensors
from loopwright.storage.files import read_json, write_json
from loopwright.storage.manifest import CARD, entries_of, write_entries
from loopwright.storage.run import RunFolder, saved
from loopwright.training.checkpoint import (
    by_depth,
    latest_good,
    load_weights,
    model_tensors,
    open_checkpoint,
    save_checkpoint,
    versions_section,
)
from loopwright.training.loop import train
from loopwright.training.optim import EMA, AdamW, as_masters
from loopwright.training.recipe import Recipe
from tests.cases import noisy
from tests.training.runs import Act, end_of, interrupt, rows_of, small


@pytest.fixture(scope="module")
def model() -> lw.LoopedForCausalLM:
    return noisy("stars-addition-tiny")


def save(checkpoints: Path, update: int, model: lw.LoopedForCausalLM, **changes: Any) -> Path:
    tensors = {"optimizer": {"core.0.x/exp_avg": torch.full((3, 4), float(update)), "core.0.x/step": torch.tensor(float(update))}}
    return save_checkpoint(checkpoints, update, **{"model": model, "tensors": tensors, "state": {"rows": update}, **changes})


def marked(folder: Path) -> float:
    expected = {"core.0.x/exp_avg": torch.empty(3, 4), "core.0.x/step": torch.empty(())}
    return load_tensors(folder, "optimizer", expected)["core.0.x/step"].item()


def names(checkpoints: Path) -> list[str]:
    return sorted(path.name for path in checkpoints.iterdir())


# what comes back


@pytest.mark.parametrize("name", ["universal-tiny", "ouro-1.4b-tiny", "ouroboros-qwen2.5-3b-tiny", "asura-tiny"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_comes_back_bit_for_bit_in_its_own_dtypes(tmp_path: Path, name: str, tied: bool) -> None:
    """Trainable parameters in float32, frozen ones in bfloat16, a tied head once."""
    model = noisy(name, tie_word_embeddings=tied).to(torch.bfloat16)
    for place, parameter in enumerate(model.core.parameters()):
        parameter.requires_grad_(place % 2 == 0)
    as_masters(model)
    assert {p.dtype for p in model.parameters()} == {torch.float32, torch.bfloat16}
    folder = save_checkpoint(tmp_path, 7, model=model, tensors={}, state={})
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}

    fresh = noisy(name, seed=1, tie_word_embeddings=tied).to(torch.bfloat16)
    for mine, theirs in zip(fresh.parameters(), model.parameters(), strict=True):
        mine.data = mine.data.to(theirs.dtype)
    load_weights(folder, fresh)
    loaded = lw.load(folder)
    for key, value in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[key], value) and fresh.state_dict()[key].dtype == value.dtype, key
        assert torch.equal(loaded.state_dict()[key], value.float()), key
    assert ("lm_head.weight" in load_file(folder / "model.safetensors")) == (not tied)


def test_weights_given_whole_are_those_saved(tmp_path: Path, model: lw.LoopedForCausalLM) -> None:
    weights = {name: tensor.detach() + 1 for name, tensor in model.state_dict().items()}
    folder = save(tmp_path, 1, model, weights=weights)
    fresh = noisy("stars-addition-tiny", seed=1)
    load_weights(folder, fresh)
    assert all(torch.equal(value, weights[name]) for name, value in fresh.state_dict().items())


def test_weights_of_another_model_are_refused(tmp_path: Path, model: lw.LoopedForCausalLM) -> None:
    folder = save(tmp_path, 1, model)
    with pytest.raises(ValueError, match=r"do not fit; of another form: embed_tokens.weight is F32\[15, 32\], expected"):
        load_weights(folder, lw.build("stars-addition-tiny", vocab_size=50))
    with pytest.raises(ValueError, match="do not fit; missing: "):
        load_weights(folder, lw.build("stars-addition-tiny", core_layers=2))
    with pytest.raises(ValueError, match=r"input.bias is F32\[32\], expected BF16\[32\] and 23 more"):
        load_weights(folder, lw.build("stars-addition-tiny").to(torch.bfloat16))


def test_tensors_are_checked_before_they_are_read(tmp_path: Path, model: lw.LoopedForCausalLM) -> None:
    folder = save(tmp_path, 1, model, tensors={"odd": {"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.uint8)}})
    like = {"a": torch.empty(3, device="meta"), "b": torch.empty(2, dtype=torch.uint8), "c": torch.empty(1)}
    assert sorted(load_tensors(folder, "odd", like)) == ["a", "b"]
    with pytest.raises(ValueError, match="do not fit; unexpected: b"):
        load_tensors(folder, "odd", {"a": torch.empty(3)})
    for other in (torch.empty(4), torch.empty(3, dtype=torch.float64), torch.empty(3, 1)):
        with pytest.raises(ValueError, match=r"of another form: a is F32\[3\], expected"):
            load_tensors(folder, "odd", {**like, "a": other})
    with pytest.raises(FileNotFoundError, match=r"even.safetensors: missing"):
        load_tensors(folder, "even", like)


def test_a_header_that_lies_is_refused_before_memory_is_asked_for(tmp_path: Path) -> None:
    shape = [2**40]
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 8]}}).encode()
    (tmp_path / "odd.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ValueError, match="of another form"):
        load_tensors(tmp_path, "odd", {"a": torch.empty(2)})
    with pytest.raises(ValueError, match=r"not readable .*; the file is damaged"):
        load_tensors(tmp_path, "odd", {"a": torch.empty(shape, device="meta")})
    (tmp_path / "odd.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ValueError, match="too short for its own header"):
        load_tensors(tmp_path, "odd", {"a": torch.empty(2)})


def test_state_comes_back_and_what_would_change_is_refused(tmp_path: Path, model: lw.LoopedForCausalLM) -> None:
    state = {"rows": 3, "loss": 0.1 + 0.2, "best": None, "depths": [1, 2], "more": {"a": "ü"}}
    found = open_checkpoint(save(tmp_path, 5, model, state=state, best=5))
    assert (found.state, found.update, found.best) == (state, 5, 5)
    for wrong in ({"a": (1, 2)}, {1: 2}, {"a": float("inf")}, {"a": torch.zeros(1)}):
        with pytest.raises(ValueError, match="checkpoint: the state"):
            save(tmp_path, 6, model, state=wrong)
    for changes in ({"update": -1}, {"keep": 0}, {"tensors": {"model": {}}}, {"tensors": {"../x": {}}}):
        with pytest.raises(ValueError, match="checkpoint: "):
            save(tmp_path, **{"update": 6, "model": model, **changes})
    assert names(tmp_path) == ["00000005"]


def test_a_state_file_of_another_form_is_refused(tmp_path: Path, model: lw.LoopedForCausalLM) -> None:
    folder = save(tmp_path, 5, model)
    for wrong in ({}, {"update": "5", "best": None, "state": {}}, {"update": 5, "best": "x", "state": {}}):
        write_json(folder / "state.json", wrong)
        write_entries(folder, entries_of(folder))
        with pytest.raises(ValueError, match=r"state.json: "):
            open_checkpoint(folder)


def test_a_save_changes_nothing_it_saves_and_shows_no_bar(
    tmp_path: Path, model: lw.LoopedForCausalLM, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    first, second = save(tmp_path / "a", 1, model), save(tmp_path / "b", 1, model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {p.name: p.read_bytes() for p in first.iterdir()} == {p.name: p.read_bytes() for p in second.iterdir()}
    assert capfd.readouterr() == ("", "")


def test_a_run_goes_on_from_disk_bit_for_bit(tmp_path: Path) -> None:
    """Weights, optimiser, average: three updates, saved, then three more here and in fresh objects."""

    def make(seed: int) -> tuple[Any, Any, Any]:
        model = noisy("huginn-tiny", seed=seed, std=0.1)
        kind = AdamW(1e-2, weight_decay=0.1, parts={"injection.*": {"lr": 1e-3}})
        kind.prepare(model)
        return model, kind(model), EMA(0.9, 5)(model)

    def go(model: Any, optimiser: Any, average: Any, first: int) -> None:
        for update in range(first, first + 3):
            ids = torch.randint(0, 96, (2, 8), generator=torch.Generator().manual_seed(update))
            model(ids, depth=2, labels=ids).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            average.take_in(update)

    model, optimiser, average = make(0)
    go(model, optimiser, average, 0)
    tensors = {"optimizer": optimiser.state_tensors(), "average": average.state_tensors()}
    folder = save_checkpoint(tmp_path, 3, model=model, tensors=tensors, state={})
    go(model, optimiser, average, 3)

    other, fresh, mean = make(1)
    load_weights(folder, other)
    fresh.load_state_tensors(load_tensors(folder, "optimizer", fresh.state_forms()))
    mean.load_state_tensors(load_tensors(folder, "average", mean.state_tensors()))
    go(other, fresh, mean, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(value, mean.values[name]) for name, value in average.values.items())


# what is kept


def test_the_newest_and_the_best_are_kept(tmp_path: Path, model: lw.LoopedForCausalLM) -> None:
    bests = {10: 10, 20: 20, 30: 20, 40: 20, 50: 50, 60: 50}
    seen = []
    for update, best in bests.items():
        save(tmp_path, update, model, keep=2, best=best)
        seen.append([int(name) for name in names(tmp_path)])
    # 20 is gone only when no kept checkpoint calls it the best: a fall-back to 40 would still find it
    assert seen == [[10], [10, 20], [20, 30], [20, 30, 40], [20, 40, 50], [50, 60]]


def test_where_nothing_is_there_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        latest_good(tmp_path / "absent")


def test_a_run_that_went_back_keeps_what_it_went_back_to(tmp_path: Path, model: lw.LoopedForCausalLM) -> None:
    for update in (1, 2, 3):
        save(tmp_path, update, model)
    (tmp_path / "00000003" / "state.json").write_text("{}")
    save(tmp_path, 2, model, keep=1)
    assert names(tmp_path) == ["00000002", "00000003"]
    found, skipped = latest_good(tmp_path)
    assert found.update == 2 and len(skipped) == 1 and "00000003/state.json" in skipped[0]
    save(tmp_path, 3, model, keep=1)
    assert names(tmp_path) == ["00000003"] and latest_good(tmp_path)[1] == []


def test_what_is_not_a_checkpoint_is_left_alone(tmp_path: Path, model: lw.LoopedForCausalLM) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "00000001.bak").write_text("mine")
    save(tmp_path, 2, model, keep=1)
    save(tmp_path, 3, model, keep=1)
    assert names(tmp_path) == ["00000001.bak", "00000003", "notes"]


def test_everything_is_on_the_disk_before_it_is_renamed_and_the_old_one_goes_last(
    tmp_path: Path, model: lw.LoopedForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, model)
    rename, done = os.rename, []
    monkeypatch.setattr(os, "fsync", lambda handle: done.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}")))))
    monkeypatch.setattr(os, "rename", lambda a, b: (done.append((f"rename to {Path(b).name[:9]}", Path(a))), rename(a, b))[1])
    folder = save(tmp_path, 2, model, keep=1)
    renamed = [place for place, (what, _) in enumerate(done) if what == "rename to 00000002"]
    assert len(renamed) == 1
    made, before, after = done[renamed[0]][1], done[: renamed[0]], done[renamed[0] + 1 :]
    synced = {path for what, path in before if what == "sync"}
    assert {made, *(made / path.name for path in folder.iterdir())} <= synced
    assert after == [("sync", tmp_path), ("rename to .00000001", tmp_path / "00000001")]


def test_where_none_is_whole_each_is_named(tmp_path: Path, model: lw.LoopedForCausalLM) -> None:
    for update in (1, 2):
        (save(tmp_path, update, model) / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"none of the 2 checkpoints is whole: .*00000002/manifest.json: missing; .*00000001/"):
        latest_good(tmp_path)


def test_every_tensor_of_a_model_has_one_name(model: lw.LoopedForCausalLM) -> None:
    assert [name for name in model.state_dict() if name not in model_tensors(model)] == ["lm_head.weight"]
    loose = lw.build("stars-addition-tiny", tie_word_embeddings=False)
    assert sorted(model_tensors(loose)) == sorted(loose.state_dict())


def test_saved_lists_the_newest_first(tmp_path: Path) -> None:
    for name in ("00000002", "00000010", "100000000", "00000010.replaced", "7", ".00000011.ab.tmp"):
        (tmp_path / name).mkdir()
    assert [path.name for path in saved(tmp_path)] == ["100000000", "00000010", "00000010.replaced", "00000002"]


# parts alone


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "model"
    lw.save(noisy("ouroboros-qwen2.5-3b-tiny", vocab_size=15), folder)
    return folder


def healing(base: Path, **save: Any) -> Recipe:
    optim = {"kind": "adamw", "lr": 1e-2, "train": ["gate.*", "adapters.*", "coda.-1.*"]}
    return small(
        {"model": {"kind": "load", "source": str(base)}, "optim": optim, "updates": 6, "save": {"every": 3, "parts": True, **save}}
    )


@pytest.mark.long
def test_a_checkpoint_of_parts_is_small_and_goes_onto_its_base(base: Path, tmp_path: Path) -> None:
    found = train(healing(base), tmp_path / "run")
    folder = found.checkpoint
    stored = load_file(folder / "adapters.safetensors")
    assert {name.split(".")[0] for name in stored} == {"adapters", "gate", "end_norm", "coda"}
    assert not any(name.startswith("coda.0") for name in stored) and not (folder / "model.safetensors").exists()
    assert {key.split("/")[0] for key in load_file(folder / "optimizer.safetensors")} <= set(stored)
    ids = torch.arange(8)[None]
    again = lw.load_adapters(base, folder)
    assert torch.equal(again(ids).logits, found.model(ids).logits) and not torch.equal(again(ids).logits, lw.load(base)(ids).logits)
    for source in (folder, tmp_path / "run"):
        assert torch.equal(lw.load(source)(ids).logits, again(ids).logits)
    (tmp_path / "run" / "recipe.yaml").unlink()
    with pytest.raises(ValueError, match="holds parts alone, and the recipe names no model"):
        lw.load(tmp_path / "run")


@pytest.mark.parametrize("trained", ["float32", "bfloat16"])
@pytest.mark.slow
def test_parts_come_back_in_any_dtype_as_a_whole_model_does(base: Path, tmp_path: Path, trained: str) -> None:
    saved_in = {}
    for parts in (True, False):
        recipe = healing(base, parts=parts)
        recipe = replace(recipe, model={**recipe.model, "dtype": trained}, precision="bf16" if trained == "bfloat16" else "fp32")
        quick = replace(recipe, updates=2, batch=2, validate=replace(recipe.validate, every=0))
        saved_in[parts] = train(quick, tmp_path / str(parts)).checkpoint
    frozen = lw.load(base).prelude[0].mlp.up_proj.weight
    assert not torch.equal(frozen, frozen.bfloat16().float())  # or no dtype would matter
    for asked in (torch.float32, torch.bfloat16, torch.float64):
        alone, whole = (lw.load(saved_in[parts], dtype=asked) for parts in (True, False))
        values = whole.state_dict()
        assert all(value.dtype == asked and torch.equal(value, values[name]) for name, value in alone.state_dict().items())
        ids = torch.arange(8)[None]
        assert torch.equal(alone(ids).logits, whole(ids).logits)


@pytest.mark.slow
def test_parts_are_resumed_bit_for_bit_as_whole_models_are(base: Path, tmp_path: Path) -> None:
    straight = train(healing(base), tmp_path / "a")
    whole = train(healing(base, parts=False), tmp_path / "w")
    train(healing(base), tmp_path / "b", reporter=Act(4, interrupt))
    resumed = train(healing(base), tmp_path / "b", resume=True)
    assert resumed.finished and rows_of(resumed) == rows_of(straight) == rows_of(whole)
    assert end_of(tmp_path / "a") == end_of(tmp_path / "b")
    mixed = train(healing(base), tmp_path / "c", reporter=Act(4, interrupt))
    assert not mixed.finished
    changed = train(healing(base, parts=False), tmp_path / "c", resume=True)  # how it is saved may change on the way
    assert end_of(tmp_path / "c") == end_of(tmp_path / "w") and rows_of(changed) == rows_of(whole)


@pytest.mark.long
def test_parts_of_another_base_are_not_resumed(base: Path, tmp_path: Path) -> None:
    train(healing(base), tmp_path / "run", reporter=Act(4, interrupt))
    moved = lw.load(base)
    kept = lw.load(base)
    try:
        with torch.no_grad():
            moved.prelude[0].mlp.up_proj.weight += 1
        lw.save(moved, base)
        with pytest.raises(ValueError, match=r"other values: prelude\.0\.mlp\.up_proj\.weight$"):
            train(healing(base), tmp_path / "run", resume=True)
    finally:
        lw.save(kept, base)


def test_parts_alone_need_a_frozen_base(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a model of kind 'preset' has no base"):
        train(small({"save": {"parts": True}}), tmp_path / "a")
    with pytest.raises(ValueError, match="nothing of the model's base is frozen"):
        train(small({"model": {"kind": "load", "source": str(base)}, "save": {"parts": True}}), tmp_path / "b")


# The card of a checkpoint: recipe, results by depth, command; kept where it was edited


def test_a_checkpoint_says_what_was_trained_and_what_was_measured(tmp_path: Path) -> None:
    run = train(small({"updates": 5}), tmp_path)
    text = (run.checkpoint / CARD).read_text()
    assert "# a test\n" in text and "5 of 5 updates" in text and "digits: 2" in text and "kind: uniform" in text
    valid = next(row for row in reversed(run.log()) if "valid" in row)["valid"]
    for depth, found in valid.items():
        assert f"| {depth} | {found['loss']:.4f} | {found['exact']:.4f} |" in text
    assert f"- command: `{command_line(shlex.split(read_json(run.folder.origin)['command']))}`" in text


def test_a_card_names_no_folder_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lw.save(lw.build("stars-addition-tiny"), tmp_path / "base")
    monkeypatch.setattr(sys, "argv", ["/opt/env/bin/loopwright", "train", f"model.source={model}", "--out", str(tmp_path / "run")])
    run = train(small({"updates": 1, "model": {"kind": "load", "source": str(model)}}), tmp_path / "run")
    text = (run.checkpoint / CARD).read_text()
    assert "- command: `loopwright train model.source=base --out run`" in text and "source: base\n" in text
    assert str(tmp_path) not in text and "/opt" not in text


@pytest.mark.parametrize("command", ["", "loopwright 'torn", None, 5])
def test_an_edited_origin_ends_no_run(command: object, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    write_json(run.origin, {"command": command, "loopwright": "1"})
    assert versions_section(run)["Made with"].startswith("- loopwright: `1`")


def test_an_edited_card_survives_a_resumption_and_damages_nothing(tmp_path: Path) -> None:
    run = train(small({"updates": 3}), tmp_path)
    (run.checkpoint / CARD).write_text("mine")
    assert latest_good(run.folder.checkpoints)[1] == []
    again = train(small({"updates": 3}), tmp_path, resume=True)  # saves the same update once more
    assert again.checkpoint == run.checkpoint and (run.checkpoint / CARD).read_text() == "mine"


def test_without_validation_or_origin_there_are_no_such_sections(tmp_path: Path) -> None:
    run = train(small({"updates": 1, "validate": {"every": 0}}), tmp_path)
    assert "Results by depth" not in (run.checkpoint / CARD).read_text() and versions_section(RunFolder(tmp_path / "none")) == {}


def test_depths_come_in_order_and_what_was_not_measured_is_a_dash() -> None:
    row = {"update": 9, "valid": {"16": {"loss": None, "exact": None}, "2": {"loss": 1.5, "exact": None}}}
    assert by_depth(row).splitlines()[2:] == ["| depth | loss |", "|---|---|", "| 2 | 1.5000 |", "| 16 | – |"]
