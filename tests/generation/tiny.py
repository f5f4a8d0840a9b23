"""A tokenizer and saved models small enough to make in a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.cases import noisy

WORDS = ("the", "a", "cat", "dog", "ring", "wheel", "sat", "ran", "turned", "again", "and", "then", "once", "more", "until")
STORIES = Path(__file__).parents[2].parent / "shared" / "data" / "models" / "stories260K"

# what makes the tiny Ouroboros preset a dense model of six layers
DENSE = {
    "core_layers": 0, "coda_layers": 0, "prelude_layers": 6, "gate": {"kind": "none"}, "end_norm": "never", "max_steps": None,
    "adapters": [], "beyond_max_steps": "refuse",
}  # fmt: skip


def word_tokenizer(*, chat: bool = False) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of whole words, 96 of them, the vocabulary of the tiny presets."""
    words = ["<unk>", "<end>", *WORDS]
    vocabulary = {word: i for i, word in enumerate([*words, *(f"w{i}" for i in range(96 - len(words)))])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="<end>")
    if chat:
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} again {% endfor %}then"
    return tokenizer


def few_words() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of one word and an end, which has no token for anything else."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"the": 0, "<end>": 1})), eos_token="<end>")


def save_model(folder: Path, name: str = "huginn-tiny", *, chat: bool = False, **changes: Any) -> Path:
    """Writes a tiny model and its tokenizer into a folder and returns it."""
    noisy(name, **changes).save_pretrained(folder)
    word_tokenizer(chat=chat).save_pretrained(folder)
    return folder


def letter_tokenizer() -> Any:
    """Returns a tokenizer of the 95 printable ASCII letters and an end token, as many as the tiny presets know."""
    return byte_tokenizer([*map(chr, range(33, 127)), "Ġ"])


def byte_tokenizer(letters: list[str] | None = None) -> Any:
    """Returns a tokenizer of single bytes, so that letters are split."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet()) if letters is None else letters
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    inner = Tokenizer(models.BPE(vocabulary, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    tokenizer.add_special_tokens({"eos_token": "<end>"})
    return tokenizer
