"""Very short stories from a grammar, a word a token: text that a small model learns within a minute, without any download."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from loopwright.data.batch import Progress, Splits
from loopwright.data.tasks.task import EOS, PAD, PADDINGS, Alphabet, Matrix, Task, TaskRows, below
from loopwright.schema import check_choice

GIRLS, BOYS = ("Anna", "Lily", "Mia"), ("Ben", "Max", "Tom")
SLOTS: dict[str, tuple[str, ...]] = {
    "name": GIRLS + BOYS,
    "colour": ("blue", "green", "pink", "red", "white", "yellow"),
    "thing": ("ball", "boat", "book", "drum", "hat", "kite"),
    "place": ("beach", "farm", "forest", "garden", "lake", "park"),
    "animal": ("bear", "bird", "cat", "dog", "fox", "frog"),
}
OPENING = "Once upon a time there was a little {child} named {name} . {She} had a {colour} {thing} ."
JOURNEY = "One day {name} met a {animal} at the {place} ."
PLOTS = (
    "The {animal} took the {colour} {thing} and ran away . But soon the {animal} came back with the {thing} .",
    "Then {name} lost the {colour} {thing} . The {animal} looked and looked and found the {thing} under a tree .",
    "The {animal} was alone and sad . So {name} gave the {colour} {thing} to the {animal} .",
    "The {colour} {thing} fell into the water . The {animal} jumped in and brought the {thing} to {name} .",
)
ENDING = "{name} and the {animal} played with the {colour} {thing} all day . The end ."
WHO = {
    **{name: {"child": "girl", "She": "She"} for name in GIRLS},
    **{name: {"child": "boy", "She": "He"} for name in BOYS},
}


def tell(choices: dict[str, str], plot: int) -> str:
    """Returns one story; tokens stand between blanks."""
    return " ".join((OPENING, JOURNEY, PLOTS[plot], ENDING)).format(**choices, **WHO[choices["name"]])


def _words() -> list[str]:
    first = {name: values[0] for name, values in SLOTS.items()}
    stories = [tell(first | {"name": name}, plot) for name in (GIRLS[0], BOYS[0]) for plot in range(len(PLOTS))]
    return sorted({word for story in stories for word in story.split()} | {word for values in SLOTS.values() for word in values})


ALPHABET = Alphabet([*_words(), PAD, EOS], " ")


class Stories(Task):
    """A child, a thing and an animal, in four plots: `Once upon a time there was a little girl named Lily .` … `The end .`, EOS.

    Every token but the first is predicted. Who, what, where and which colour are drawn at the beginning and named again later on,
    so that a model must look back to tell the rest. No story is in two splits.

    Needed depth (`required_depth`): two, to find the name or the colour that stood behind an earlier word.
    """

    unit = "kind"
    alphabet = ALPHABET

    def __init__(self, *, train: int = 20_000, valid: int = 300, test: int = 1_000, seed: int = 0, padding: str = "masked") -> None:
        where = self.configure("stories", {"kinds": (1,)}, {"longer": ()}, test=test, valid=valid, train=train, seed=seed)
        self.padding = check_choice(where, "padding", padding, PADDINGS)

    def draw(self, group: int, bits: np.random.PCG64, count: int) -> Matrix:
        """Returns random stories as choices [count, slots], the plot last."""
        sizes = [*(len(values) for values in SLOTS.values()), len(PLOTS)]
        return np.stack([below(bits, size, count) for size in sizes], axis=1)

    def capacity(self, group: int, held: Matrix | None) -> int:
        """Returns how many stories there are."""
        return prod(len(values) for values in SLOTS.values()) * len(PLOTS) - (0 if held is None else len(held))

    def extent(self, group: int) -> int:
        """Returns the tokens of the longest story, EOS included; all words are one token, so that plots alone decide."""
        first = {name: values[0] for name, values in SLOTS.items()}
        return max(len(tell(first, plot).split()) for plot in range(len(PLOTS))) + 1

    def write(self, group: int, problems: Matrix, bits: np.random.PCG64, extent: int) -> TaskRows:
        """Returns the rows of choices."""
        ids, lengths = np.full((len(problems), extent), self.alphabet.pad_id), np.zeros(len(problems), dtype=np.int64)
        for row, chosen in enumerate(problems.tolist()):
            named = {name: values[i] for (name, values), i in zip(SLOTS.items(), chosen, strict=False)}
            story = [*self.alphabet.encode(tell(named, chosen[-1])), self.alphabet.eos_id]
            ids[row, : len(story)], lengths[row] = story, len(story)
        return TaskRows(ids, np.zeros_like(lengths), lengths, np.full(len(problems), 2))

    def splits(self, folder: Path | None = None, progress: Progress | None = None) -> Splits:
        """Returns the tables as running text: the loss of every token counts, and no row is right or wrong as a whole."""
        return replace(super().splits(folder, progress), exact=False, tokenizer=story_tokenizer())


def story_tokenizer() -> Any:
    """Returns the words as a transformers tokenizer: it reads and writes stories as people do, without blanks before full stops."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(ALPHABET.symbols)}))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()  # words and punctuation apart
    inner.decoder = decoders.WordPiece(prefix="##", cleanup=True)  # no blank before punctuation
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=PAD, eos_token=EOS)
