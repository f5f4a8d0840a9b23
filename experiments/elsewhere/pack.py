"""Packs what runs on text need and a checkout does not have: text and tokenizer."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from experiments.corpus import held_out_files, make_tokenizer
from experiments.sft.parts import split


def pack(source: Path, folder: Path, most: int) -> list[Path]:
    """Makes the folder, in parts of at most so many bytes, and returns the parts."""
    with tempfile.TemporaryDirectory() as place:
        gather(source, Path(place))
        return split(Path(place), folder, most)


def gather(source: Path, place: Path) -> None:
    """Puts all files of a pack into a folder: of the source train-*.jsonl.gz and the held-out texts."""
    train = sorted(source.glob("train-*.jsonl.gz"))
    corpus = place / "corpus"
    corpus.mkdir()
    for path in [*train, *held_out_files(source).values()]:
        shutil.copyfile(path, corpus / path.name)
    make_tokenizer(str(source), place / "bpe")
