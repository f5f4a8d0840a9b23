"""Chat fine-tuning end to end, by stages; each one leaves out what is done already and goes on where it was stopped.

pack    GGUF CONFIG OUT    the 14 layers (4, 6, 4) of SmolLM2-135M-Instruct that are kept, in their own 4-bit blocks (61 MB)
chats   QUESTIONS TEST OUT GSM8K's files as JSON lines of messages
base    PACKED             the packed layers as a dense model: runs/sft/base
heal    TEXTS              the looped model of it, trained on text (train.jsonl.gz, valid.jsonl.gz): runs/sft/heal
chat    CHATS              the arms (chats.jsonl, chats-test.jsonl): runs/sft/NAME
measure CHATS OUT          rows by depth, and the table

python -m experiments.sft STAGE … [--runs runs/sft] [--change a.b=c …]
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import loopwright as lw
from experiments.sft.blocks import pack, unpack
from experiments.sft.tables import table
from experiments.side_by_side import as_line
from loopwright.recipes import recipe
from loopwright.train.recipe import Recipe

HERE = Path(__file__).parent
LAYERS = (*range(4), *range(20, 26), *range(26, 30))  # of 30: the first four, the last ten; the gap is dropped
DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
ARMS: dict[str, tuple[str, ...]] = {
    "fixed": ("depth={kind: fixed, depth: 4}", "penalties=[]"),
    "random": ("penalties=[]",),
    "stars": (),
}


def main() -> None:
    """Runs one stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=list(STAGES))
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/sft"))
    parser.add_argument("--only", default=",".join(ARMS), help="which arms, parted by commas")
    parser.add_argument("--rows", type=int, default=400, help="of the chats that are measured")
    parser.add_argument("--change", action="append", default=[], help="a.b=c, laid over the recipe of the stage")
    asked = parser.parse_args()
    STAGES[asked.stage](asked)


def packed(asked: argparse.Namespace) -> None:
    """Packs the layers that are kept."""
    source, config, out = asked.paths
    folder = pack(source, config, out, LAYERS)
    print(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()) / 2**20:.1f} MiB")


def chats(asked: argparse.Namespace) -> None:
    """Writes questions with answers as JSON lines of messages."""
    *sources, out = asked.paths
    out.mkdir(parents=True, exist_ok=True)
    for source, name in zip(sources, ("chats.jsonl", "chats-test.jsonl"), strict=True):
        with gzip.open(source, "rt") as file, (out / name).open("w") as made:
            for line in file:
                row = json.loads(line)
                turns = [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]
                made.write(json.dumps({"messages": turns}) + "\n")


def base(asked: argparse.Namespace) -> None:
    """Opens the packed layers."""
    print(unpack(asked.paths[0], asked.runs / "base"))


def heal(asked: argparse.Namespace) -> None:
    """Trains the looped model on text."""
    text = asked.paths[0]
    files = [f"data.files={text / 'train.jsonl.gz'}", f"data.valid_files={text / 'valid.jsonl.gz'}"]
    places = [f"model.source={asked.runs / 'base'}", f"data.tokenizer={asked.runs / 'base'}"]
    carry_out(recipe(str(HERE / "heal.yaml"), [*files, *places, *asked.change]), asked.runs / "heal")


def chat(asked: argparse.Namespace) -> None:
    """Trains the arms."""
    for name in asked.only.split(","):
        given = [*places(asked), f"model.source={asked.runs / 'heal'}", *ARMS[name], *asked.change]
        carry_out(recipe(str(HERE / "chat.yaml"), given), asked.runs / name)


def measure(asked: argparse.Namespace) -> None:
    """Writes loss and exact answers of the held-out chats by depth, a row for each model that is there."""
    out = asked.paths[1]
    out.mkdir(parents=True, exist_ok=True)
    data = recipe(str(HERE / "chat.yaml"), places(asked)).data
    rows = []
    for name in ("heal", *ARMS):
        folder = asked.runs / name
        if not (folder / "recipe.yaml").exists():
            continue
        report: Any = lw.evaluate(folder, depths=DEPTHS, data=data, splits="valid", rows=asked.rows, batch=8)["valid"]
        log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        updates = [row for row in log if "seconds" in row]
        rows.append({
            "name": name, "depth": report.depth, "loss": report.loss, "exact": report.exact, "rows": report.rows,
            "updates": len(updates), **{key: sum(row[key] for row in updates) for key in ("tokens", "seconds")},
            "radius": next((row["radius"]["radius_mean"] for row in reversed(log) if "radius" in row), None),
        })  # fmt: skip
    (out / "rows.jsonl").write_text("".join(as_line(row) + "\n" for row in rows))
    (out / "table.md").write_text(table(rows))
    print(table(rows))


def places(asked: argparse.Namespace) -> list[str]:
    """Returns where the chats and their tokenizer are, as changes to a recipe."""
    folder = asked.paths[0]
    files = {"files": folder / "chats.jsonl", "valid_files": folder / "chats-test.jsonl", "tokenizer": asked.runs / "base"}
    return [f"data.{name}={path}" for name, path in files.items()]


def carry_out(chosen: Recipe, folder: Path) -> None:
    """Trains a recipe, or goes on with it; nothing is done where it has ended."""
    begun = (folder / "recipe.yaml").exists()
    run = lw.train(chosen, out=folder, resume=begun)
    if not run.finished:
        raise SystemExit(f"{folder}: stopped after {run.progress.update} updates; run it again to go on")


STAGES = {"pack": packed, "chats": chats, "base": base, "heal": heal, "chat": chat, "measure": measure}


if __name__ == "__main__":
    main()
