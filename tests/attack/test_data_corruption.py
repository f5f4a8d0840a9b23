"""Token shards, traces and logs, damaged at random in every way a disk or a person damages files: all of it must be found."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from loopwright.analysis.trace.record import TraceSet, trace_prompts
from loopwright.data.tokens import Shards, kept_shards
from loopwright.training.loop import train
from tests.cases import noisy
from tests.training.runs import Act, interrupt, small

pytestmark = pytest.mark.attack
TRIES = 400


def damage(path: Path, rng: random.Random) -> str:
    """Damages a file in one of many ways and returns which; its bytes are others afterwards, or it is gone."""
    data = path.read_bytes()
    at, count = rng.randrange(len(data)), rng.randint(1, 64)
    other = bytes(rng.randrange(256) for _ in range(count))
    ways: dict[str, Callable[[], bytes]] = {
        "bit": lambda: data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
        "digit": lambda: _other_digit(data, rng),
        "stretch": lambda: data[:at] + other + data[at + count :],
        "zeros": lambda: data[:at] + bytes(count) + data[at + count :],
        "cut": lambda: data[:at],
        "left out": lambda: data[:at] + data[at + count :],
        "put in": lambda: data[:at] + other + data[at:],
        "more": lambda: data + other,
        "line gone": lambda: b"".join(_without_one(data.splitlines(keepends=True), rng)),
        "line twice": lambda: b"".join(_one_twice(data.splitlines(keepends=True), rng)),
        "empty": lambda: b"",
        "missing": lambda: b"",
    }
    way = rng.choice(list(ways))
    if way == "missing":
        path.unlink()
        return way
    changed = ways[way]()
    if changed == data:  # zeros over zeros
        return damage(path, rng)
    path.write_bytes(changed)
    return way


def _other_digit(data: bytes, rng: random.Random) -> bytes:
    places = [place for place, byte in enumerate(data) if byte in b"0123456789"] or [0]
    place = rng.choice(places)
    return data[:place] + bytes([rng.choice([d for d in b"0123456789" if d != data[place]])]) + data[place + 1 :]


def _without_one(lines: list[bytes], rng: random.Random) -> list[bytes]:
    lines.pop(rng.randrange(len(lines)))
    return lines


def _one_twice(lines: list[bytes], rng: random.Random) -> list[bytes]:
    place = rng.randrange(len(lines))
    return [*lines[: place + 1], *lines[place:]]


def attack(kind: str, folder: Path, files: str, read: Callable[[Path], object], scratch: Path, tries: int = TRIES) -> None:
    """Damages one file of a copy of a folder, again and again, and counts how often reading it raises no one-line error."""
    rng, silent, raw = random.Random(kind), [], []
    for turn in range(tries):
        copy = scratch / f"{kind}-{turn}".replace(" ", "-")
        shutil.copytree(folder, copy)
        path = rng.choice(sorted(copy.glob(files)))
        way = damage(path, rng)
        try:
            read(copy)
            silent.append(f"{path.name} ({way})")
        except (ValueError, OSError) as error:
            if "\n" in str(error):
                raw.append(f"{path.name} ({way}): {error!r}")
        except Exception as error:
            raw.append(f"{path.name} ({way}): {error!r}")
        shutil.rmtree(copy)
    print(f"{kind}: tried {tries}, failed {len(silent) + len(raw)} (silent {len(silent)}, raw {len(raw)})")
    assert not silent and not raw, (silent[:5], raw[:5])


def test_token_shards(tmp_path: Path) -> None:
    def documents() -> Iterator[tuple[list[int], list[bool]]]:
        rng = random.Random(0)
        for _ in range(60):
            ids = [rng.randrange(500) for _ in range(rng.randint(1, 50))]
            yield ids, [rng.random() < 0.5 for _ in ids]

    kept_shards(tmp_path / "kept", "train", {"source": "x"}, documents, vocab_size=500, shard_tokens=400)
    place = next((tmp_path / "kept").glob("train-*"))
    attack("token shards", place, "*", Shards, tmp_path)


def test_traces(tmp_path: Path) -> None:
    trace_prompts(noisy("huginn-tiny"), [[1, 2, 3], [4, 5], [6, 7, 8]], tmp_path / "set", depth=3)
    attack("traces", tmp_path / "set", "*", lambda folder: [one.values for one in TraceSet(folder)], tmp_path)


def test_logs(tmp_path: Path) -> None:
    """A log that is damaged before the checkpoint is refused at the resume, as is one that is cut; a missing one is told."""
    torch.manual_seed(0)
    chosen = small({"updates": 9, "validate": {"every": 2}})
    train(chosen, tmp_path / "run", reporter=Act(8, interrupt))

    def resume(folder: Path) -> None:
        told = Act(0, interrupt)
        before = (folder / "log.jsonl").read_bytes() if (folder / "log.jsonl").exists() else None
        train(chosen, folder, resume=True, reporter=told)
        if before is None and any("log.jsonl is not there" in note for note in told.notes):
            raise ValueError("told")
        if before is not None and before.startswith((tmp_path / "run" / "log.jsonl").read_bytes()):
            raise ValueError("nothing before the checkpoint was changed")  # what stands after its mark is cut off

    attack("logs", tmp_path / "run", "log.jsonl", resume, tmp_path, tries=200)
