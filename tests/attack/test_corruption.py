"""Corruption: random flips, truncations, growth, zeros, missing and exchanged files over every kind of folder that is written.

Whatever is then read is an error that names what is wrong, or the same bits (the file is not read), or, of a run, an older
checkpoint with a warning; never another model without a word. `-m attack -s` prints how often each came, per kind.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.cli.conversion import retrofit
from loopwright.storage.manifest import CARD, verify
from loopwright.training.checkpoint import base_references, latest_good, save_checkpoint
from loopwright.training.optim import EMA
from tests.attack.harness import hurt, swap
from tests.cases import noisy
from tests.generation.tiny import DENSE, word_tokenizer

TIMES = 200  # per kind


@dataclass(frozen=True)
class Kind:
    """A kind of folder: `make(place)` writes it and returns the folder whose files are hurt; `read(place)` is what it holds.

    `strict(place)` must be told of every damage: what goes on from these files, instead of only looking at the model.
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    strict: Callable[[Path], bool] | None = None


def bits(model: torch.nn.Module) -> dict[str, bytes]:
    return {name: value.detach().contiguous().view(torch.uint8).numpy().tobytes() for name, value in model.named_parameters()}


@cache
def model(seed: int = 0) -> lw.LoopedForCausalLM:
    return noisy("relaxed-tiny", seed=seed).eval()


@cache
def dense() -> lw.LoopedForCausalLM:
    return noisy("ouroboros-qwen2.5-3b-tiny", **DENSE).eval()


def words(place: Path) -> tuple[str, Any, Any]:
    found = lw.tokenizer(place)
    return found.backend_tokenizer.to_str(), found.special_tokens_map, found.chat_template


def whole(place: Path) -> tuple[Any, ...]:
    found = lw.load(place)
    return bits(found), found.config.to_dict(), found.generation_config.to_dict(), words(place)


def make_saved(place: Path) -> Path:
    return lw.save(model(), place / "m", word_tokenizer(chat=True))


def make_retrofit(place: Path) -> Path:
    source = lw.save(dense(), place / "source", word_tokenizer())
    with redirect_stdout(StringIO()):
        retrofit(str(source), str(place / "m"), ["adapters={rank: 4, style: 8}"])
    return place / "m"


def make_run(place: Path) -> Path:
    """A run of two checkpoints with an average and an optimiser's state; the newer one is hurt."""
    for update in (1, 2):
        found = model(update)
        tensors = {"average": EMA(0.5)(model(update + 5)).state_tensors(), "optimizer": {"x": torch.randn(50)}}
        save_checkpoint(place / "m" / "checkpoints", update, model=found, tensors=tensors, state={"rows": update}, best=1)
    return place / "m" / "checkpoints" / "00000002"


def make_parts(place: Path) -> Path:
    """The same with parts alone: the recipe names their base."""
    source = lw.save(noisy("relaxed-tiny").eval(), place / "source")
    spec = {"kind": "load", "source": str(source)}
    (place / "m" / "checkpoints").mkdir(parents=True)
    (place / "m" / "recipe.yaml").write_text(f"model: {{kind: load, source: {source}}}\n")
    for update in (1, 2):
        found = noisy("relaxed-tiny").eval()
        for name, value in found.named_parameters():
            value.requires_grad_(name.startswith("adapters."))
            value.data += update * name.startswith("adapters.")
        tensors = {"average": EMA(0.5)(found).state_tensors()}
        save_checkpoint(
            place / "m" / "checkpoints", update, model=found, tensors=tensors, state={}, references=base_references(spec, found)
        )
    return place / "m" / "checkpoints" / "00000002"


def make_adapters(place: Path) -> Path:
    return lw.save_adapters(model(), place / "m")


def is_resumable(place: Path) -> bool:
    return latest_good(place / "m" / "checkpoints")[0].update == 2


# token shards and traces have digests of their own and come into this table with them
KINDS: dict[str, Kind] = {
    "lw.save": Kind(make_saved, lambda place: whole(place / "m")),
    "lw.export": Kind(
        lambda place: (lw.export(dense(), place / "m", family="qwen2", shard_bytes=60_000), place / "m")[1],
        lambda place: bits(lw.load(place / "m")),
    ),
    "lw.save_adapters": Kind(make_adapters, lambda place: bits(lw.load_adapters(model(), place / "m"))),
    "retrofit": Kind(make_retrofit, lambda place: whole(place / "m")),
    "checkpoint": Kind(
        make_run, lambda place: bits(lw.load(place / "m" / "checkpoints" / "00000002")), is_resumable
    ),
    "run folder": Kind(make_run, lambda place: bits(lw.load(place / "m")), is_resumable),
    "run of parts alone": Kind(make_parts, lambda place: bits(lw.load(place / "m")), is_resumable),
}  # fmt: skip


def outcome(kind: Kind, place: Path, right: Any, older: Any, hurt_file: str) -> str:
    """Returns "error", "passed over" or "same bits"; anything else fails."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = kind.read(place)
        except (ValueError, OSError) as error:
            return "error" if "\n" not in str(error) else pytest.fail(f"{hurt_file}: {error}")
    if found == right:
        return "same bits"
    notes = [str(note.message) for note in said if "is used instead" in str(note.message)]
    assert found == older and len(notes) == 1 and "00000002" in notes[0], (hurt_file, notes)
    return "passed over"


def attack(name: str, place: Path, times: int, seed: int = 0) -> Counter[str]:
    kind, rng, counts = KINDS[name], random.Random(seed), Counter[str]()
    folder = kind.make(place)
    right, older = kind.read(place), None
    if kind.strict is not None and folder.parent.name == "checkpoints" and name != "checkpoint":
        shutil.move(folder, place / "aside")
        older = kind.read(place)
        shutil.move(place / "aside", folder)
        assert older != right
    assert verify(folder) == []
    for _ in range(times):
        path, other = rng.sample(sorted(one for one in folder.iterdir() if one.name != CARD), 2)
        kept = {one: one.read_bytes() for one in (path, other)}
        how = swap(path, other) if rng.random() < 0.15 else hurt(path, rng)
        found = outcome(kind, place, right, older, f"{path.name}: {how}")
        assert verify(folder) != [], (path, how)
        assert kind.strict is None or not kind.strict(place), (path, how)
        counts[found] += 1
        for one, content in kept.items():
            one.write_bytes(content)
    assert kind.read(place) == right and verify(folder) == []
    return counts


@pytest.mark.parametrize("name", ["lw.save", "run folder", "lw.save_adapters"])
def test_ten_damages_are_found_or_change_nothing(name: str, tmp_path: Path) -> None:
    assert sum(attack(name, tmp_path, 10).values()) == 10


@pytest.mark.attack
@pytest.mark.parametrize("name", KINDS)
def test_hundreds_of_damages_are_found_or_change_nothing(name: str, tmp_path: Path) -> None:
    counts = attack(name, tmp_path, TIMES)
    print(f"\ncorruption, {name}: tried {counts.total()}, failed 0 ({', '.join(f'{n} {what}' for what, n in counts.items())})")
