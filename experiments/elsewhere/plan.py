"""What is still to be run, by item: its commands, what they need, and how long they are expected to take on one H200."""

from __future__ import annotations

from dataclasses import dataclass

TEXT = "text"  # what is packed: the corpus and its tokenizer


@dataclass(frozen=True)
class Command:
    """One program. In its words {place} is the folder of what was packed, {rows} its file of rows and {seconds} the time left."""

    words: str
    rows: str = ""  # the file that new rows come back in; none where the program only prints
    start: str = ""  # the rows so far, under experiments/results: runs that are in it are left out


@dataclass(frozen=True)
class Item:
    """Steps one after the other, each with commands side by side."""

    about: str
    seconds: int  # opening what was packed counts, starting the machine does not
    steps: tuple[tuple[Command, ...], ...]
    needs: str = ""  # what is packed for it; nothing: a checkout is enough
    folder: str = ""  # a folder of {place} that comes back as FOLDER.tar.gz


CORPUS = "--corpus {place}/corpus --tokenizer {place}/bpe"
RUN = "{rows} --seconds {seconds}"
LONG = f"{RUN} --unfinished {{place}}/unfinished"  # a training takes minutes: the next call on the same {place} goes on with it


def repeats(workers: int, only: str, seeds: str) -> Command:
    """Returns runs of experiments.repeats whose names hold one of these words."""
    words = f"-m experiments.repeats.run {LONG} {CORPUS} --shards {{place}}/shards --workers {workers}"
    return Command(f"{words} --only '{only}' --seeds {seeds}", "repeats", "repeats/runs.jsonl")


ITEMS: dict[str, Item] = {
    "whole-text": Item(
        "four arms of width 256 on all of the text, read four times, seed 1 (4 runs)", 330,
        ((repeats(4, "all of the text", "1"),),), TEXT,
    ),
}  # fmt: skip
