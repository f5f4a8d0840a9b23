"""Packs what the runs of an item need and a checkout does not have: text, tokenizer, questions, weights."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from experiments.corpus import held_out_files, make_tokenizer
from experiments.elsewhere.plan import TEXT
from experiments.sft.parts import split

QUESTIONS = "gsm8k_test.jsonl.gz"


@dataclass(frozen=True)
class Sources:
    """Where things lie here: CORPUS with train-*.jsonl.gz and the held-out texts, the folder of GSM8K, a GGUF file or the package
    that holds one, and the folder of its config and tokenizer."""

    corpus: Path
    eval: Path | None = None
    gguf: str | None = None
    config: Path | None = None


def pack(needs: str, sources: Sources, folder: Path, most: int) -> list[Path]:
    """Makes the folder, in parts of at most so many bytes, and returns the parts."""
    with tempfile.TemporaryDirectory() as place:
        gather(needs, sources, Path(place))
        return split(Path(place), folder, most)


def gather(needs: str, sources: Sources, place: Path) -> None:
    """Puts all files of a pack into a folder."""
    train = sorted(sources.corpus.glob("train-*.jsonl.gz"))
    corpus = place / "corpus"
    corpus.mkdir()
    for path in [*train, *held_out_files(sources.corpus).values()]:
        shutil.copyfile(path, corpus / path.name)
    if needs == TEXT:
        if sources.eval is None:
            raise ValueError("pack: no --eval; give the folder of gsm8k_test.jsonl.gz")
        make_tokenizer(str(sources.corpus), place / "bpe")
        (place / "eval").mkdir()
        shutil.copyfile(sources.eval / QUESTIONS, place / "eval" / QUESTIONS)
    else:
        from experiments.sft.blocks import pack as pack_layers
        from experiments.sft.plan import LAYERS

        if sources.gguf is None or sources.config is None:
            raise ValueError("pack: no --gguf or no --config; give the GGUF file of SmolLM2-135M-Instruct and its config's folder")
        pack_layers(sources.gguf, sources.config, place / "packed", LAYERS)
