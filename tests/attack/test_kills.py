"""Killed at every call on the file system, while a folder is written over one that is there: what is read afterwards is the old
model or the new one, bit for bit, and the next write clears what was left.

The whole attack (`-m attack`) goes through every call of every writer, with the exchange of folders and without; the short one
goes through the calls of one writer in strides.
"""

from __future__ import annotations

import json
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
from loopwright.data.tokens import kept_shards
from loopwright.storage.folder import settled
from loopwright.training.checkpoint import save_checkpoint
from tests.attack.harness import fresh, killed_at
from tests.cases import noisy
from tests.generation.tiny import DENSE, word_tokenizer

Digest = dict[str, bytes]


@dataclass(frozen=True)
class Writer:
    """A way to write a folder: `write(place, version)`, and `read(place)`, what is found there (None: nothing yet)."""

    write: Callable[[Path, int], object]
    read: Callable[[Path], Any]
    beside: Callable[[Path], list[str]] = lambda place: sorted(path.name for path in place.iterdir())


@cache
def model(version: int, name: str = "relaxed-tiny") -> lw.LoopedForCausalLM:
    return noisy(name, seed=0 if name == "dense" else version).eval()


@cache
def dense() -> lw.LoopedForCausalLM:
    return noisy("ouroboros-qwen2.5-3b-tiny", **DENSE).eval()


def weights(found: torch.nn.Module) -> Digest:
    return {name: value.detach().contiguous().view(torch.uint8).numpy().tobytes() for name, value in found.named_parameters()}


def loaded(place: Path) -> tuple[Digest, bool, str]:
    """The weights, whether the tokenizer is there, and the words beside it."""
    lw.tokenizer(place / "m")
    return weights(lw.load(place / "m")), True, (settled(place / "m") / "README.md").read_text()


def save(place: Path, version: int) -> None:
    lw.save(model(version), place / "m", word_tokenizer() if version == 0 else None)
    if version == 0:
        (place / "m" / "README.md").write_text("mine")


def read_adapters(place: Path) -> Digest:
    base = model(0)
    return weights(lw.load_adapters(base, place / "m"))


def save_parts(place: Path, version: int) -> None:
    base, changed = model(0), noisy("relaxed-tiny").eval()
    with torch.no_grad():
        for name, value in changed.named_parameters():
            if name.startswith("adapters."):
                value.add_(version)
    assert weights(base)["embed_tokens.weight"] == weights(changed)["embed_tokens.weight"]
    lw.save_adapters(changed, place / "m")


def retrofitted(place: Path, version: int) -> None:
    if not (place / "source").is_dir():
        lw.save(dense(), place / "source", word_tokenizer())
    with redirect_stdout(StringIO()):
        retrofit(str(place / "source"), str(place / "m"), ["adapters={rank: 4, style: 8}"], seed=version)


def checkpointed(place: Path, version: int) -> None:
    save_checkpoint(place / "m" / "checkpoints", 7, model=model(version), tensors={}, state={"rows": version})


def tokenised(place: Path, version: int) -> None:
    documents = [([version + 1] * 50, None)] * 20
    kept_shards(place / "m", "train", {"version": version}, lambda: documents, vocab_size=99, shard_tokens=300)


def read_shards(place: Path) -> list[int]:
    """The sets that are there under their names, each whole."""
    found = []
    for index in sorted((place / "m").glob("train-*/index.json")):
        version = json.loads(index.read_text())["about"]["version"]
        shards = kept_shards(place / "m", "train", {"version": version}, lambda: pytest.fail("made anew"), vocab_size=99)
        assert shards.read(0, shards.tokens).tolist() == [version + 1] * 1000
        found.append(version)
    return found


WRITERS: dict[str, Writer] = {
    "lw.save": Writer(save, loaded),
    "lw.save_adapters": Writer(save_parts, read_adapters),
    "lw.export": Writer(
        lambda place, version: lw.export(noisy("ouroboros-qwen2.5-3b-tiny", seed=version, **DENSE), place / "m", family="qwen2"),
        lambda place: weights(lw.load(place / "m")),
    ),
    "retrofit": Writer(retrofitted, lambda place: (weights(lw.load(place / "m")), len(lw.tokenizer(place / "m")))),
    "checkpoint": Writer(
        checkpointed,
        lambda place: weights(lw.load(place / "m")),
        lambda place: sorted(path.name for path in (place / "m" / "checkpoints").iterdir()),
    ),
    "tokens": Writer(tokenised, read_shards, lambda place: sorted(p.name for p in (place / "m").iterdir())),
}  # fmt: skip


def attack(name: str, place: Path, *, two_renames: bool, stride: int = 1) -> tuple[int, int, int]:
    """Returns how often a writer was killed, and how often the old and the new folder were found."""
    writer = WRITERS[name]
    base, now = place / "base", place / "now"
    base.mkdir()
    writer.write(base, 0)
    old = writer.read(base)
    writer.write(fresh(base, now), 1)
    new, beside = writer.read(now), writer.beside(now)
    assert old != new
    number, tried, seen = 1, 0, [0, 0]
    while killed_at(number, fresh(base, now), lambda: writer.write(now, 1), two_renames=two_renames):
        tried += 1
        found = writer.read(now)
        assert found in (old, new), (name, number)
        seen[found == new] += 1
        writer.write(now, 1)
        assert writer.read(now) == new and writer.beside(now) == beside, (name, number, writer.beside(now))
        number += stride
    assert writer.read(now) == new
    return tried, *seen


@pytest.mark.long
def test_killed_in_strides_while_a_model_is_saved_over_another(tmp_path: Path) -> None:
    tried, old, _ = attack("lw.save", tmp_path, two_renames=False, stride=6)
    assert tried >= 5 and old > 0


@pytest.mark.attack
@pytest.mark.parametrize("two_renames", [False, True], ids=["exchange", "two renames"])
@pytest.mark.parametrize("name", WRITERS)
def test_killed_at_every_call(name: str, two_renames: bool, tmp_path: Path) -> None:
    tried, old, new = attack(name, tmp_path, two_renames=two_renames)
    print(f"\nkills, {name}{' in two renames' if two_renames else ''}: tried {tried}, failed 0 (old {old}, new {new})")
    assert tried > 15 and old > 0
