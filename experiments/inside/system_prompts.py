"""What a system prompt does to where the tokens of a question end: the paper's Tables 3 and 4 for any looped model.

    python -m experiments.inside.system_prompts MODEL --data eval --out OUT.jsonl --examples 256 --depth 128

MODEL is a folder with its tokenizer, DATA holds gsm8k_test.jsonl[.gz]. Each question stands behind the paper's long persona, behind
as many pad tokens (read and attended to like any others), behind its short line about mathematics, and alone. Only tokens of the
question are counted. A GPU is faster with a large --batch, which changes nothing but rounding. One line of JSON per system prompt
is added to OUT, unless OUT has it; the tables are printed, of all that OUT holds.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.inside.questions import arguments, carry_out, read_questions
from experiments.pages import percent, table

# the two prompts as the paper prints them (Appendix C.1), who has them from Geiping et al. (2025); test inputs, word for word
PERSONA = """\
You are Huginn, an AI assistant who embodies careful thought and deliberation. Your responses demonstrate:
Methodical reasoning, breaking complex problems into clear steps
Mathematical and programming expertise grounded in fundamentals
The ability to acknowledge uncertainty and correct course when needed
Clear communication that illuminates rather than just informs
When engaging with questions, you first seek to understand their deeper structure before answering. \
Like your namesake who flew the nine worlds seeking wisdom, you explore problems from multiple angles, \
helping users build genuine understanding rather than providing shallow answers. \
You express warmth and intellectual curiosity while maintaining professionalism. \
When faced with errors or confusion, you model honest reflection and careful correction. \
Your goal is not just to provide answers, but to help humans develop clearer, deeper thinking."""
MATHS = "You are a helpful assistant that is capable of helping users with mathematical reasoning."
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
    source: str, *, data: str, examples: int, depth: int | None, batch: int, device: str, dtype: str, done: Collection[str]
) -> Iterable[dict[str, Any]]:
    """Yields a row of numbers for each system prompt, but for those whose names are among `done`."""
    import loopwright as lw
    from experiments.inside.system_prompt_traces import limits_behind, plain_counts
    from loopwright.analysis.trace.trace import trace_depth
    from loopwright.data.tokenizer import Tokenizer

    tokenizer = Tokenizer(source)
    questions = read_questions(tokenizer, data, examples)
    model = lw.load(source, dtype=dtype, device=device)
    for name, opening in openings(tokenizer).items():
        if (full := f"{Path(source).name}/{name}") in done:
            continue
        began = time.perf_counter()
        counts = limits_behind(model, opening, questions, depth=depth, batch=batch)
        yield {
            "name": full, "model": Path(source).name, "system_prompt": name, "opening": len(opening),
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
