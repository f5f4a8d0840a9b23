"""Whose orbit is it? How often the tokens of a question come to no rest, by where they stand and by which token stands first.

    python -m experiments.inside.first_token MODEL --data eval --out OUT.jsonl --examples 64 --depth 128

MODEL is a folder with its tokenizer, DATA holds gsm8k_test.jsonl[.gz]. The same questions are run as they are, behind a newline,
and with another first token. Counted in each are the same tokens: those of the question from its second on. One line of JSON per
way is added to OUT; the tables are printed, of all that OUT holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.inside.questions import arguments, carry_out, read_questions
from experiments.pages import number, percent, table

EDGES = (1, 4, 16, 64, None)  # of positions in the question, the first token being 0
HEAD = ("model", "questions", "tokens", "no fixed point", "the first token itself", "turns per step")


def ways(word: Callable[[str], int]) -> dict[str, Callable[[Sequence[int]], list[int]]]:
    """Returns what is done to a question, by name; `word` gives the token of a word."""
    return {
        "as they are": list,
        "behind a newline": lambda question: [word("\n"), *question],
        "“The” for the first token": lambda question: [word("The"), *question[1:]],
        "“E” for the first token": lambda question: [word("E"), *question[1:]],
    }


def counted(labels: Sequence[Any], orbits: Sequence[Any], single: Sequence[bool]) -> dict[str, Any]:
    """Returns the shares of tokens at no fixed point: of labels per question, from its second token on; by position, and by
    whether the first is a single letter."""
    import torch

    from loopwright.metrics.limits import FIXED_POINT

    def share(of: Iterable[Any]) -> float | None:
        parts = list(of)
        moving = torch.cat(parts) != FIXED_POINT if parts else torch.zeros(0)
        return moving.double().mean().item() if len(moving) else None

    turns = torch.cat(list(orbits))
    return {
        "questions": len(labels), "tokens": sum(len(each) - 1 for each in labels), "moving": share(each[1:] for each in labels),
        "first": share(each[:1] for each in labels), "turns": turns.median().item() if len(turns) else None,
        "by_position": [[a, b, share(each[a:b] for each in labels)] for a, b in pairwise(EDGES)],
        "letter_first": [sum(single), share(each[1:] for each, so in zip(labels, single, strict=True) if so)],
        "other_first": [len(single) - sum(single), share(each[1:] for each, so in zip(labels, single, strict=True) if not so)],
    }  # fmt: skip


def measured(
    source: str, *, data: str, examples: int, depth: int | None, batch: int, device: str, done: Collection[str]
) -> Iterable[dict[str, Any]]:
    """Yields a row of numbers for each way, but for those whose names are among `done`."""
    import loopwright as lw
    from experiments.inside.system_prompt_traces import settled
    from loopwright.analysis.trace.trace import trace_depth
    from loopwright.data.tokenizer import Tokenizer
    from loopwright.metrics.limits import LIMITS

    tokenizer = Tokenizer(source)
    model = lw.load(source, dtype="float32", device=device)
    questions = read_questions(tokenizer, data, examples)
    if tokenizer.opening:
        raise ValueError(f"{source}: its tokenizer begins every text with token {tokenizer.opening[0]}; allowed: one that does not")
    for name, changed in ways(lambda word: tokenizer.encode([word])[0][0]).items():
        if (full := f"{Path(source).name}/{name}") in done:
            continue
        rows = [changed(question) for question in questions]
        labels, orbits = [], []
        for limits, valid in settled(model, rows, depth=depth, batch=batch):
            for each, turns, real in zip(limits.label[-1], limits.frequency[-1], valid, strict=True):
                before = int(real.sum()) - len(questions[len(labels)])  # tokens that stand before the question
                kept, turns = each[real][before:], turns[real][before:]
                labels.append(kept)
                orbits.append(turns[1:][kept[1:] == LIMITS.index("orbit")])
        firsts = [tokenizer.decode(row[:1]) for row in rows]
        steps = trace_depth(model.config, depth)
        about = {"name": full, "model": Path(source).name, "way": name, "depth": steps}
        yield about | counted(labels, orbits, [len(first) == 1 and first.isupper() for first in firsts])


def tables(found: Sequence[Mapping[str, Any]]) -> str:
    """Returns how often tokens come to no rest in each way, and where in the questions as they are, as Markdown."""
    whole = [
        (row["model"], row["way"], f"{row['tokens']:,}", percent(row["moving"], 2), percent(row["first"]), number(row["turns"]))
        for row in found
    ]
    parts = ["## Which token stands first", table(HEAD, whole)]
    for row in (row for row in found if row["way"] == "as they are"):
        lines = [(f"{a} to {'the end' if b is None else b - 1}", percent(share)) for a, b, share in row["by_position"]]
        lines += [(f"all, of {row[key][0]} questions that begin with {said}", percent(row[key][1]))
                  for key, said in (("letter_first", "a single capital letter"), ("other_first", "a longer token"))]  # fmt: skip
        parts += [f"{row['model']}, {row['questions']} questions as they are, {row['depth']} steps:",
                  table(("tokens of the question, from 0", "no fixed point"), lines)]  # fmt: skip
    return "\n\n".join(parts)


def main() -> None:
    """Reads the command line, measures, and prints the tables."""
    carry_out(arguments(__doc__, examples=64).parse_args(), measured, tables)


if __name__ == "__main__":
    main()
