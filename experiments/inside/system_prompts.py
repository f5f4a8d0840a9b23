"""What a system prompt does to where the tokens of a question end: the paper's Tables 3 and 4 for any looped model.

    python -m experiments.inside.system_prompts MODEL --data eval --out OUT.jsonl --examples 256 --depth 128

MODEL is a folder with its tokenizer, DATA holds gsm8k_test.jsonl[.gz]. Each question stands behind a long persona, behind as many
pad tokens (read and attended to like any others), behind a short line about mathematics, and alone. Only tokens of the question are
counted. One line of JSON per system prompt is added to OUT; the tables are printed, of all that OUT holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.inside.questions import arguments, carry_out, read_questions
from experiments.pages import percent, table

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
    from experiments.inside.system_prompt_traces import limits_behind, plain_counts
    from loopwright.analysis.trace.trace import trace_depth
    from loopwright.data.tokenizer import Tokenizer

    tokenizer = Tokenizer(source)
    questions = read_questions(tokenizer, data, examples)
    model = lw.load(source, dtype=dtype, device=device)
    for name, opening in openings(tokenizer).items():
        began = time.perf_counter()
        counts = limits_behind(model, opening, questions, depth=depth, batch=batch)
        yield {
            "name": f"{Path(source).name}/{name}", "model": Path(source).name, "system_prompt": name, "opening": len(opening),
            "depth": trace_depth(model.config, depth), "dtype": dtype, **plain_counts(counts),
            "seconds": time.perf_counter() - began,
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
    """Reads the command line, measures, and prints the tables."""
    parser = arguments(__doc__, examples=256)
    parser.add_argument("--dtype", default="float32")
    carry_out(parser.parse_args(), measured, tables)


if __name__ == "__main__":
    main()
