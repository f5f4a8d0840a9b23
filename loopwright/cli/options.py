"""Options that several verbs share or that take several lines to describe: what a number must be, which names a shell completes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

COMMAND: list[str] = []  # the words of the command line that runs: cards show them


def whole(value: int | None) -> int | None:
    """Returns the value of an option; one beyond 32 bits is refused, since no size is that large."""
    if value is not None and abs(value) >= 2**31:
        raise typer.BadParameter(f"{value} has more than 32 bits")
    return value


def seed_of(value: int | None) -> int | None:
    """Returns a seed that torch's generators take; a negative one would stand for another seed."""
    if value is not None and not 0 <= value < 2**63:
        raise typer.BadParameter(f"a seed must be >= 0 and < 2**63 (got {value})")
    return value


def with_json(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a verb that prints for people, or with `as_json` what it returns as JSON, and nothing else on stdout."""

    @wraps(verb)
    def run(*words: Any, as_json: bool = False, **options: Any) -> Any:
        from loopwright.cli.console import show

        return show(lambda: verb(*words, **options), as_json)

    return run


def draft_of(value: str | None) -> int | str | None:
    """Returns a draft depth: a whole number, or "auto"."""
    if value is None or value == "auto":
        return value
    if not value.isdecimal() or int(value) < 1:
        raise typer.BadParameter(f"a draft depth must be 'auto' or a whole number >= 1 (got {value!r})")
    return int(value)


def bring(names: list[str] | None) -> list[str] | None:
    """Executes the files that the user names, before anything is opened, and returns the names."""
    if names:
        from loopwright.registry import import_file

        for name in names:
            import_file(name)
    return names


def preset_names(incomplete: str) -> list[str]:
    """Returns the presets that begin so, for a shell that completes a word. Where none does, shells offer files."""
    from loopwright.model.presets import PRESETS

    return [name for plain in PRESETS for name in (plain, f"{plain}-tiny") if name.startswith(incomplete)]


def recipe_names(incomplete: str) -> list[str]:
    """Returns the shipped recipes that begin so."""
    from loopwright.recipes import names

    return [name for name in names() if name.startswith(incomplete)]


Changes = Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Changes to the config.")]
RowTokens = Annotated[int | None, typer.Option(callback=whole, help="Tokens per row. Default: 2048, or the model's most.")]
Folder = Annotated[str, typer.Argument(metavar="MODEL", help="A model's folder or a hub id (owner/name), with its tokenizer.")]
Words = Annotated[str | None, typer.Option(metavar="PATH", help="A tokenizer's folder or hub id. Default: the model's own.")]
Import = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="FILE", callback=bring, help="First execute this Python file with parts of yours; repeatable."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables, and nothing else, on stdout.")]
Depth = Annotated[
    int | None, typer.Option(callback=whole, help="Number of steps: how often the core runs. Default: the model's own.")
]
Device = Annotated[str, typer.Option(help="Where to run: cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str, typer.Option(help="float32 (fp32), bfloat16 (bf16), float16 (fp16) or float64.")]
StateSeed = Annotated[
    int | None, typer.Option(callback=seed_of, help="Of the initial state, in models that start from noise (Huginn).")
]
Temperature = Annotated[
    float | None, typer.Option(help="Sample at this temperature. 0: greedy. Default: generation_config.json's, or greedy.")
]
TopP = Annotated[float | None, typer.Option(help="Sample from the likeliest tokens that together reach this probability.")]
TopK = Annotated[int | None, typer.Option(callback=whole, help="Sample from this many likeliest tokens.")]
MinP = Annotated[float | None, typer.Option(help="Drop tokens below this share of the likeliest one's probability.")]
Seed = Annotated[int | None, typer.Option(callback=seed_of, help="Seed of the sampling.")]
Exit = Annotated[
    str | None,
    typer.Option(
        help="Let tokens leave the loop early: gate, act, change, divergence, entropy or stable, or Huginn's kl, minp-kl, "
        "entropy-diff, argmax-stability or cosine, as KIND:NUMBER."
    ),
]
Exits = Annotated[
    list[str] | None,
    typer.Option(
        "--exit",
        metavar="RULE[:LIMIT]",
        help="Early exit by this rule: loss by mean steps, without running it; repeatable; or all.",
    ),
]
Measured = Annotated[
    str | None, typer.Option(help="1:64, 1,2,4 or 1:1000:log. Default: to 16 times the trained median; texts, tasks: its own.")
]
Texts = Annotated[
    list[str] | None, typer.Option(metavar="[NAME=]FILE", help="Held-out loss of this text (.jsonl, .txt, .gz); repeatable.")
]
Context = Annotated[
    int | None, typer.Option(callback=whole, help="With --text: tokens in a passage. Default: 512, or what the model has.")
]
Rows = Annotated[
    int | None, typer.Option(callback=whole, help="The first N rows or questions; with --text: N passages, drawn at random.")
]
AnswerTokens = Annotated[
    int | None, typer.Option(callback=whole, help="With --tasks: the longest answer written. Default: the task's.")
]
Constrain = Annotated[
    str | None, typer.Option(metavar="KIND:FORM", help="The answer's form: regex:PATTERN, choice:A,B or json:FILE with a schema.")
]
DraftDepth = Annotated[
    str | None,
    typer.Option(metavar="N|auto", callback=draft_of, help="Draft at this lower depth and verify at --depth: the same text."),
]
