"""What a system prompt does to where the tokens of a question end: the paper's Tables 3 and 4 for any looped model.

    python -m experiments.inside.system_prompts MODEL --data eval --out OUT.jsonl --examples 256 --depth 128

MODEL is a folder with its tokenizer, DATA holds gsm8k_test.jsonl[.gz]. Each question stands behind a long persona, behind as many
pad tokens (read and attended to like any others), behind a short line about mathematics, and alone. Only tokens of the question are
counted. One line of JSON per system prompt is added to OUT; the tables are printed, of all that OUT holds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.pages import last_of_each, percent, table

PERSONA = (
    "You are Corvina, an old and patient tutor who lives in a lighthouse and answers letters from students. "
    "You read each question twice before you touch your pen. You write down what is known and what is asked, you take one small "
    "step after another, and you say why each step may be taken. Where you are unsure you say so, and where you were wrong you "
    "go back and mend it without shame. You like numbers, tides and good tools. You never hurry, you never boast, and you end "
    "every letter with the answer on a line of its own, so that nobody has to search for it."
)
MATHS = "You solve word problems in arithmetic, step by step."
BETWEEN = "\n\n"  # ends a system prompt
HEAD = ("model", "system prompt", "tokens of it", "no fixed point", "orbit", "slider", "unknown")


def openings(tokenizer: Any) -> dict[str, list[int]]:
    """Returns the tokens that stand before a question under each system prompt, with what the tokenizer opens any text with."""
    begin = list(tokenizer.opening)
    persona, maths = tokenizer.encode([PERSONA + BETWEEN, MATHS + BETWEEN])
    return {
        "long persona": begin + persona,
        "long persona, padded": begin + [tokenizer.pad_id] * len(persona),
        "short maths": begin + maths,
        "none": begin,
    }


def measured(
    source: str, *, data: str, examples: int, depth: int | None, batch: int, device: str, dtype: str
) -> Iterable[dict[str, Any]]:
    """Yields a row of numbers for each system prompt."""
    import loopwright as lw
    from loopwright.analysis.openings import limits_behind, plain_counts
    from loopwright.analysis.prompts import read_prompts
    from loopwright.analysis.trace import trace_depth
    from loopwright.data.tokenizer import Tokenizer

    tokenizer = Tokenizer(source)
    questions = tokenizer.encode([str(prompt) for prompt in read_prompts("gsm8k", data=data, examples=examples)])
    questions.sort(key=len)  # neighbours need little padding; no number depends on the order
    model = lw.load(source, dtype=dtype, device=device)
    for name, opening in openings(tokenizer).items():
        began = time.perf_counter()
        counts = limits_behind(model, opening, questions, depth=depth, batch=batch)
        yield {
            "name": f"{Path(source).name}/{name}", "model": Path(source).name, "system_prompt": name, "opening": len(opening),
            "depth": trace_depth(model, depth), "dtype": dtype, **plain_counts(counts), "seconds": time.perf_counter() - began,
        }  # fmt: skip


def tables(found: list[Mapping[str, Any]]) -> str:
    """Returns both tables as Markdown: shares of tokens, and of examples that do it on some token of the question."""
    parts = []
    for title, key in (
        ("System prompts: tokens", "tokens"),
        ("System prompts: examples, on any token of the question", "examples"),
    ):
        lines = []
        for row in found:
            shares = (row[f"moving_{key}"], *row[key][1:])
            lines.append((row["model"], row["system_prompt"], str(row["opening"]), *(percent(share, 2) for share in shares)))
        counted = sorted({f"{row[f'all_{key}']:,} {key}, {row['depth']} steps" for row in found})
        parts += [
            f"## {title}",
            "Counted: " + "; ".join(counted) + ".",
            table(HEAD, lines),
        ]
    return "\n\n".join(parts)


def main() -> None:
    """Reads the command line, measures what is not there yet, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", help="folders; none: only the tables of what OUT holds")
    parser.add_argument("--data", help="the folder of gsm8k_test.jsonl or .jsonl.gz")
    parser.add_argument("--out", required=True, help="JSON lines; results are added")
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--depth", type=int, help="left out: 128, or as many steps as the model has")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in ("data", "examples", "depth", "batch", "device", "dtype")}
    path = Path(options.out)
    for source in options.model:
        for row in measured(source, **given):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{row['seconds']:6.1f} s  {row['name']}", file=sys.stderr, flush=True)
    if path.is_file():
        print(tables(list(last_of_each(path).values())))


if __name__ == "__main__":
    main()
