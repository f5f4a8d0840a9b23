"""The verbs about models: what one is and costs, whether it is right, how a dense one becomes looped, and where it is shared."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from loopwright.cli.options import (
    COMMAND,
    Changes,
    Depth,
    Device,
    Dtype,
    Import,
    Json,
    RowTokens,
    preset_names,
    seed_of,
    whole,
    with_json,
)


@with_json
def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A model's folder, a hub id (owner/name) or a preset's name.", autocompletion=preset_names
        ),
    ],
    overrides: Changes = None,
    depth: Depth = None,
    context: RowTokens = None,
    batch: Annotated[int, typer.Option(callback=whole, help="Rows in a pass and in the cache.")] = 1,
    dtype: Dtype = "bf16",
    policy: Annotated[str, typer.Option(help="What the cache keeps: every step, last, or share(n).")] = "every",
    tensors: Annotated[bool, typer.Option("--tensors", help="Print the state dict too: name, shape, dtype, parameters.")] = False,
    as_json: Json = False,
    imports: Import = None,
) -> dict[str, Any]:
    """Show what a model is and costs: parameters by part, FLOPs, activation and cache bytes. Loads and allocates nothing.

    Examples:

    loopwright inspect ouro-1.4b --depth 4 --context 4096 --batch 8

    loopwright inspect huginn core_layers=8 injection.order=input-state --json
    """
    from rich.text import Text

    from loopwright.checkpoints.save import describe
    from loopwright.checkpoints.source import Source
    from loopwright.cli import inspection
    from loopwright.cli.console import console
    from loopwright.cli.opening import find_config, find_dtype, warn_of_damage
    from loopwright.model import cost
    from loopwright.model.presets import PARTS_ALONE
    from loopwright.retrofitting.surgery import freeze_base

    opened = Source(model)
    inspection.refuse_recipe(opened)
    config = find_config(opened, overrides or [])
    if not opened.is_preset:
        warn_of_damage(opened)
    empty = cost.skeleton(config)
    if opened.is_preset and model.removesuffix("-tiny") in PARTS_ALONE:
        freeze_base(empty)
    facts = cost.survey(empty, depth=depth, context=context, batch=batch, dtype=find_dtype(dtype), policy=policy)
    summary, out = describe(config, facts["depth"]), console()
    out.print(Text.assemble((model, "bold"), f": {summary}"), soft_wrap=True)
    for one in (inspection.parameter_table(facts), inspection.flop_table(facts), inspection.byte_table(facts)):
        out.print(one)
    if tensors:
        facts["tensors"] = cost.tensors(empty)
        out.print(inspection.tensor_table(facts["tensors"], facts["dtype"]))
    return {"model": model, "summary": summary, **facts}


def check(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="As for inspect. Default: all presets, tiny.", autocompletion=preset_names),
    ] = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    seed: Annotated[int, typer.Option(callback=seed_of, help="Seed of a preset's new weights.")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Build a preset at its full size, not at test size.")] = False,
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """Check that a model is right: cache, padding, causality, loss, depth, files, one row each. Exits 1 if a check fails.

    Examples:

    loopwright check ./my-model --device cuda --dtype bf16

    loopwright check asura
    """
    from loopwright.cli import checks
    from loopwright.cli.console import show

    reports = show(lambda: checks.check_presets() if model is None else checks.check_model(
        model, dtype=dtype, device=device, seed=seed, full=full,
    ), as_json)  # fmt: skip
    if not all(report.ok for report in reports.values()):
        raise typer.Exit(1)


@with_json
def presets(as_json: Json = False) -> list[dict[str, Any]]:
    """List the systems that can be built by name, with their size and layout.

    Example:

    loopwright presets
    """
    from rich.table import Column, Table

    from loopwright.checkpoints.save import stacks
    from loopwright.cli.console import console
    from loopwright.model import cost
    from loopwright.model.presets import PRESETS, SOURCES, preset

    table = Table(Column("preset", no_wrap=True), Column("parameters", justify="right", no_wrap=True), "stacks", "system")
    rows = []
    for name in PRESETS:
        config = preset(name)
        total, layers = cost.parameters(config)["total"].unique, stacks(config, config.depth)
        rows.append({"preset": name, "parameters": total, "stacks": layers, "system": SOURCES[name]})
        table.add_row(name, f"{total:,}", layers, SOURCES[name])
    out = console()
    out.print(table)
    out.print("NAME-tiny is the same system at test size; lw.build(NAME) makes either with fresh weights.")
    return rows


@with_json
def retrofit(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A dense model's folder or hub id, with its tokenizer.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder to write; a model folder there is replaced.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SYSTEM] [NAME=VALUE]...", help="The system (ouroboros-identity), and changes to it."),
    ] = None,
    prelude: Annotated[str | None, typer.Option(help="How many first layers (8), or which, counted from 0 (0-7).")] = None,
    core: Annotated[str | None, typer.Option(help="Which layers to loop, never how many, counted from 0: 10-12, 18-18.")] = None,
    coda: Annotated[str | None, typer.Option(help="How many last layers (8), or which, counted from 0 (28-35).")] = None,
    search: Annotated[
        str | None, typer.Option("--search", metavar="TEXT", help="Score layouts of that size on this text file and take the best.")
    ] = None,
    search_by: Annotated[str | None, typer.Option(help="loss (default), or turn: how far dropped layers turn the state.")] = None,
    search_depth: Annotated[int | None, typer.Option(callback=whole, help="Steps of the core that is scored. Default: 1.")] = None,
    text: Annotated[
        str | None, typer.Option("--text", metavar="TEXT", help="The text that bases=weighted measures activations on.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(callback=whole, help="How many tokens of either text. Default: 2048.")] = None,
    seed: Annotated[int, typer.Option(callback=seed_of, help="Seed of what starts at random.")] = 0,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    as_json: Json = False,
    imports: Import = None,
) -> dict[str, Any]:
    """Make a dense model looped: keep some layers, loop some, add parts, write a folder. Nothing is trained.

    A system is a layout with parts: ouroboros, ouroboros-static, ouroboros-refiner (as published), ouroboros-identity,
    ouroboros-coda, static, gate-only, plain-loop, healed, relaxed, refiner, repeat, retrofit, retrofit-identity, ouro, upcycle
    (docs/retrofit.md). Changes apply to the layout, the start of the core, the bases and every part: layout=retrofit,
    start=average, depth=4, adapters.rank=8, gate.kind=none.

    Examples:

    loopwright retrofit ./my-llama ./looped ouroboros-identity --prelude 7 --coda 7 adapters.rank=16

    loopwright retrofit ./my-llama ./looped gate-only --search heldout.txt

    loopwright retrofit ./my-llama ./looped --prelude 4 --core 10-12 --coda 4 depth=8
    """
    from loopwright.cli import conversion

    return conversion.retrofit(
        source, out, words or [],
        prelude=prelude, core=core, coda=coda, search_text=search, by=search_by, search_depth=search_depth, text=text,
        tokens=tokens, seed=seed, dtype=dtype, device=device, command=["loopwright", *COMMAND],
    )  # fmt: skip


@with_json
def push(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="The folder of a saved model, a run or a checkpoint.")],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository. Made where it is not there.")],
    private: Annotated[bool, typer.Option("--private", help="Visible to its owner alone; refuses a public one.")] = False,
    as_json: Json = False,
    imports: Import = None,
) -> dict[str, str]:
    """Upload a model to the Hugging Face hub, with its card, after its files were checked. Needs a token (hf auth login).

    Example:

    loopwright push runs/mine me/my-looped-model --private
    """
    from loopwright.checkpoints import hub
    from loopwright.cli.console import console, told_warnings

    with told_warnings():
        address = hub.push(folder, repo, private=private)
    console().print(f"pushed: {address}", markup=False, soft_wrap=True)
    return {"folder": folder, "repo": repo, "address": address}
