"""`loopwright inspect`: what a model is and costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from loopwright.checkpoints.save import describe
from loopwright.checkpoints.source import Source
from loopwright.commands.console import console, find_config, table, warn_of_damage
from loopwright.commands.device import find_dtype
from loopwright.model import cost
from loopwright.model.presets import PARTS_ALONE, PRESETS
from loopwright.recipes import names
from loopwright.retrofitting.surgery import freeze_base


def inspect(
    source: str,
    overrides: Iterable[str] = (),
    *,
    depth: int | None = None,
    context: int | None = None,
    batch: int = 1,
    dtype: str = "bf16",
    policy: str = "every",
    tensors: bool = False,
) -> dict[str, Any]:
    """Prints what a model is and costs: parameters by part, FLOPs, bytes; where asked its state dict. Returns the numbers."""
    opened = Source(source)
    _refuse_recipe(opened)
    config = find_config(opened, overrides)
    if not opened.is_preset:
        warn_of_damage(opened)
    model = cost.skeleton(config)
    if opened.is_preset and source.removesuffix("-tiny") in PARTS_ALONE:
        freeze_base(model)
    facts = cost.survey_of(model, depth=depth, context=context, batch=batch, dtype=find_dtype(dtype), policy=policy)
    rows = cost.tensors_of(model) if tensors else []
    out = console()
    out.print(Text.assemble((source, "bold"), f": {describe(config, facts['depth'])}"), soft_wrap=True)
    for one in (_parameter_table(facts), _flop_table(facts), _byte_table(facts)):
        out.print(one)
    if tensors:
        out.print(_tensor_table(rows, facts["dtype"]))
        facts["tensors"] = rows
    return {"model": source, "summary": describe(config, facts["depth"]), **facts}


def _refuse_recipe(source: Source) -> None:
    """Raises a ValueError where a recipe stands in the place of a model, unless a preset or a folder has its name."""
    shipped = source.name in names() and not source.path.exists() and source.name not in PRESETS
    if shipped or (source.path.suffix in (".yaml", ".yml") and source.path.is_file()):
        raise ValueError(f"model: {source.name!r} is a recipe; give a model's folder, a hub id or a preset's name")


def _parameter_table(facts: Mapping[str, Any]) -> Table:
    made = table("parameters", "part", "unique", "trainable")
    for part, count in facts["parameters"].items():
        if count["unique"] or part == "head":
            name = "head (tied to the embedding)" if part == "head" and not count["unique"] else part
            style = "bold" if part == "total" else None
            made.add_row(name, f"{count['unique']:,}", f"{count['trainable']:,}", style=style)
    return made


def _flop_table(facts: Mapping[str, Any]) -> Table:
    flops = facts["flops"]
    title = f"forward FLOPs at depth {facts['depth']} (matrix products; attention in full)"
    made = table(title, "part", f"one token at context {facts['context']:,}", f"pass of {facts['batch']} × {facts['context']:,}")
    for part, value in flops["token"].items():
        if value:
            made.add_row(part, f"{value:,}", f"{flops['pass'][part]:,}", style="bold" if part == "total" else None)
    made.add_row("training pass (3 × forward)", "", f"{flops['training_pass']:,}")
    return made


def _byte_table(facts: Mapping[str, Any]) -> Table:
    sizes = facts["bytes"]
    room = f"{facts['batch']} × {facts['context']:,} tokens"
    made = table(f"bytes in {facts['dtype']}, cache policy {facts['policy']}", "what", "bytes", "")
    cache, token, alive = sizes["cache"], sizes["cache_per_token"], sizes["activations_inference"]
    rows = [("weights", sizes["weights"])]
    rows += [("KV cache per token", token["keys and values"]), (f"KV cache, {room}", cache["keys and values"])]
    if cache["running sums"]:
        rows += [("running sums per token (float32)", token["running sums"]), (f"running sums, {room}", cache["running sums"])]
    rows += [(f"activations, forward pass of {room} (estimate)", alive["peak"])]
    rows += [("  of which without its logits", alive["blocks"])] if alive["blocks"] < alive["peak"] else []
    rows += [(f"activations, training pass of {room}, all steps kept", sizes["activations_training"])]
    for name, value in rows:
        made.add_row(name, f"{value:,}", readable(value))
    return made


def readable(size: int) -> str:
    """Returns a number of bytes in the largest unit below it."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _tensor_table(rows: Iterable[cost.TensorRow], dtype: str) -> Table:
    made = table("state dict", "name", "shape", "dtype", "parameters")
    for row in rows:
        note = f" = {row.tied_to}" if row.tied_to else "" if row.trainable else " (frozen)"
        made.add_row(row.name + note, " × ".join(map(str, row.shape)), dtype, f"{row.parameters:,}")
    return made
