"""What is still to be run, by item: its commands, what they need, and how long they are expected to take on one H200."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.inside.train_plan import Row

TEXT = "text"  # what is packed: the corpus, its tokenizer and the questions of GSM8K


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


RUN = "{rows} --seconds {seconds}"
FIRST = 5  # training files that the models of experiments.inside were trained on


AGAIN = (Row("sandwich", 12, True, 2), Row("sandwich", 8, True, 1), Row("sandwich", 8, True, 2))
OURO = Row("ouro", 8, slow=True)


def inside(workers: int, only: str, rows: str, start: str = "") -> Command:
    """Returns trainings of experiments.inside, whose models are kept."""
    kept = ",".join(row.folder for row in (*AGAIN, OURO))
    text = "--corpus {place}/first --tokenizer {place}/bpe --shards {place}/first-shards"
    given = f"--keep {{place}}/models --kept {kept} --change graph=true --change data.apart=false --workers {workers}"
    return Command(f"-m experiments.inside.train_run {RUN} {text} {given} --only '{only}'", rows, start)


def looks() -> tuple[Command, ...]:
    """Returns what is measured of these models: system prompts, and of the one that has none yet first tokens."""
    given = "--data {place}/eval --device cuda --batch 64 --out {rows}"
    made = [(row, "system_prompts", "system") for row in (*AGAIN, OURO)]
    made.append((OURO, "first_token", "first-token"))
    return tuple(Command(f"-m experiments.inside.{module} {{place}}/models/{row.folder} {given}", out) for row, module, out in made)


ITEMS: dict[str, Item] = {
    "hops": Item(
        "swaps with three seeds and at other rates, fewer layers with more updates (28 runs)", 470,
        ((Command(f"-m experiments.hops.run {RUN} --groups longer,chain,chain_rates --tables {{place}}/tables --workers 12",
                  "hops", "hops/runs.jsonl"),),),
    ),
    "inside": Item(
        "Ouro's norms at a lower rate, and the system prompts that are missing of three models trained again (4 runs)", 240,
        (
            (inside(3, "|".join(row.name for row in AGAIN), "again"), inside(1, OURO.name, "like", "inside/like.jsonl")),
            looks(),
        ), TEXT,
    ),
    "norms": Item(
        "Huginn's norms with two more seeds, and without a loop: 8, 12 and 20 layers (11 runs)", 200,
        ((inside(11, "huginn-", "like", "inside/like.jsonl"),),), TEXT,
    ),
}  # fmt: skip
