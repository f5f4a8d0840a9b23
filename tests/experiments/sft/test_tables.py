"""The page of the study: what is decided over documents and seeds, beyond the trained depth and between arms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.sft.plan import DEPTHS
from experiments.sft.tables import PAGE, draw, read
from experiments.side_by_side import compared
from tests.experiments.results import hard, held_out


def row(label: str, seed: int, beyond: float, above: float = 0.0) -> dict[str, Any]:
    """A run that loses `beyond` nats for every step after the fourth, and a little of its own by seed."""
    looped = not label.startswith("unlooped")
    losses = {depth: hard() + above + 0.001 * seed + beyond * max(depth - 4, 0) * (1 + 0.1 * seed) for depth in DEPTHS}
    texts = {text: held_out(text, losses if looped else {1: losses[1]}) for text in ("chats", "text")}
    depths = [1, 2, 4, 8, 16] if looped else [1]
    return {
        "name": f"{label}/{seed}", "label": label, "seed": seed, "updates": 2, "tokens": 10, "flops": 10**15, "train_seconds": 1.0,
        "radius": {depth: {"radius_mean": 0.5} for depth in ("4", "16")} if looped else {}, "texts": texts,
        "results": [0.5] * len(texts["chats"]["depth"]),
        "answers": {"questions": 10, "depth": depths, "right": [1] * len(depths)},
    }  # fmt: skip


def page(path: Path) -> str:
    return PAGE.text([run for runs in read(path).values() for run in runs], "experiments.sft tables")


def test_depth_that_hurts_one_arm_alone_is_decided_and_said(tmp_path: Path) -> None:
    rows = [row("heal", 0, 0.02), row("unlooped", 0, 0.0, 0.1)]
    rows += [row(label, seed, beyond) for seed in range(3) for label, beyond in (("fixed", 0.02), ("random", 0.0), ("stars", 0.0))]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    lines = page(tmp_path / "rows.jsonl").splitlines()
    once = "the 14 layers unlooped, equal tokens"
    starts = {
        "| chats, depth 4, at depth 16 | itself at depth 4 | chats | 16, 4 | +0.2640 (+0.2640 to +0.2640)": "higher",
        "| chats, random depth, at depth 16 | itself at depth 4 | chats | 16, 4 | +0.0000 (+0.0000 to +0.0000)": "not resolved",
        "| chats, random depth | chats, depth 4 | chats | 16 | −0.2640 (−0.2640 to −0.2640)": "lower",
        f"| looped (4, 6, 4), text alone, at depth 4 | {once} | chats | 4, 1 | −0.1000": "lower, one seed",
    }
    for start, verdict in starts.items():
        (line,) = [line for line in lines if line.startswith(start)]
        assert line.endswith(f"| {verdict} |")
    assert [line for line in lines if line.startswith("| chats, depth 4 | 0, 1, 2 |") and "| 1 of 10 |" in line]


@pytest.mark.usefixtures("unlaid")
def test_rows_that_keep_single_losses_where_they_are_compared_say_the_same(tmp_path: Path) -> None:
    rows = [row("heal", 0, 0.02), *(row(label, seed, 0.01) for label in ("fixed", "random") for seed in range(2))]
    thin = [each | {"texts": {name: compared(held, (4, 8, 16)) for name, held in each["texts"].items()}} for each in rows]
    said = []
    for name, found in (("rows", rows), ("thin", thin)):
        (tmp_path / name).write_text("".join(json.dumps(each) + "\n" for each in found))
        said.append((page(tmp_path / name), draw(read(tmp_path / name))["by-depth"]))
    assert said[0] == said[1] and "–" in said[0][0]
