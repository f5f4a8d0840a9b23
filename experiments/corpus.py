"""Training from scratch on one text: its own tokenizer, token shards that all runs share, and a run of which only numbers stay."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopwright.model.looped import LoopedForCausalLM
    from loopwright.train.recipe import Recipe
    from loopwright.train.state import Objects, Run

VOCABULARY = 8192


def texts(corpus: str, tokenizer: str, text: str = "train") -> tuple[str, ...]:
    """Returns the overrides that name a training text: the files of a corpus that are called so."""
    return (f"data.files={corpus}/{text}-*.jsonl.gz", f"data.valid_files={corpus}/valid.jsonl.gz", f"data.tokenizer={tokenizer}")


def make_tokenizer(corpus: str, folder: Path) -> None:
    """Trains a byte-pair tokenizer on the first training file, where there is none yet."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from loopwright.data.records import Files

    if folder.is_dir():
        return
    first = sorted(Path(corpus).glob("train-*.jsonl.gz"))[0]
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


@dataclass(frozen=True)
class Trained:
    """A run that has ended: how, its log of updates, how long it took, and the model of its best validation where asked for."""

    outcome: Run
    log: list[dict[str, Any]]
    seconds: float
    best: LoopedForCausalLM | None = None

    def taken(self, name: str) -> list[float]:
        """Returns a number of each update but those that were skipped, whose loss or gradient was not finite."""
        return [entry[name] for entry in self.log if not entry.get("skipped")]

    def losses(self, size: int = 20) -> list[float]:
        """Returns the training loss as means of `size` updates each."""
        found = self.taken("loss")
        return [round(sum(found[i : i + size]) / len(found[i : i + size]), 4) for i in range(0, len(found), size)]


def train_once(chosen: Recipe, shards: str, *, given: Objects | None = None, best: bool = False) -> Trained:
    """Trains a recipe on shared token shards, with objects in the place of its kinds; its folder is gone afterwards. `best`: the
    model of the best validation is kept too."""
    from loopwright.source import Source
    from loopwright.train.loop import train
    from loopwright.train.reporting.log import read_log

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        place.mkdir()
        (place / "data").symlink_to(Path(shards).absolute())  # tokenised once for all rows
        began = time.perf_counter()
        outcome = train(chosen, place, given=given)
        seconds = time.perf_counter() - began
        early = Source(place, checkpoint="best").model(device=outcome.model.device) if best else None
        return Trained(outcome, [entry for entry in read_log(outcome.folder.log) if "loss" in entry], seconds, early)
