"""The options that several verbs share or that take lines to describe, and what every number on the command line must be."""

from __future__ import annotations

from typing import Annotated

import typer


def whole(value: int | None) -> int | None:
    """Returns the value of an option; one beyond 32 bits is refused, since no size is that large."""
    if value is not None and abs(value) >= 2**31:
        raise typer.BadParameter(f"{value} has more than 32 bits")
    return value


def seed_of(value: int | None) -> int | None:
    """Returns a seed; torch's generators take those of 64 bits, and a negative one is another's."""
    if value is not None and not 0 <= value < 2**63:
        raise typer.BadParameter(f"{value} is no seed; allowed: a whole number from 0, below 2**63")
    return value


def bring(names: list[str] | None) -> list[str] | None:
    """Executes the files that the user names, before anything is opened, and returns the names."""
    if names:
        from loopwright.imports import import_files

        import_files(names)
    return names


Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model's folder, a hub id (owner/name) or a preset's name.")]
Folder = Annotated[str, typer.Argument(metavar="MODEL", help="A model's folder or a hub id (owner/name), with its tokenizer.")]
Words = Annotated[str | None, typer.Option(metavar="PATH", help="A tokenizer's folder or hub id. Left out: the model's own.")]
Import = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="FILE", callback=bring, help="Execute this Python file of your own parts first; again: more."),
]
Depth = Annotated[
    int | None, typer.Option(callback=whole, help="Steps of a pass: how often the core runs. Left out: the model's own.")
]
Device = Annotated[str, typer.Option(help="Where to run: cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str, typer.Option(help="float32 (fp32), bfloat16 (bf16), float16 (fp16) or float64.")]
StateSeed = Annotated[
    int | None, typer.Option(callback=seed_of, help="Of the initial state, in models that start from noise (Huginn).")
]
Exit = Annotated[
    str | None,
    typer.Option(help="Let tokens leave the loop early: gate, act, change, divergence, entropy or stable, as KIND:NUMBER."),
]
DraftDepth = Annotated[
    int | None, typer.Option(callback=whole, help="Draft at this lower depth and verify at --depth: the same text.")
]
