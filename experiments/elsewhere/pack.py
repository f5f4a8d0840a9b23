"""Packs what runs on text need and a checkout does not have: text, tokenizer, questions."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from experiments.corpus import held_out_files, make_tokenizer
from experiments.sft.parts import split

QUESTIONS = "gsm8k_test.jsonl.gz"


@dataclass(frozen=True)
class Sources:
    """Where things lie here: CORPUS with train-*.jsonl.gz and the held-out texts, and the folder of GSM8K."""

    corpus: Path
    eval: Path


def pack(sources: Sources, folder: Path, most: int) -> list[Path]:
    """Makes the folder, in parts of at most so many bytes, and returns the parts."""
    with tempfile.TemporaryDirectory() as place:
        gather(sources, Path(place))
        return split(Path(place), folder, most)


def gather(sources: Sources, place: Path) -> None:
    """Puts all files of a pack into a folder."""
    train = sorted(sources.corpus.glob("train-*.jsonl.gz"))
    corpus = place / "corpus"
    corpus.mkdir()
    for path in [*train, *held_out_files(sources.corpus).values()]:
        shutil.copyfile(path, corpus / path.name)
    make_tokenizer(str(sources.corpus), place / "bpe")
    (place / "eval").mkdir()
    shutil.copyfile(sources.eval / QUESTIONS, place / "eval" / QUESTIONS)
