"""Training from scratch on one text: its own tokenizer, and token shards that all runs share."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopwright.evaluation.text import Passages

VOCABULARY = 8192
OPTIONS: dict[str, dict[str, Any]] = {"--corpus": {"required": True}, "--tokenizer": {"default": "runs/bpe"}}  # of a study
HELD_OUT = {"valid": "valid.jsonl.gz", "test": "test.jsonl.gz", "ood": "heldout_ood.jsonl.gz"}
PASSAGES = "held-out.pickle"  # of our own making, beside the shards: tokenised once for all rows


def texts(corpus: str, tokenizer: str, text: str = "train") -> tuple[str, ...]:
    """Returns the overrides that name a training text: the files of a corpus that are called so."""
    return (f"data.files={corpus}/{text}-*.jsonl.gz", f"data.valid_files={corpus}/valid.jsonl.gz", f"data.tokenizer={tokenizer}")


def training_files(corpus: str, text: str = "train") -> list[Path]:
    """Returns the files that `texts` names."""
    return sorted(Path(corpus).glob(f"{text}-*.jsonl.gz"))


def make_tokenizer(corpus: str, folder: Path) -> None:
    """Trains a byte-pair tokenizer on the first training file, where there is none yet."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from loopwright.data.records import Files

    if folder.is_dir():
        return
    first = training_files(corpus)[0]
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<end>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    own.train_from_iterator((record["text"] for _, record in Files(str(first), field="text")), trainer)
    PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<end>").save_pretrained(folder)


def prepare(data: dict[str, Any], shards: str) -> None:
    """Makes the token shards of a recipe's data before runs share them; what is there is not made again."""
    from loopwright.data.build import build_data

    Path(shards).mkdir(parents=True, exist_ok=True)
    print(f"training text: {build_data(data, Path(shards)).notes}", flush=True)


def held_out_files(corpus: str | Path) -> dict[str, Path]:
    """Returns the held-out texts of a corpus by name."""
    return {name: Path(corpus) / file for name, file in HELD_OUT.items()}


def prepare_passages(files: Mapping[str, Path], tokenizer: str, context: int, place: Path) -> None:
    """Tokenises held-out texts for all rows, where that has not been done."""
    from loopwright.data.tokenizer import Tokenizer
    from loopwright.evaluation.text import read_passages

    if not place.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        own = Tokenizer(tokenizer)
        made = place.with_suffix(f".{os.getpid()}")  # several programs may begin at once: what is there is whole
        made.write_bytes(pickle.dumps({name: read_passages(name, file, own, context) for name, file in files.items()}))
        made.rename(place)


def passages(shards: str | Path, count: int) -> dict[str, Passages]:
    """Returns so many passages of each held-out text, as `prepare_passages` left them."""
    return {name: each.drawn(count) for name, each in pickle.loads((Path(shards) / PASSAGES).read_bytes()).items()}
